"""The engine beside a raw loop, as ratios of one run. `make bench` runs all of it; ARGS="--quick" a short form.

Absolute numbers belong to a machine and an hour; a ratio of two sides that took turns in one run says something about the code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.runner import Section

ROOT = Path(__file__).resolve().parent.parent

EPILOG = """
sections:
  throughput     claim+finish by 500 (on Redis 100) beside a raw loop; 10 and 1,000 lanes beside the common one
  claim_cost     a claim with 1,000,000 waiting, behind a closed limit, finished, beside 1,000
  edges          100,000 children of one parent; one task that 100,000 wait for
  group_commit   single submits from 64 coroutines beside one
  processes      two processes on one store beside one; the longest write among ten
  held           of PostgreSQL: 10 minutes at 6,000/s while a snapshot is held; dead rows and sizes
  pruning        of PostgreSQL: 500,000 of 1,000,000 finished tasks removed beside claims and finishes
  delayed        of Redis: 1,000,000 due in the same second; claims and the longest script meanwhile
  bytes          of Redis: memory of a task that waits, runs, is delayed, has ended

examples:
  python bench/engine.py --quick
  python bench/engine.py --engine postgres --only throughput
  python bench/engine.py --engine postgres --only held --hold 1800 --load 15000
  python bench/engine.py --engine redis --only delayed --only bytes
  python bench/engine.py --only throughput --only edges --rounds 5 --json figures.json
  BENCH_DIR=/srv/disk make bench ARGS="--only claim_cost"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import runner

    return runner.run("bench/engine.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    """By engine and name, in order."""
    from bench import claim_cost, delayed, edges, footprint, group_commit, held, processes, pruning, throughput

    every: dict[str, Section] = {
        "throughput": throughput.run,
        "claim_cost": claim_cost.run,
        "edges": edges.run,
        "group_commit": group_commit.run,
        "processes": processes.run,
    }
    return {
        "sqlite": every,
        "postgres": {**every, "held": held.run, "pruning": pruning.run},
        "redis": {**every, "delayed": delayed.run, "bytes": footprint.run},
    }


if __name__ == "__main__":
    sys.exit(main())
