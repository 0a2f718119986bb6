"""A store to measure: opened by its URL, filled in large batches, driven by one worker that does nothing with its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from taskmill.engine import Claimed, Ending, Engine, Joining, Outcome, Room, Status
from taskmill.engines import create, schema
from taskmill.task import NewTask, TypeSettings

__all__ = ["BATCH", "PAYLOAD", "TYPE", "Loop", "fill", "opened", "plain"]

BATCH = 500
FILL = 10_000
TYPE = "noop"
QUEUE = "default"
PAYLOAD = b'{"args":[1,2,3],"kwargs":{"user":42},"trace":"0af7651916cd43dd8448eb211c80319c"}'


class Loop:
    """A worker without a process: its claims are numbered, its tasks end at once."""

    def __init__(self, engine: Engine, worker: str = "bench") -> None:
        self.engine = engine
        self.worker = worker
        self.request = 0

    async def join(self) -> None:
        await self.engine.join(Joining(worker=self.worker, queues=(QUEUE,), types={TYPE: TypeSettings()}))

    async def claim(self, n: int = BATCH) -> tuple[Claimed, ...]:
        self.request += 1
        claim = await self.engine.claim(self.worker, self.request, (QUEUE,), Room(n))
        return claim.tasks if claim.tasks or not claim.more else await self.claim(n)

    async def finish(self, tasks: tuple[Claimed, ...]) -> bool:
        """True while edges of what ended are still falling."""
        finished = await self.engine.finish(self.outcomes(tasks))
        assert not finished.refused, finished.refused[0]
        return finished.more

    def outcomes(self, tasks: tuple[Claimed, ...]) -> list[Outcome]:
        return [Outcome(task=task.id, worker=self.worker, token=task.token, ending=Ending.COMPLETED, started_after=0) for task in tasks]

    async def drain(self, n: int = BATCH) -> int:
        """Claim and finish until nothing is left."""
        done = 0
        while tasks := await self.claim(n):
            await self.finish(tasks)
            done += len(tasks)
        return done

    async def timed_drain(self, expected: int, n: int = BATCH) -> float:
        """Tasks a second."""
        began = time.perf_counter()
        done = await self.drain(n)
        taken = time.perf_counter() - began
        assert done == expected, f"{done} of {expected} tasks were finished"
        return done / taken


@contextlib.asynccontextmanager
async def opened(url: str, worker: str = "bench") -> AsyncIterator[Loop]:
    """An engine on this store, which reaches the disk with every commit, and a worker that has joined."""
    await asyncio.to_thread(schema(url).upgrade)
    engine = create(url)
    await engine.open()
    try:
        loop = Loop(engine, worker)
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
