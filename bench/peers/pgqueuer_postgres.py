"""PgQueuer on PostgreSQL, with asyncpg and uvloop. All its tables are logged, and it fetches and completes by the 500.

`python -m bench.peers.pgqueuer_postgres` is its worker.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from typing import Any

from bench.peers import counter
from bench.peers.side import DURABLE, Loop, Side, url

BATCH = 1_000
FETCH = 500
CALLERS = 64
CONNECTIONS = 32

os.environ["PGQUEUER_DURABILITY"] = "durable"

asyncpg: Any = importlib.import_module("asyncpg")
pgqueuer: Any = importlib.import_module("pgqueuer")
drivers: Any = importlib.import_module("pgqueuer.db")
queries: Any = importlib.import_module("pgqueuer.queries")
uvloop: Any = importlib.import_module("uvloop")


class PgQueuer(Side):
    packages = ("pgqueuer", "asyncpg")

    def __init__(self) -> None:
        self._loop = Loop()
        self._pool: Any = None
        self._queries: Any = None

    def prepare(self) -> None:
        self._loop.run(self._open())

    def durability(self) -> str:
        return f"{self._loop.run(self._pool.fetchval(DURABLE))}; batches of {FETCH}"

    def single(self, n: int) -> None:
        self._loop.run(self._one_by_one(n))

    def bulk(self, n: int) -> None:
        self._loop.run(self._many(n))

    def concurrent(self, n: int) -> None:
        self._loop.run(self._callers(n))

    def late(self, sent: int) -> None:
        self._loop.run(self._queries.enqueue("late", str(sent).encode()))

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "bench.peers.pgqueuer_postgres"]] * processes

    def close(self) -> None:
        if self._pool is not None:
            self._loop.run(self._pool.close())
        self._loop.close()

    async def _open(self) -> None:
        self._pool = await asyncpg.create_pool(url(), min_size=1, max_size=CONNECTIONS)
        self._queries = queries.Queries(drivers.AsyncpgPoolDriver(self._pool))
        if await self._pool.fetchval("SELECT to_regclass('pgqueuer') IS NULL"):
            await self._queries.install()

    async def _one_by_one(self, n: int) -> None:
        for _ in range(n):
            await self._queries.enqueue("noop", None)

    async def _many(self, n: int) -> None:
        for start in range(0, n, BATCH):
            size = min(BATCH, n - start)
            await self._queries.enqueue(["noop"] * size, [None] * size, [0] * size)

    async def _callers(self, n: int) -> None:
        await asyncio.gather(*(self._one_by_one(n // CALLERS) for _ in range(CALLERS)))


async def _noop(_: Any) -> None:
    counter.hit()


async def _late(task: Any) -> None:
    counter.hit_late(int(task.payload))


async def work() -> None:
    queue = pgqueuer.PgQueuer(drivers.AsyncpgDriver(await asyncpg.connect(url())))
    queue.entrypoint("noop")(_noop)
    queue.entrypoint("late")(_late)
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, queue.shutdown.set)
    await queue.run(batch_size=FETCH)


SIDE = PgQueuer()

if __name__ == "__main__":
    uvloop.run(work())
