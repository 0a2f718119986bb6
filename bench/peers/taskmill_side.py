"""Taskmill on the engine that the store's URL names, through its SDK and its own `taskmill worker`.

Variants: "def" and "async def" are the no-op's kind; "local" is a `def` at durability=local (synchronous=NORMAL on SQLite), as some peers always run.
"""

from __future__ import annotations

import asyncio
import time

from bench.peers import counter
from bench.peers.side import AS_SERVER, Loop, Side, program, url, variant
from taskmill import App
from taskmill.config import engine_kind
from taskmill.engine import Filter
from taskmill.engines import schema
from taskmill.task import LIVE

CALLERS = 64
QUEUE = "default"
PATIENCE = 60.0

ENGINE = engine_kind(url())
DURABILITY = {
    ("sqlite", False): "wal, synchronous=FULL",
    ("sqlite", True): "wal, synchronous=NORMAL",
    ("postgres", False): "synchronous_commit=on",
    ("postgres", True): "synchronous_commit=off",
    ("redis", False): AS_SERVER,
}

app = App(url() + ("?durability=local" if variant() == "local" else ""))


@app.task(name="noop.def")
def plain() -> None:
    counter.hit()


@app.task(name="noop.async")
async def asynchronous() -> None:
    counter.hit()


@app.task
def late(sent: int) -> None:
    counter.hit_late(sent)


noop = asynchronous if variant() == "async def" else plain


class Taskmill(Side):
    packages = ("taskmill",)

    def __init__(self) -> None:
        self._loop = Loop()

    def prepare(self) -> None:
        """In a database it is the owner's step; elsewhere a store is made when it is opened."""
        if ENGINE == "postgres":
            schema(url()).upgrade()

    def durability(self) -> str:
        return DURABILITY[ENGINE, variant() == "local"]

    def single(self, n: int) -> None:
        self._loop.run(self._one_by_one(n))

    def bulk(self, n: int) -> None:
        self._loop.run(self._many(n))

    def concurrent(self, n: int) -> None:
        self._loop.run(self._callers(n))

    def hold(self) -> None:
        self._loop.run(self._hold())

    def release(self, processes: int) -> None:
        self._loop.run(self._release(processes))

    def left(self) -> int:
        return int(self._loop.run(self._count()))

    def ended(self) -> int | None:
        """Of the newest thousand: those that were submitted last ended last, but for a batch or two."""
        wall = self._loop.run(self._last())
        return None if wall is None else wall * 1_000 - (time.time_ns() - time.monotonic_ns())

    def late(self, sent: int) -> None:
        self._loop.run(self._late(sent))

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("taskmill"), "worker", "bench.peers.taskmill_side:app", "--processes", str(processes)]]

    def close(self) -> None:
        if self._loop.used:
            self._loop.run(app.close())
        self._loop.close()

    async def _hold(self) -> None:
        await app.operations.pause_queue(QUEUE, reason="bench")

    async def _release(self, processes: int) -> None:
        await app.open()
        end = time.monotonic() + PATIENCE
        while sum(worker.alive for worker in await app.operations.workers()) < processes:
            assert time.monotonic() < end, "the worker's processes did not come up"
            await asyncio.sleep(0.01)
        await app.operations.resume_queue(QUEUE)

    async def _count(self) -> int:
        async with app:
            return await app.operations.count(Filter(states=LIVE))

    async def _last(self) -> int | None:
        async with app:
            page = await app.operations.list(n=1_000)
        return max((task.finished_at for task in page.tasks if task.finished_at is not None), default=None)

    async def _many(self, n: int) -> None:
        await app.submit_many(noop.call() for _ in range(n))

    async def _late(self, sent: int) -> None:
        await late.submit(sent)

    async def _one_by_one(self, n: int) -> None:
        for _ in range(n):
            await noop.submit()

    async def _callers(self, n: int) -> None:
        await asyncio.gather(*(self._one_by_one(n // CALLERS) for _ in range(CALLERS)))


SIDE = Taskmill()
