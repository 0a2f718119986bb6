"""Engines and plain connections on one store, so that a test can stand between two steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from taskmill.clock import Clock
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.postgres.target import parse

__all__ = ["SOON", "Stores", "stores_on", "waits_for_a_lock"]

SOON = 20.0
"""Seconds after which an answer never comes; nothing is judged by it."""


class Stores:
    """One store; each engine has a pool and caches of its own, as another process would have."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self._engines: list[PostgresEngine] = []
        self._connections: list[asyncpg.Connection] = []

    async def engine(self, **options: Any) -> PostgresEngine:
        engine = PostgresEngine(parse(self.url), **{"clock": self.clock, **options})
        await engine.open()
        self._engines.append(engine)
        return engine

    async def connect(self) -> asyncpg.Connection:
        connection: asyncpg.Connection = await asyncpg.connect(**parse(self.url).arguments())
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        for connection in self._connections:
            connection.terminate()
        for engine in self._engines:
            await engine.close()


@asynccontextmanager
async def stores_on(url: str, clock: Clock) -> AsyncIterator[Stores]:
    stores = Stores(url, clock)
    try:
        yield stores
    finally:
        await stores.close()


async def waits_for_a_lock(db: asyncpg.Connection) -> None:
    """Somebody waits for what this connection's transaction holds."""
    deadline = time.monotonic() + SOON
    while not await db.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"):
        assert time.monotonic() < deadline, "nobody waits"
        await asyncio.sleep(0.01)
