"""The worker's executor alone, the store taken out: what running a handler costs beyond calling it.

Async no-ops beside a bare loop of create_task, without timeouts, leases or outcomes; plain no-ops, which share hops between threads, beside
one hop for each (`run_in_executor`). Everything is claimed before the clock starts; outcomes are counted and thrown away.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.report import Figure, Plan
    from bench.runner import Section

ROOT = Path(__file__).resolve().parent.parent

EPILOG = """
examples:
  python bench/executor.py --quick
  python bench/executor.py --rounds 5 --json figures.json
"""

SECTION = "executor"
BATCH = 500

Side = Callable[[int], Coroutine[Any, Any, float]]


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import runner

    return runner.run("bench/executor.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    """By engine and name; it knows no store, so it stands with the first."""
    return {"sqlite": {"executor": run}}


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    from bench.executor_sides import bare, executed, hops
    from bench.report import rates

    n = plan.count(50_000) // BATCH * BATCH
    sides: dict[str, Side] = {"async": lambda n: executed("async", n), "bare": bare, "threads": lambda n: executed("sync", n), "hops": hops}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(plan.rounds):
        for name, side in sides.items():
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {name}, {n:,} tasks")
            found[name].append(_in_a_loop(side(n)))
    return [
        rates(SECTION, "async def / bare create_task", 0.5, {"async def": found["async"], "bare": found["bare"]}, "tasks/s, no store"),
        rates(SECTION, "def / one thread hop each", 2, {"def": found["threads"], "hops": found["hops"]}, "tasks/s, no store"),
    ]


def _in_a_loop(coroutine: Coroutine[Any, Any, float]) -> float:
    """The kind of loop that a worker runs on."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=importlib.import_module("uvloop").new_event_loop) as runner:
        return runner.run(coroutine)


if __name__ == "__main__":
    sys.exit(main())
