"""What Taskmill costs when it does nothing: an idle worker, a command that only answers, an import; and whether its memory stays flat.

The soak (`--only memory`) drains tasks in parts through one `taskmill worker` and watches what it holds; `--scale 10` is the million.
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
  idle        CPU and memory of a worker that has nothing to do, all its processes together; what it sends to a server
  start       `taskmill version` and `import taskmill`, medians
  memory      the worker's memory after 100,000 tasks (at scale 1) beside after the first tenth of them

examples:
  python bench/product.py --quick
  python bench/product.py --engine redis --only idle
  python bench/product.py --only memory --scale 10
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import runner

    return runner.run("bench/product.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    """By engine and name, in order; what asks no store stands with the first."""
    from bench import idle, memory, start

    server: dict[str, Section] = {"idle": idle.run, "memory": memory.run}
    return {"sqlite": {"idle": idle.run, "start": start.run, "memory": memory.run}, "postgres": server, "redis": server}


if __name__ == "__main__":
    sys.exit(main())
