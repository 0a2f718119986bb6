"""Whether a worker's memory stays flat: tasks are submitted and drained part by part, and what all its processes hold is read after each.

The first part is the warm-up (buffers of the store, threads, caches of statements); what is there at the end on top of it is a leak, or a
cache without a bound. In between it goes up and down by what is in flight and by pages of the store that are mapped: that is shown, not judged.
"""

from __future__ import annotations

import asyncio
from contextlib import closing

from bench.contenders import TASKMILL_ASYNC, Place, ask, place, until, working
from bench.group import Group
from bench.peers import counter
from bench.report import Figure, Plan

__all__ = ["growth", "run"]

SECTION = "memory"
TASKS = 100_000
PARTS = 10
GROWTH = 1.1


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    part = plan.count(TASKS) // PARTS
    with place(plan) as at, working(TASKMILL_ASYNC, 1, at) as group:
        held = [_part(at, group, part, number, plan) for number in range(1, PARTS + 1)]
    return growth(held, part)


def _part(at: Place, group: Group, part: int, number: int, plan: Plan) -> int:
    ask(TASKMILL_ASYNC, at, "fill", str(part))
    ask(TASKMILL_ASYNC, at, "release", "1")
    with closing(counter.attach(at.counter)) as memory:
        until(memory, part * number, group)
    held = group.usage().memory
    plan.say(f"{SECTION}: {part * number:,} tasks, {held / 1e6:,.1f} MB")
    return held


def growth(held: list[int], part: int) -> list[Figure]:
    """At the end over after the first part."""
    first, last = held[0], held[-1]
    sides = {f"after {part * len(held):,}, MB": last / 1e6, f"after {part:,}, MB": first / 1e6}
    how = f"most in between {max(held) / 1e6:,.0f} MB; resident, all processes"
    rounds = [one / first for one in held[1:]]
    return [Figure(SECTION, "worker's memory, at the end / after a tenth", last / first, "x", "<=", GROWTH, sides, how, rounds)]
