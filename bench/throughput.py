"""Claim and finish in batches of 500 beside the raw loop, and what lanes cost beside the common line.

In the lanes every task stands under one limit, `bench:<lane>`, whose cap is never reached: all lanes are open, each with a count of its own.
Tasks come in turn over the lanes, which is the hardest order for a claim. The variants with shares have no limit, only a fair key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import raw_sqlite
from bench.report import Figure, Plan, rates
from bench.store import BATCH, PAYLOAD, TYPE, Loop, fill, folder, opened, plain
from taskmill.task import NewTask

__all__ = ["run"]

Side = Callable[[Path, int], Awaitable[float]]
SECTION = "throughput"


async def run(plan: Plan) -> list[Figure]:
    tasks = plan.count(50_000)
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(plan.rounds):
        for name, side in SIDES.items():
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {name}, {tasks:,} tasks")
            with folder(plan.directory) as path:
                found[name].append(await side(path / "bench.db", tasks))
    return _figures(found)


def _figures(found: dict[str, list[float]]) -> list[Figure]:
    def pair(first: str, second: str) -> dict[str, list[float]]:
        return {first: found[first], second: found[second]}

    return [
        rates(SECTION, "claim+finish by 500 / raw loop", 0.4, pair("common", "raw"), "tasks/s"),
        rates(SECTION, "10 lanes / common lane", 0.7, pair("10 lanes", "common"), "tasks/s, one limit each"),
        rates(SECTION, "1,000 lanes / common lane", 0.3, pair("1000 lanes", "common"), "tasks/s, one limit each"),
        rates(SECTION, "10 shares / common lane", None, pair("10 shares", "common"), "tasks/s, a fair key, no limit"),
        rates(SECTION, "1,000 shares / common lane", None, pair("1000 shares", "common"), "tasks/s, a fair key, no limit"),
        rates(SECTION, "finish with next claim / raw loop", None, pair("together", "raw"), "tasks/s, both in one commit"),
    ]


async def _raw(path: Path, tasks: int) -> float:
    return await asyncio.to_thread(raw_sqlite.claim_and_finish, path, tasks, BATCH, PAYLOAD.decode())


async def _common(path: Path, tasks: int) -> float:
    return await _drained(path, tasks, plain)


def _lanes(lanes: int) -> Side:
    def make(number: int) -> NewTask:
        return NewTask(type=TYPE, payload=PAYLOAD, limits=(f"bench:{number % lanes}",))

    return lambda path, tasks: _drained(path, tasks, make)


def _shares(shares: int) -> Side:
    def make(number: int) -> NewTask:
        return NewTask(type=TYPE, payload=PAYLOAD, fair_key=f"tenant-{number % shares}")

    return lambda path, tasks: _drained(path, tasks, make)


async def _drained(path: Path, tasks: int, make: Callable[[int], NewTask]) -> float:
    async with opened(path) as loop:
        await loop.engine.put("limit", "bench", b'{"cap": 1000000}')
        await fill(loop.engine, tasks, make)
        return await loop.timed_drain(tasks)


async def _together(path: Path, tasks: int) -> float:
    """As a worker does it: what has ended is finished while the next is asked for, so both share a commit."""
    async with opened(path) as loop:
        await fill(loop.engine, tasks)
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
