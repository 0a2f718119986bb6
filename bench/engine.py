"""The engine beside a raw loop, as ratios of one run. `make bench` runs all of it; ARGS="--quick" a short form.

Absolute numbers belong to a machine and an hour; a ratio of two sides that took turns in one run says something about the code.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report import Plan

ROOT = Path(__file__).resolve().parent.parent

SECTIONS = ("throughput", "claim_cost", "edges", "group_commit", "processes")

EPILOG = """\
sections:
  throughput     claim+finish by 500 beside a raw loop; 10 and 1,000 lanes beside the common one
  claim_cost     a claim with 1,000,000 waiting, behind a closed limit, finished, beside 1,000
  edges          100,000 children of one parent; one task that 100,000 wait for
  group_commit   single submits from 64 coroutines beside one
  processes      two processes on one file beside one; the longest write among ten

examples:
  python bench/engine.py --quick
  python bench/engine.py --only throughput --only edges --rounds 5 --json figures.json
  BENCH_DIR=/srv/disk make bench ARGS="--only claim_cost"

The exit status says whether the run came to its end, not whether targets were met.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    directory = Path(options.dir)
    if not directory.is_dir():
        print(f"bench: {directory} is not a directory; make it first, or name another with --dir", file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    from bench import report

    scale = options.scale if options.scale is not None else 0.1 if options.quick else 1.0
    rounds = options.rounds if options.rounds is not None else 1 if options.quick else 3
    plan = report.Plan(directory, rounds, scale, max(0.2, 4.0 * min(1.0, scale * 5)))
    try:
        asyncio.run(_run(plan, options.only or SECTIONS, options.json))
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    return 0


async def _run(plan: Plan, names: Sequence[str], file: Path | None) -> None:
    from bench import claim_cost, edges, group_commit, processes, throughput
    from bench.report import show, write_json

    sections = {"throughput": throughput.run, "claim_cost": claim_cost.run, "edges": edges.run, "group_commit": group_commit.run, "processes": processes.run}
    figures = []
    for name in SECTIONS:
        if name in names:
            figures += await sections[name](plan)
    show(figures, plan)
    if file is not None:
        write_json(file, figures, plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/engine.py", description=(__doc__ or "").split("\n\n")[0], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="NAME", help="this section only; may be given again")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of everything: to see that it runs, not to believe its numbers")
    parser.add_argument("--rounds", type=_positive, metavar="K", help="how often each side has its turn (default 3)")
    parser.add_argument("--scale", type=_part, metavar="X", help="this part of all counts (default 1.0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--dir", default=os.environ.get("BENCH_DIR", "."), help="a directory on a real disk for the stores (default $BENCH_DIR or the current one)"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _part(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10")
    return value


if __name__ == "__main__":
    sys.exit(main())
