"""Procrastinate on PostgreSQL, with psycopg's compiled driver and uvloop. What has ended is deleted, which is its faster setting.

It fetches one at a time, so many run at once. `python -m bench.peers.procrastinate_postgres` is its worker.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from bench.peers import counter
from bench.peers.side import DURABLE, Loop, Side, url

BATCH = 1_000
CALLERS = 64
CONCURRENCY = 16
CONNECTIONS = 20

procrastinate: Any = importlib.import_module("procrastinate")
uvloop: Any = importlib.import_module("uvloop")
app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url(), min_size=1, max_size=CONNECTIONS))


async def _noop() -> None:
    counter.hit()


async def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = app.task(name="noop")(_noop)
late: Any = app.task(name="late")(_late)


class Procrastinate(Side):
    packages = ("procrastinate", "psycopg")

    def __init__(self) -> None:
        self._loop = Loop()

    def prepare(self) -> None:
        self._loop.run(self._open())

    def durability(self) -> str:
        row = self._loop.run(app.connector.execute_query_one_async(f"{DURABLE} AS words"))
        return f"{row['words']}; {CONCURRENCY} at once"

    def single(self, n: int) -> None:
        self._loop.run(self._one_by_one(n))

    def bulk(self, n: int) -> None:
        self._loop.run(self._many(n))

    def concurrent(self, n: int) -> None:
        self._loop.run(self._callers(n))

    def late(self, sent: int) -> None:
        self._loop.run(late.defer_async(sent=sent))

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "bench.peers.procrastinate_postgres"]] * processes

    def close(self) -> None:
        if self._loop.used:
            self._loop.run(app.close_async())
        self._loop.close()

    async def _open(self) -> None:
        await app.open_async()
        row = await app.connector.execute_query_one_async("SELECT to_regclass('procrastinate_jobs') IS NULL AS missing")
        if row["missing"]:
            await app.schema_manager.apply_schema_async()

    async def _one_by_one(self, n: int) -> None:
        for _ in range(n):
            await noop.defer_async()

    async def _many(self, n: int) -> None:
        for start in range(0, n, BATCH):
            await noop.batch_defer_async(*({} for _ in range(min(BATCH, n - start))))

    async def _callers(self, n: int) -> None:
        await asyncio.gather(*(self._one_by_one(n // CALLERS) for _ in range(CALLERS)))


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always")


SIDE = Procrastinate()

if __name__ == "__main__":
    uvloop.run(work())
