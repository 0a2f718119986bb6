"""The ways on which a user's own connection comes to us: a driver each, with one face for the tests.

Those that block live on a thread of their own, without an event loop, as in a program that has none; there a verb of the engine is run to its end by itself.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import django
import django.conf
import psycopg
from django.db import connections, transaction
from django.db.utils import load_backend
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskmill.engines.postgres.target import parse
from taskmill.sync import run_here

__all__ = ["ANNOUNCING", "WAYS", "Way", "way_of"]

T = TypeVar("T")


class Way:
    """One connection of a driver; `tx` is what its user hands to us."""

    tx: Any

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        self.url = url
        self.autocommit = autocommit

    async def connect(self) -> None: ...

    async def begin(self) -> None:
        """Nothing, where a transaction begins by itself."""

    async def execute(self, statement: str) -> None:
        raise NotImplementedError

    async def nested(self, do: Callable[[], Awaitable[None]]) -> None:
        """Whatever is done in a nested transaction, which is then rolled back."""
        raise NotImplementedError

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    async def ask(self, verb: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """A verb of ours with this connection as its `tx`."""
        return await verb(self.tx)

    async def close(self) -> None:
        await self.tx.close()


class Asyncpg(Way):
    async def connect(self) -> None:
        self.tx = await asyncpg.connect(**parse(self.url).arguments())

    async def begin(self) -> None:
        self.transaction = self.tx.transaction()
        await self.transaction.start()

    async def execute(self, statement: str) -> None:
        await self.tx.execute(statement)

    async def nested(self, do: Callable[[], Awaitable[None]]) -> None:
        nested = self.tx.transaction()
        await nested.start()
        await do()
        await nested.rollback()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


class Psycopg(Way):
    async def connect(self) -> None:
        self.tx = await psycopg.AsyncConnection.connect(self.url, autocommit=self.autocommit)

    async def execute(self, statement: str) -> None:
        await self.tx.execute(statement)

    async def nested(self, do: Callable[[], Awaitable[None]]) -> None:
        async with self.tx.transaction():
            await do()
            raise psycopg.Rollback


class Alchemy(Way):
    """AsyncSession or AsyncConnection."""

    driver = "asyncpg"
    of = AsyncSession

    async def connect(self) -> None:
        level = {"isolation_level": "AUTOCOMMIT"} if self.autocommit else {}
        self.engine = create_async_engine(make_url(self.url).set(drivername=f"postgresql+{self.driver}"), poolclass=NullPool, **level)
        self.tx = AsyncSession(self.engine) if self.of is AsyncSession else await self.engine.connect()

    async def execute(self, statement: str) -> None:
        await self.tx.execute(text(statement))

    async def nested(self, do: Callable[[], Awaitable[None]]) -> None:
        async with self.tx.begin_nested() as nested:
            await do()
            await nested.rollback()

    async def close(self) -> None:
        await self.tx.close()
        await self.engine.dispose()


class AlchemyConnection(Alchemy):
    of: Any = AsyncConnection


class AlchemyPsycopg(Alchemy):
    driver = "psycopg"


class AlchemyConnectionPsycopg(AlchemyConnection):
    driver = "psycopg"


class Blocking(Way):
    """All of it on one thread."""

    async def here(self, do: Callable[[], T]) -> T:
        return await get_running_loop().run_in_executor(self.thread, do)

    async def connect(self) -> None:
        self.thread = ThreadPoolExecutor(1, "way")
        await self.here(self.open)

    def open(self) -> None:
        self.tx = psycopg.connect(self.url, autocommit=self.autocommit)

    def run(self, statement: str) -> None:
        self.tx.execute(statement)

    def start_nested(self) -> Callable[[], None]:
        """What it answers rolls it back."""
        nested = self.tx.transaction()
        nested.__enter__()
        return lambda: nested.__exit__(psycopg.Rollback, psycopg.Rollback(), None)

    async def execute(self, statement: str) -> None:
        await self.here(lambda: self.run(statement))

    async def nested(self, do: Callable[[], Awaitable[None]]) -> None:
        undo = await self.here(self.start_nested)
        await do()
        await self.here(undo)

    async def commit(self) -> None:
        await self.here(self.tx.commit)

    async def rollback(self) -> None:
        await self.here(self.tx.rollback)

    async def ask(self, verb: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        return await self.here(lambda: run_here("this", verb(self.tx)))

    async def close(self) -> None:
        await self.here(self.leave)
        self.thread.shutdown()

    def leave(self) -> None:
        self.tx.close()


class BlockingAlchemy(Blocking):
    """Session or Connection."""

    of: Any = Session

    def open(self) -> None:
        level = {"isolation_level": "AUTOCOMMIT"} if self.autocommit else {}
        self.engine = create_engine(make_url(self.url).set(drivername="postgresql+psycopg"), poolclass=NullPool, **level)
        self.tx = Session(self.engine) if self.of is Session else self.engine.connect()

    def run(self, statement: str) -> None:
        self.tx.execute(text(statement))

    def start_nested(self) -> Callable[[], None]:
        undo: Callable[[], None] = self.tx.begin_nested().rollback
        return undo

    def leave(self) -> None:
        self.tx.close()
        self.engine.dispose()


class BlockingAlchemyConnection(BlockingAlchemy):
    of: Any = None


class Django(Blocking):
    """`transaction.atomic()` over a connection of its own name."""

    def open(self) -> None:
        if not django.conf.settings.configured:
            django.conf.settings.configure(USE_TZ=True)
            django.setup()
        target = parse(self.url).arguments()
        [named] = {(str(host), str(port)) for host, port in zip(target["host"], target["port"], strict=True)}
        given = {"ENGINE": "django.db.backends.postgresql", "NAME": target["database"], "USER": target["user"], "HOST": named[0], "PORT": named[1]}
        given["PASSWORD"] = target.get("password") or ""
        filled = connections.configure_settings({"default": {}, "shop": given})["shop"]
        self.tx = load_backend(filled["ENGINE"]).DatabaseWrapper(filled, "shop")
        connections["shop"] = self.tx
        self.tx.ensure_connection()

    async def begin(self) -> None:
        def enter() -> None:
            self.block = transaction.atomic(using="shop")
            self.block.__enter__()

        await self.here(enter)

    def run(self, statement: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(statement)

    def start_nested(self) -> Callable[[], None]:
        nested = transaction.atomic(using="shop")
        nested.__enter__()
        return lambda: nested.__exit__(ValueError, ValueError(), None)

    async def commit(self) -> None:
        await self.here(lambda: self.block.__exit__(None, None, None))

    async def rollback(self) -> None:
        await self.here(lambda: self.block.__exit__(ValueError, ValueError(), None))


WAYS: dict[str, type[Way]] = {
    "asyncpg": Asyncpg,
    "psycopg": Blocking,
    "async psycopg": Psycopg,
    "Session": BlockingAlchemy,
    "Connection": BlockingAlchemyConnection,
    "AsyncSession on asyncpg": Alchemy,
    "AsyncConnection on asyncpg": AlchemyConnection,
    "AsyncSession on psycopg": AlchemyPsycopg,
    "AsyncConnection on psycopg": AlchemyConnectionPsycopg,
    "Django": Django,
}
ANNOUNCING = ("Session", "AsyncSession on asyncpg", "AsyncSession on psycopg", "Django")
"""Those whose driver says that a transaction has committed."""


@asynccontextmanager
async def way_of(name: str, url: str, *, autocommit: bool = False) -> AsyncIterator[Way]:
    way = WAYS[name](url, autocommit=autocommit)
    await way.connect()
    try:
        yield way
    finally:
        await way.close()
