"""A worker that has nothing to do: the CPU it takes, supervisor and child together, from outside."""

from __future__ import annotations

import asyncio
import time

from bench.contenders import TASKMILL, ask, place, working
from bench.report import Figure, Plan

__all__ = ["run"]

SECTION = "idle"
SECONDS = 20.0
SETTLING = 3.0
"""Seconds after its first task until a worker counts as idle: what it does for its start is no part of this."""


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    """At most one round: what is measured is long enough to be its own repetition."""
    seconds = max(2.0, SECONDS * min(1.0, plan.scale * 10))
    with place(plan) as at, working(TASKMILL, 1, at) as group:
        ask(TASKMILL, at, "late", "1", "10")
        plan.say(f"{SECTION}: {seconds:g} s of nothing, after {SETTLING:g} s to settle")
        time.sleep(SETTLING)
        before, began = group.usage(), time.monotonic()
        time.sleep(seconds)
        after, taken = group.usage(), time.monotonic() - began
    part = (after.cpu - before.cpu) / taken * 100
    return [
        Figure(SECTION, "idle worker, of one core", part, "%", "<=", 1.0, how=f"{after.processes} processes over {taken:.0f} s"),
        Figure(SECTION, "idle worker, memory", after.memory / 1e6, "MB", how=f"resident, sum of {after.processes} processes; what they share counts in each"),
    ]
