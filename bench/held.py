"""A steady load while somebody holds a snapshot: dead rows cannot be removed then, and every index that is read walks over them.

One process submits so many tasks a second, another claims and finishes them as they come and does a worker's upkeep (beat, recovery) every second. The same
load for a tenth of the time without a snapshot is what it is compared with. Twice: all tasks in the common lane; half of them in 1,000 lanes, a cap each.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import asyncpg

from bench.report import Figure, Plan
from bench.store import PAYLOAD, TYPE, Loop, fill, opened, plain
from taskmill.task import NewTask

__all__ = ["Course", "Size", "figures", "run"]

SECTION = "held"
SECONDS = 600.0
LOAD = 6_000
LANES = 1_000
TICK = 0.05
"""Seconds between two submits, and the pause of a claim that found little."""

SIZES = """
SELECT relname, pg_total_relation_size(relid) / 1e6 AS megabytes, n_dead_tup AS dead
FROM pg_stat_user_tables ORDER BY pg_total_relation_size(relid) DESC LIMIT 5
"""

Make = Callable[[int], NewTask]


class Size(NamedTuple):
    """Of a table with its indexes."""

    table: str
    megabytes: float
    dead: int


class Course(NamedTuple):
    """How one load went: tasks finished in each whole second, what still waits at its end, and the largest tables."""

    seconds: list[int]
    backlog: int
    sizes: list[Size]

    @property
    def rate(self) -> float:
        """Over the last fifth."""
        part = self.seconds[-max(1, len(self.seconds) // 5) :]
        return sum(part) / len(part)


async def run(plan: Plan) -> list[Figure]:
    held = plan.hold or (SECONDS * plan.scale if plan.scale >= 1 else max(5.0, SECONDS / 2 * plan.scale))
    load = plan.load or LOAD
    found = []
    for name, make, target in (("common lane", plain, 0.9), (f"half in {LANES:,} lanes", half_in_lanes, 0.7)):
        without = await _loaded(plan, make, load, max(5.0, held / 10), name, hold=False)
        course = await _loaded(plan, make, load, held, name, hold=True)
        found += figures(name, without, course, load, held, target)
    return found


def half_in_lanes(number: int) -> NewTask:
    return plain(number) if number % 2 else NewTask(type=TYPE, payload=PAYLOAD, limits=(f"bench:{number // 2 % LANES}",))


def figures(name: str, without: Course, course: Course, load: int, held: float, target: float) -> list[Figure]:
    sides = {"held": course.rate, "without": without.rate}
    how = f"tasks/s in the last fifth, {load:,}/s for {held:g} s; slowest second {min(course.seconds):,}, {course.backlog:,} wait at the end"
    return [
        Figure(SECTION, f"{name}: snapshot held / not", course.rate / max(1.0, without.rate), "x", ">=", target, sides, how),
        _largest(f"{name}: largest tables, held", course),
        _largest(f"{name}: largest tables, not held", without),
    ]


def _largest(name: str, course: Course) -> Figure:
    how = "; ".join(f"{size.table} {size.megabytes:,.0f} MB, {size.dead:,} dead rows" for size in course.sizes)
    return Figure(SECTION, name, sum(size.megabytes for size in course.sizes), "MB", how=f"after {sum(course.seconds):,} tasks: {how}")


async def _loaded(plan: Plan, make: Make, load: int, seconds: float, name: str, *, hold: bool) -> Course:
    plan.say(f"{SECTION}: {name}, {load:,}/s for {seconds:g} s{', a snapshot held' if hold else ''}")
    with plan.stores.fresh() as url:
        async with opened(url) as loop, _snapshot(url, hold):
            await loop.engine.put("limit", "bench", b'{"cap": 1000000}')
            with _submitting(url, make, load) as stop:
                finished = await _work(loop, seconds)
                stop.set()
            return Course(finished, *await _state(url))


@contextlib.asynccontextmanager
async def _snapshot(url: str, hold: bool) -> AsyncIterator[None]:
    """A transaction that has read something and is left open."""
    connection: Any = await asyncpg.connect(url)
    try:
        if hold:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.fetch("SELECT count(*) FROM pg_class")
        yield
    finally:
        await connection.close()


async def _work(loop: Loop, seconds: float) -> list[int]:
    """Finished in each whole second."""
    counts = [0] * int(seconds)
    began = time.monotonic()
    upkeep = began + 1
    while (now := time.monotonic()) - began < len(counts):
        tasks = await loop.claim()
        if tasks:
            await loop.finish(tasks)
            second = int(time.monotonic() - began)
            if second < len(counts):
                counts[second] += len(tasks)
        if len(tasks) < loop.batch // 5:
            await asyncio.sleep(TICK / 5)
        if now >= upkeep:
            upkeep = now + 1
            await loop.engine.heartbeat(loop.worker, loop.request, ())
            await loop.engine.recover_lost()
    return counts


async def _state(url: str) -> tuple[int, list[Size]]:
    connection: Any = await asyncpg.connect(url)
    try:
        backlog = int(await connection.fetchval("SELECT count(*) FROM taskmill.task"))
        rows = await connection.fetch(SIZES)
    finally:
        await connection.close()
    return backlog, [Size(row["relname"], float(row["megabytes"]), int(row["dead"])) for row in rows]


@contextlib.contextmanager
def _submitting(url: str, make: Make, load: int) -> Iterator[Event]:
    """A process that submits at this pace until it is told to stop."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    child = context.Process(target=_submit, args=(url, make, load, stop), daemon=True)
    child.start()
    try:
        yield stop
    finally:
        stop.set()
        child.join(timeout=30)
        if child.is_alive():
            child.terminate()
            child.join()


def _submit(url: str, make: Make, load: int, stop: Event) -> None:
    asyncio.run(_pace(url, make, load, stop))


def _behind(make: Make, first: int, number: int) -> NewTask:
    return make(first + number)


async def _pace(url: str, make: Make, load: int, stop: Event) -> None:
    """As many as the clock asks for; one that fell behind sends more, but no more than a second's."""
    async with opened(url, "bench-submits") as loop:
        sent, began = 0, time.monotonic()
        while not stop.is_set():
            due = min(int((time.monotonic() - began) * load) - sent, load)
            if due > 0:
                await fill(loop.engine, due, partial(_behind, make, sent))
                sent += due
            await asyncio.sleep(TICK)
