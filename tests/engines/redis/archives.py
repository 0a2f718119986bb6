"""A store on Redis with an archive in PostgreSQL, for tests: engines on it, a round of delivery, and what lies in the archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import psycopg

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Moved
from taskmill.engines import create, deliverers
from taskmill.maintenance.outbox import Outbox
from tests.conformance.tools_b import led

__all__ = ["Archived", "archived", "with_archive"]


def with_archive(redis_url: str, archive_url: str) -> str:
    return f"{redis_url}&archive={quote(archive_url, safe='')}"


class Archived:
    """One store and one archive."""

    def __init__(self, redis_url: str, archive_url: str, clock: ManualClock) -> None:
        self.hot_url = redis_url
        self.archive_url = archive_url
        self.url = with_archive(redis_url, archive_url)
        self.clock = clock
        self._opened: list[Engine] = []

    async def engine(self, url: str | None = None) -> Engine:
        engine = create(url or self.url, clock=self.clock)
        await engine.open()
        self._opened.append(engine)
        return engine

    async def hot(self) -> Engine:
        """The same store, seen by a program that knows of no archive."""
        return await self.engine(self.hot_url)

    async def delivered(self, engine: Engine, holder: str = "me") -> int:
        """Deliver and cut until nothing is left; how many entries that were."""
        outbox = Outbox(engine, holder, deliverers(engine))
        total = 0
        while delivered := await outbox.once():
            total += delivered
        await outbox.leader.resign()
        return total

    async def pruned(self, engine: Engine) -> Moved:
        return await engine.prune(200, await led(engine, "pruning"))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a person with psql sees in the archive."""
        with psycopg.connect(self.archive_url, options="-c search_path=taskmill_archive") as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    async def close(self) -> None:
        for engine in self._opened:
            await engine.close()


@asynccontextmanager
async def archived(redis_url: str, archive_url: str) -> AsyncIterator[Archived]:
    store = Archived(redis_url, archive_url, ManualClock())
    try:
        yield store
    finally:
        await store.close()
