"""Everything that is measured, as ratios of one run: the engine, the executor, peers, what the product costs when idle, and the server. `make bench` runs it.

Each part can be run by itself, with a word on what it measures in its `--help`: bench/engine.py, executor.py, compare.py, product.py, api.py.
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
All engines are measured, one after the other; PostgreSQL and Redis are left out, each in one line, where they are not installed.

sections, in order:
  engine.py      throughput claim_cost edges group_commit processes held pruning (of PostgreSQL) delayed bytes (of Redis)
  executor.py    executor
  compare.py     submit drain latency offered (of Redis)
  product.py     idle start memory
  api.py         ingest waiting client grpc live

examples:
  make bench ARGS="--quick"
  make bench ARGS="--only drain --only submit --rounds 5"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import api, compare, engine, executor, product
    from bench.runner import run

    sections: dict[str, dict[str, Section]] = {}
    for part in (engine, executor, compare, product, api):
        for store, named in part.sections().items():
            sections.setdefault(store, {}).update(named)
    return run("bench/all.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections, arguments, every=True)


if __name__ == "__main__":
    sys.exit(main())
