"""Claim and finish in batches beside the raw loop, and what lanes cost beside the common line.

In the lanes every task stands under one limit, `bench:<lane>`, whose cap is never reached: all lanes are open, each with a count of its own.
Tasks come in turn over the lanes, which is the hardest order for a claim. The variants with shares have no limit, only a fair key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench import raw
from bench.report import Figure, Plan, rates
from bench.store import BATCHES, PAYLOAD, TYPE, Loop, fill, opened, plain
from taskmill.task import NewTask

__all__ = ["run"]

Side = Callable[[str, int, Plan], Awaitable[float]]
SECTION = "throughput"
TARGETS: dict[str, dict[str, float]] = {"sqlite": {"raw": 0.4, "10": 0.7, "1000": 0.3}, "postgres": {"raw": 0.5, "1000": 0.5}, "redis": {}}


async def run(plan: Plan) -> list[Figure]:
    tasks = plan.count(50_000)
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(plan.rounds):
        for name, side in SIDES.items():
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {name}, {tasks:,} tasks")
            with plan.stores.fresh() as url:
                found[name].append(await side(url, tasks, plan))
    return _figures(found, plan)


def _figures(found: dict[str, list[float]], plan: Plan) -> list[Figure]:
    targets = TARGETS[plan.stores.engine]

    def pair(first: str, second: str) -> dict[str, list[float]]:
        return {first: found[first], second: found[second]}

    def beside(name: str, target: float | None, sides: dict[str, list[float]], how: str) -> Figure:
        return rates(SECTION, name, target, sides, how, typical=plan.stores.typical)

    return [
        beside(f"claim+finish by {BATCHES[plan.stores.engine]} / raw loop", targets.get("raw"), pair("common", "raw"), "tasks/s"),
        beside("10 lanes / common lane", targets.get("10"), pair("10 lanes", "common"), "tasks/s, one limit each"),
        beside("1,000 lanes / common lane", targets.get("1000"), pair("1000 lanes", "common"), "tasks/s, one limit each"),
        beside("10 shares / common lane", None, pair("10 shares", "common"), "tasks/s, a fair key, no limit"),
        beside("1,000 shares / common lane", None, pair("1000 shares", "common"), "tasks/s, a fair key, no limit"),
        beside("finish with next claim / raw loop", None, pair("together", "raw"), "tasks/s, both in one commit"),
    ]


async def _raw(url: str, tasks: int, _: Plan) -> float:
    return await asyncio.to_thread(raw.claim_and_finish, url, tasks)


async def _common(url: str, tasks: int, plan: Plan) -> float:
    return await _drained(url, tasks, plan, plain)


def _lanes(lanes: int) -> Side:
    def make(number: int) -> NewTask:
        return NewTask(type=TYPE, payload=PAYLOAD, limits=(f"bench:{number % lanes}",))

    return lambda url, tasks, plan: _drained(url, tasks, plan, make)


def _shares(shares: int) -> Side:
    def make(number: int) -> NewTask:
        return NewTask(type=TYPE, payload=PAYLOAD, fair_key=f"tenant-{number % shares}")

    return lambda url, tasks, plan: _drained(url, tasks, plan, make)


async def _drained(url: str, tasks: int, plan: Plan, make: Callable[[int], NewTask]) -> float:
    async with opened(url) as loop:
        await loop.engine.put("limit", "bench", b'{"cap": 1000000}')
        await fill(loop.engine, tasks, make)
        plan.stores.settle(url)
        return await loop.timed_drain(tasks)


async def _together(url: str, tasks: int, plan: Plan) -> float:
    """As a worker does it: what has ended is finished while the next is asked for, so both share a commit."""
    async with opened(url) as loop:
        await fill(loop.engine, tasks)
        plan.stores.settle(url)
        began = time.perf_counter()
        done = await _overlap(loop)
        assert done == tasks, f"{done} of {tasks} tasks were finished"
        return done / (time.perf_counter() - began)


async def _overlap(loop: Loop) -> int:
    done = 0
    held = await loop.claim()
    while held:
        done += len(held)
        _, held = await asyncio.gather(loop.finish(held), loop.claim())
    return done


SIDES: dict[str, Side] = {
    "raw": _raw,
    "common": _common,
    "10 lanes": _lanes(10),
    "1000 lanes": _lanes(1_000),
    "10 shares": _shares(10),
    "1000 shares": _shares(1_000),
    "together": _together,
}
