"""What `taskmill bench` measures, in order: submits into a store without a worker, then drains, then the wait on an idle worker.

Everything goes through the SDK and a real `taskmill worker`. While its processes come up the queue is paused, so a drain begins with all of them; it
lasts from the first start to the last end by the store's own clock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from taskmill.cli.bench_app import QUEUE, Declared
from taskmill.cli.bench_worker import Worker, working
from taskmill.clock import SECOND
from taskmill.engine import Filter
from taskmill.errors import Conflict, ResultTimeout
from taskmill.operations import Operations
from taskmill.task import LIVE, TERMINAL

__all__ = ["FULL", "QUICK", "Measure", "Sizes", "clean", "measure"]

CALLERS = 64
LAST = 500
WARM_UP = 5
STANDSTILL = 60.0
"""Seconds without one more task ended: it will not come to its end."""

OWN = Filter(queues=frozenset({QUEUE}))
LEFT = Filter(queues=frozenset({QUEUE}), states=LIVE)
ENDED = Filter(queues=frozenset({QUEUE}), states=TERMINAL)

Tell = Callable[[int], None]
Bar = Callable[[str, int], AbstractContextManager[Tell | None]]


class Measure(NamedTuple):
    """One line of the table; `key` is its name in JSON, unit included."""

    key: str
    name: str
    value: float
    unit: str
    note: str = ""


class Sizes(NamedTuple):
    """How many of everything."""

    single: int
    concurrent: int
    bulk: int
    waits: int


FULL = Sizes(single=1_000, concurrent=10_000, bulk=50_000, waits=200)
QUICK = Sizes(single=100, concurrent=1_000, bulk=5_000, waits=50)


async def measure(declared: Declared, url: str, sizes: Sizes, bar: Bar, *, tidy: bool) -> list[Measure]:
    """All measures, on a store in which nobody else uses the queue of the bench; `tidy`: the store stays, what was put into it goes."""
    async with declared.app:
        operations = declared.app.operations
        if any(QUEUE in worker.queues and worker.alive for worker in await operations.workers()):
            raise Conflict("another bench runs on this store", code="bench_running", hint="wait for it, or leave out --url to use a store of its own")
        await clean(operations)
        try:
            return await _measure(declared, url, sizes, bar)
        finally:
            if tidy:
                await operations.resume_queue(QUEUE)
                await clean(operations)


async def clean(operations: Operations) -> None:
    """Nothing is left in the queue of the bench; its two types stay registered."""
    await operations.cancel(OWN)
    await operations.delete(OWN)


async def _measure(declared: Declared, url: str, sizes: Sizes, bar: Bar) -> list[Measure]:
    operations = declared.app.operations
    await _many(declared, WARM_UP)
    await operations.pause_queue(QUEUE, reason="taskmill bench")
    found, last = await _submits(declared, sizes, bar)
    async with working(url, 1) as worker:
        found += await _drain(operations, worker, 1, WARM_UP + sizes.single + sizes.concurrent + sizes.bulk, last, bar)
        found += await _waits(declared, sizes.waits, bar)
    await operations.pause_queue(QUEUE, reason="taskmill bench")
    last = await _many(declared, sizes.bulk)
    async with working(url, 2) as worker:
        return found + await _drain(operations, worker, 2, sizes.bulk, last, bar)


# Submits


async def _submits(declared: Declared, sizes: Sizes, bar: Bar) -> tuple[list[Measure], list[str]]:
    """And the ids of those that were submitted last."""
    with bar("submit one by one", sizes.single) as tell:
        began = time.perf_counter()
        await _one_by_one(declared, sizes.single, tell)
        single = sizes.single / (time.perf_counter() - began)
    with bar(f"submit from {CALLERS} coroutines", sizes.concurrent):
        began = time.perf_counter()
        await asyncio.gather(*(_one_by_one(declared, sizes.concurrent // CALLERS + (caller < sizes.concurrent % CALLERS)) for caller in range(CALLERS)))
        concurrent = sizes.concurrent / (time.perf_counter() - began)
    with bar("submit_many", sizes.bulk):
        began = time.perf_counter()
        last = await _many(declared, sizes.bulk)
        bulk = sizes.bulk / (time.perf_counter() - began)
    found = [
        Measure("submit_single_per_second", "submit one by one", single, "/s", f"{sizes.single:,} tasks, a commit each"),
        Measure("submit_concurrent_per_second", f"submit from {CALLERS} coroutines", concurrent, "/s", f"{sizes.concurrent:,} tasks, they share commits"),
        Measure("submit_many_per_second", "submit_many", bulk, "/s", f"{sizes.bulk:,} tasks"),
    ]
    return found, last


async def _one_by_one(declared: Declared, n: int, tell: Tell | None = None) -> None:
    for number in range(1, n + 1):
        await declared.noop.submit()
        if tell is not None and number % 50 == 0:
            tell(number)


async def _many(declared: Declared, n: int) -> list[str]:
    return [handle.id for handle in await declared.app.submit_many(declared.noop.call() for _ in range(n))][-LAST:]


# Drains


async def _drain(operations: Operations, worker: Worker, processes: int, tasks: int, last: list[str], bar: Bar) -> list[Measure]:
    await worker.joined(operations)
    before = worker.usage()
    title = "drain, 1 process" if processes == 1 else f"drain, {processes} processes"
    with bar(title, tasks) as tell:
        began = operations.engine.clock.now()
        await operations.resume_queue(QUEUE)
        await _ended(operations, worker, last, tell)
    after = worker.usage()
    rate = tasks * SECOND / (await _end(operations) - began)
    found = [Measure(f"drain_{processes}_per_second", title, rate, "/s", f"{tasks:,} tasks that do nothing (async def)")]
    if before is not None and after is not None:
        cpu, memory = (after.cpu - before.cpu) / tasks * 1e6, after.memory / 1e6
        found.append(Measure(f"drain_{processes}_cpu_us_per_task", f"{title}: CPU of a task", cpu, "µs", "supervisor and all its processes"))
        found.append(Measure(f"drain_{processes}_memory_mb", f"{title}: memory", memory, "MB", "resident; what processes share counts in each"))
    return found


async def _ended(operations: Operations, worker: Worker, last: list[str], tell: Tell | None) -> None:
    """Those that were submitted last have ended, and then, as order is kept but for what runs at the same time, soon all."""
    done, moved = -1, time.monotonic()
    while len(await operations.wait(last, SECOND, every=True)) < len(last) or (await operations.list(LEFT, n=1)).tasks:
        worker.check()
        now = await operations.count(ENDED)
        if tell is not None:
            tell(now)
        if now > done:
            done, moved = now, time.monotonic()
        elif time.monotonic() - moved > STANDSTILL:
            raise ResultTimeout(f"no task has ended for {STANDSTILL:g} s", hint="`taskmill check` says what holds work up")


async def _end(operations: Operations) -> int:
    page = await operations.list(OWN, n=LAST)
    return max(task.finished_at or 0 for task in page.tasks)


# Waits


async def _waits(declared: Declared, n: int, bar: Bar) -> list[Measure]:
    """One at a time, the next after a pause of a length by chance, so that no poll falls into step with it."""
    waits = []
    with bar("idle to start", n) as tell:
        for number in range(n + WARM_UP):
            sent = time.monotonic_ns()
            handle = await declared.begun.submit()
            waits.append((await handle.result(timeout=STANDSTILL) - sent) / 1e6)
            if tell is not None:
                tell(number)
            await asyncio.sleep(random.uniform(0.005, 0.03))
    waits = sorted(waits[WARM_UP:])
    note = f"{n:,} submits to an idle worker, commit included"
    return [
        Measure("idle_to_start_p50_ms", "idle to start, p50", waits[len(waits) // 2], "ms", note),
        Measure("idle_to_start_p99_ms", "idle to start, p99", waits[min(len(waits) - 1, len(waits) * 99 // 100)], "ms", note),
    ]
