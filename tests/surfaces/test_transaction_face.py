"""`tx=` with a connection of the user's own, as an app's users write it: awaited and blocking, with one event loop, several, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskmill import App
from taskmill.errors import InvalidInput, WrongStore
from tests.engines.postgres.ways import Django, way_of


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[App]:
    async with App(postgres_url) as app:

        @app.task
        def send(n: int) -> int:
            return n

        @app.task(timeout="7m", priority="high", queue="mail")
        def special(n: int) -> int:
            return n

        yield app


async def payloads(app: App) -> list[bytes]:
    return sorted(task.payload for task in (await app.engine.list()).tasks)


def send(app: App) -> Any:
    return app.types["send"]


# Awaited


async def test_an_awaited_connection(app: App, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        handle = await send(app).options(tx=connection).submit(1)
        many = await app.submit_many(send(app).options(tx=connection).call(n) for n in (2, 3))
        named = await app.submit("send", {"n": 4}, tx=connection)
        assert await payloads(app) == []
    await connection.close()
    assert await payloads(app) == [b'{"n":%d}' % n for n in (1, 2, 3, 4)]
    assert {await each.status() for each in (handle, *many, named)} == {"pending"}


async def test_a_session_that_is_rolled_back(app: App, postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        await send(app).options(tx=session).submit(1)
        await session.rollback()
        await send(app).options(tx=session).submit(2)
        await session.commit()
    assert await payloads(app) == [b'{"n":2}']


async def test_a_blocking_connection_in_a_coroutine(app: App, postgres_url: str) -> None:
    """It holds the loop for as long as its statement takes, as everything else on it does."""
    with psycopg.connect(postgres_url) as connection:
        await app.types["special"].options(tx=connection, queue="never-seen").submit(1)
    [task] = (await app.engine.list()).tasks
    assert (task.queue, task.payload) == ("never-seen", b'{"n":1}')


async def test_a_connection_of_another_loop(app: App, postgres_url: str) -> None:
    """The app was opened on this loop; the connection, and the one who submits, are on another."""

    async def elsewhere() -> str:
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            handle = await app.types["special"].options(tx=connection).submit(1)
            await app.submit_many([send(app).options(tx=connection).call(2)])
        await connection.close()
        return handle.id

    id = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert len(await payloads(app)) == 2
    assert await app.handle(id).status() == "pending"


async def test_the_stores_own_transaction_on_another_loop(app: App) -> None:
    async def elsewhere() -> None:
        async with app.transaction():
            pass

    with pytest.raises(InvalidInput) as caught:
        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert caught.value.code == "other_loop"


# Blocking


def by_psycopg(url: str, use: Callable[[Any], None]) -> None:
    with psycopg.connect(url) as connection:
        use(connection)


def by_session(url: str, use: Callable[[Any], None]) -> None:
    with Session(create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)) as session, session.begin():
        use(session)


def by_connection(url: str, use: Callable[[Any], None]) -> None:
    with create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool).begin() as connection:
        use(connection)


@pytest.mark.parametrize("by", [by_psycopg, by_session, by_connection])
@pytest.mark.parametrize("opened", [True, False])
async def test_a_blocking_connection(postgres_url: str, by: Any, opened: bool) -> None:
    """In a thread beside the app's loop, and in a program that has no loop at all."""

    def shop(app: App) -> list[str]:
        handles: list[str] = []

        def use(connection: Any) -> None:
            handles.append(task.options(tx=connection).sync.submit(1).id)
            handles.extend(each.id for each in app.sync.submit_many(task.options(tx=connection).call(n) for n in (2, 3)))
            handles.append(app.sync.submit("double", {"n": 4}, tx=connection).id)

        by(postgres_url, use)
        with pytest.raises(ZeroDivisionError):
            by(postgres_url, lambda connection: task.options(tx=connection).sync.submit(1 // int(bool(handles) is False)))
        return handles

    app = App(postgres_url)
    task: Any = app.task(name="double")(lambda n: n * 2)
    if opened:
        async with app:
            handles = await asyncio.to_thread(shop, app)
    else:
        handles = await asyncio.to_thread(shop, app)
        await asyncio.to_thread(app.sync.close)
    async with App(postgres_url) as other:
        assert len({task.id for task in (await other.engine.list()).tasks} & set(handles)) == 4


async def test_a_connection_of_django(app: App, postgres_url: str) -> None:
    async with way_of("Django", postgres_url) as way:
        assert isinstance(way, Django)
        await way.begin()
        await way.here(lambda: app.types["special"].options(tx=way.tx).sync.submit(1))
        await way.commit()
        await way.begin()
        await way.here(lambda: send(app).options(tx=way.tx).sync.submit(2))
        await way.rollback()
    assert await payloads(app) == [b'{"n":1}']


async def test_an_awaited_connection_is_not_for_threads(app: App, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        with pytest.raises(InvalidInput) as caught:
            await asyncio.to_thread(lambda: send(app).options(tx=connection).sync.submit(1))
        assert caught.value.code == "no_loop"
        await send(app).options(tx=connection).submit(2)
    await connection.close()
    assert await payloads(app) == [b'{"n":2}']


# What the store has not been told


async def test_a_type_that_the_store_does_not_know(app: App, postgres_url: str) -> None:
    """The store cannot be told in the user's transaction, so the task carries what its type declares."""
    with psycopg.connect(postgres_url) as connection:
        await app.types["special"].options(tx=connection).submit(1)
    [task] = (await app.engine.list()).tasks
    assert (task.queue, int(task.priority), task.timeout) == ("mail", 2, 7 * 60 * 1_000_000)


async def test_limits_that_the_store_does_not_know(app: App, postgres_url: str) -> None:
    app.task(name="limited", rate_limit="1/s")(lambda: None)
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(InvalidInput) as caught:
            await app.types["limited"].options(tx=connection).submit()
        assert (caught.value.code, caught.value.field) == ("unknown_type", "tx")
        connection.execute("SELECT 1")
    async with app.transaction() as tx:
        await app.types["limited"].options(tx=tx).submit()
    assert len(await payloads(app)) == 1


# Messages


async def test_messages_of_an_awaited_consumer(app: App, postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql", "postgresql+asyncpg", 1), poolclass=NullPool)
    told = []
    for _ in range(2):
        async with AsyncSession(engine) as session, session.begin():
            told.append(await app.inbox(session, "shop", "1"))
            await session.execute(text("SELECT 1"))
    async with app.transaction() as tx:
        told.append(await app.inbox(tx, "shop", "1"))
    assert told == [True, False, False]


async def test_messages_of_a_blocking_consumer(app: App, postgres_url: str) -> None:
    def consume() -> list[bool]:
        told = []
        for _ in range(2):
            with psycopg.connect(postgres_url) as connection:
                told.append(app.sync.inbox(connection, "shop", "1"))
        with app.sync.transaction() as tx:
            told.append(app.sync.inbox(tx, "shop", "1"))
        return told

    assert await asyncio.to_thread(consume) == [True, False, False]


async def test_sqlite_keeps_no_inbox(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path}/taskmill.db") as app, app.transaction() as tx:
        with pytest.raises(WrongStore) as caught:
            await app.inbox(tx, "shop", "1")
    assert (caught.value.code, "idempotency_key" in str(caught.value.hint)) == ("no_inbox", True)
