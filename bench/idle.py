"""A worker that has nothing to do: the CPU it takes, supervisor and child together, and how often it asks a server; all from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.contenders import TASKMILL, Place, ask, place, working
from bench.group import Group
from bench.report import Figure, Plan

__all__ = ["run"]

ASKED = {
    "postgres": ("statements", 4.0, "as the server logged them, BEGIN and COMMIT included"),
    "redis": ("commands", None, "as the server read them, but for blocking reads; a script is one"),
}
"""What a server is sent, how much of it in a second at most, and how it was counted."""

SECTION = "idle"
SECONDS = 20.0
SETTLING = 3.0
"""Seconds after its first task until a worker counts as idle: what it does for its start is no part of this."""


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    """At most one round: what is measured is long enough to be its own repetition."""
    seconds = max(2.0, SECONDS * min(1.0, plan.scale * 10))
    with place(plan) as at:
        sent = plan.stores.trace(at.store)
        with working(TASKMILL, 1, at) as group:
            return _idle(at, group, sent, seconds, plan)


def _idle(at: Place, group: Group, sent: Callable[[], int] | None, seconds: float, plan: Plan) -> list[Figure]:
    ask(TASKMILL, at, "late", "1", "10")
    plan.say(f"{SECTION}: {seconds:g} s of nothing, after {SETTLING:g} s to settle")
    time.sleep(SETTLING)
    before, asked, began = group.usage(), sent() if sent else 0, time.monotonic()
    time.sleep(seconds)
    after, taken = group.usage(), time.monotonic() - began
    part = (after.cpu - before.cpu) / taken * 100
    figures = [
        Figure(SECTION, "idle worker, of one core", part, "%", "<=", 1.0, how=f"{after.processes} processes over {taken:.0f} s"),
        Figure(SECTION, "idle worker, memory", after.memory / 1e6, "MB", how=f"resident, sum of {after.processes} processes; what they share counts in each"),
    ]
    if sent is not None:
        what, most, how = ASKED[plan.stores.engine]
        figures.append(Figure(SECTION, f"idle worker, {what}", (sent() - asked) / taken, "/s", "<=" if most else "", most, how=how))
    return figures
