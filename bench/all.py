"""Everything that is measured, as ratios of one run: the engine, the executor, peers, and what the product costs when idle. `make bench` runs it.

Each part can be run by itself, with a word on what it measures in its `--help`: bench/engine.py, bench/executor.py, bench/compare.py, bench/product.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

EPILOG = """
sections, in order:
  engine.py      throughput claim_cost edges group_commit processes
  executor.py    executor
  compare.py     submit drain latency
  product.py     idle start memory

examples:
  make bench ARGS="--quick"
  make bench ARGS="--only drain --only submit --rounds 5"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import compare, engine, executor, product
    from bench.runner import run

    sections = {**engine.sections(), **executor.sections(), **compare.sections(), **product.sections()}
    return run("bench/all.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections, arguments)


if __name__ == "__main__":
    sys.exit(main())
