"""A store to measure: opened by its URL, filled in large batches, driven by one worker that does nothing with its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from taskmill.config import engine_kind
from taskmill.engine import Claimed, Ending, Engine, Joining, Outcome, Room, Status
from taskmill.engines import create, schema
from taskmill.task import NewTask, TypeSettings

__all__ = ["BATCHES", "PAYLOAD", "QUEUE", "TYPE", "Loop", "batch_of", "fill", "opened", "plain"]

BATCHES = {"sqlite": 500, "postgres": 500, "redis": 100}
"""How many are claimed and finished at once: on Redis a script is kept short, because everybody waits for it."""
FILL = 10_000
TYPE = "noop"
QUEUE = "default"
PAYLOAD = b'{"args":[1,2,3],"kwargs":{"user":42},"trace":"0af7651916cd43dd8448eb211c80319c"}'


class Loop:
    """A worker without a process: its claims are numbered, its tasks end at once."""

    def __init__(self, engine: Engine, worker: str, batch: int) -> None:
        self.engine = engine
        self.worker = worker
        self.batch = batch
        self.request = 0

    async def join(self) -> None:
        await self.engine.join(Joining(worker=self.worker, queues=(QUEUE,), types={TYPE: TypeSettings()}))

    async def claim(self, n: int = 0) -> tuple[Claimed, ...]:
        """A batch, where no number is said."""
        self.request += 1
        claim = await self.engine.claim(self.worker, self.request, (QUEUE,), Room(n or self.batch))
        return claim.tasks if claim.tasks or not claim.more else await self.claim(n)

    async def finish(self, tasks: tuple[Claimed, ...]) -> bool:
        """True while edges of what ended are still falling."""
        finished = await self.engine.finish(self.outcomes(tasks))
        assert not finished.refused, finished.refused[0]
        return finished.more

    def outcomes(self, tasks: tuple[Claimed, ...]) -> list[Outcome]:
        return [Outcome(task=task.id, worker=self.worker, token=task.token, ending=Ending.COMPLETED, started_after=0) for task in tasks]

    async def drain(self) -> int:
        """Claim and finish until nothing is left."""
        done = 0
        while tasks := await self.claim():
            await self.finish(tasks)
            done += len(tasks)
        return done

    async def timed_drain(self, expected: int) -> float:
        """Tasks a second."""
        began = time.perf_counter()
        done = await self.drain()
        taken = time.perf_counter() - began
        assert done == expected, f"{done} of {expected} tasks were finished"
        return done / taken


def batch_of(url: str) -> int:
    return BATCHES[engine_kind(url)]


@contextlib.asynccontextmanager
async def opened(url: str, worker: str = "bench") -> AsyncIterator[Loop]:
    """An engine on this store, which reaches the disk with every commit, and a worker that has joined."""
    await asyncio.to_thread(schema(url).upgrade)
    engine = create(url)
    await engine.open()
    try:
        loop = Loop(engine, worker, batch_of(url))
        await loop.join()
        yield loop
    finally:
        await engine.close()


def plain(_: int) -> NewTask:
    return NewTask(type=TYPE, payload=PAYLOAD)


async def fill(engine: Engine, n: int, make: Callable[[int], NewTask] = plain, say: Callable[[str], None] | None = None) -> None:
    """n tasks, made one by one from their number, submitted by the ten thousand."""
    for start in range(0, n, FILL):
        answers = await engine.submit([make(number) for number in range(start, min(start + FILL, n))])
        wrong = next((answer for answer in answers if answer.status is not Status.CREATED), None)
        assert wrong is None, wrong
        if say is not None and start and start % 200_000 == 0:
            say(f"  {start:,} of {n:,} submitted")
