"""What `taskmill bench` measures, in order: submits into a store without a worker, then drains, then the wait on an idle worker.

Everything goes through the SDK and a real `taskmill worker`. While its processes come up the queue is paused, so a drain begins with all of them; it
lasts from the first start to the last end by the store's own clock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from taskmill.clock import SECOND
from taskmill.cli.bench_app import QUEUE, Declared
from taskmill.cli.bench_worker import Usage, Worker
from taskmill.engine import Filter
from taskmill.errors import Conflict, ResultTimeout
from taskmill.operations import Operations
from taskmill.task import LIVE

__all__ = ["FULL", "QUICK", "Measure", "Sizes", "clean", "measure"]

CALLERS = 64
PAGE = 500
STANDSTILL = 60.0
"""Seconds without one more task ended: it will not come to its end."""

OWN = Filter(queues=frozenset({QUEUE}))
LEFT = Filter(queues=frozenset({QUEUE}), states=LIVE)

Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]


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


async def measure(declared: Declared, url: str, sizes: Sizes, bar: Bar) -> list[Measure]:
    """All measures, on a store in which nobody else uses the queue of the bench."""
    async with declared.app:
        operations = declared.app.operations
        if any(QUEUE in worker.queues and worker.alive for worker in await operations.workers()):
            raise Conflict("another bench runs on this store", code="bench_running", hint="wait for it, or leave out --url to use a store of its own")
        await clean(operations)
        await operations.pause_queue(QUEUE, reason="taskmill bench")
        try:
            found = await _submits(declared, sizes, bar)
            tasks = sizes.single + sizes.concurrent + sizes.bulk
            async with Worker(url, 1) as worker:
                found += await _drain(operations, worker, 1, tasks, bar)
                found += await _waits(declared, worker, sizes.waits, bar)
            await operations.pause_queue(QUEUE, reason="taskmill bench")
            await declared.app.submit_many(declared.noop.call() for _ in range(sizes.bulk))
            async with Worker(url, 2) as worker:
                return found + await _drain(operations, worker, 2, sizes.bulk, bar)
        finally:
            await operations.resume_queue(QUEUE)


async def clean(operations: Operations) -> None:
    """Nothing is left in the queue of the bench; its two types stay registered."""
    await operations.cancel(OWN)
    await operations.delete(OWN)


# Submits


async def _submits(declared: Declared, sizes: Sizes, bar: Bar) -> list[Measure]:
    bulk = await _timed(bar, "submit_many", sizes.bulk, lambda: _many(declared, sizes.bulk))
    concurrent = await _timed(bar, f"submit from {CALLERS} coroutines", sizes.concurrent, lambda: _callers(declared, sizes.concurrent))
    single = await _timed(bar, "submit one by one", sizes.single, lambda: _one_by_one(declared, sizes.single))
    return [
        Measure("submit_many_per_second", "submit_many", bulk, "/s", f"{sizes.bulk:,} tasks"),
        Measure("submit_concurrent_per_second", f"submit from {CALLERS} coroutines", concurrent, "/s", f"{sizes.concurrent:,} tasks, they share commits"),
        Measure("submit_single_per_second", "submit one by one", single, "/s", f"{sizes.single:,} tasks, a commit each"),
    ]


async def _timed(bar: Bar, title: str, n: int, work: Callable[[], asyncio.Future[None] | object]) -> float:
    raise NotImplementedError


async def _many(declared: Declared, n: int) -> None:
    await declared.app.submit_many(declared.noop.call() for _ in range(n))


async def _one_by_one(declared: Declared, n: int) -> None:
    for _ in range(n):
        await declared.noop.submit()


async def _callers(declared: Declared, n: int) -> None:
    await asyncio.gather(*(_one_by_one(declared, n // CALLERS + (caller < n % CALLERS)) for caller in range(CALLERS)))


# Drains


async def _drain(operations: Operations, worker: Worker, processes: int, tasks: int, bar: Bar) -> list[Measure]:
    await worker.joined(operations)
    before = worker.usage()
    name = "1 process" if processes == 1 else f"{processes} processes"
    with bar(f"drain, {name}", tasks) as tell:
        began = operations.engine.clock.now()
        await operations.resume_queue(QUEUE)
        await _empty(operations, worker, tasks, tell)
    rate = tasks * SECOND / (await _last(operations) - began)
    found = [Measure(f"drain_{processes}_per_second", f"drain, {name}", rate, "/s", f"{tasks:,} tasks that do nothing, async def")]
    return found + _usage(before, worker.usage(), processes, name, tasks)


async def _empty(operations: Operations, worker: Worker, tasks: int, tell: Callable[[int], None] | None) -> None:
    """Nothing is left; looking is cheap, because what is live stands in front."""
    raise NotImplementedError
