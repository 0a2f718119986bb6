"""How long a command takes that only answers, and an import: medians of programs started one after the other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from bench.peers.side import program
from bench.report import Figure, Plan, percentile

__all__ = ["run"]

SECTION = "start"
TIMES = 15


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    times = plan.count(TIMES, least=5)
    commands = {
        "python that does nothing": [sys.executable, "-c", "pass"],
        "import taskmill": [sys.executable, "-c", "import taskmill"],
        "taskmill version": [program("taskmill"), "version"],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    plan.say(f"{SECTION}: {times} starts of {', '.join(commands)}")
    for _ in range(times):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found[name].append((time.perf_counter() - began) * 1e3)
    return [_figure(name, values) for name, values in found.items()]


def _figure(name: str, values: list[float]) -> Figure:
    target = 150.0 if name == "taskmill version" else None
    how = f"median of {len(values)}, p99 {percentile(values, 0.99):.0f} ms"
    return Figure(SECTION, name, percentile(values, 0.5), "ms", "<=" if target else "", target, how=how)
