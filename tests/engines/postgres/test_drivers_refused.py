"""Connections that cannot take a task with them are refused, with a remedy, and left as they were."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.errors import Conflict, InvalidInput, TaskmillError, WrongStore
from taskmill.sync import run_here
from tests.conformance.tools import new, record, submit_one, worker
from tests.engines.postgres.stores import Stores
from tests.engines.postgres.ways import WAYS, Way, way_of


async def refused(engine: PostgresEngine, way: Way, kind: type[TaskmillError]) -> TaskmillError:
    with pytest.raises(kind) as caught:
        await way.ask(lambda tx: engine.submit([new()], tx=tx))
    assert (type(caught.value), caught.value.field) == (kind, "tx")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", WAYS)
async def test_a_connection_to_another_database(stores: Stores, empty_url: str, name: str) -> None:
    """Also one in which there is a store of its own; the user's transaction goes on."""
    engine = await stores.engine()
    async with way_of(name, empty_url) as way:
        await way.begin()
        await way.execute("CREATE TABLE purchase (number integer)")
        error = await refused(engine, way, WrongStore)
        assert (error.code, "this connection is of the database" in error.message) == ("foreign_connection", True)
        await way.execute("INSERT INTO purchase VALUES (1)")
        await way.commit()
    db = await asyncpg.connect(empty_url)
    assert await db.fetchval("SELECT number FROM purchase") == 1
    await db.close()


async def test_a_store_that_was_made_anew_under_the_same_name(stores: Stores) -> None:
    engine, db = await stores.engine(), await stores.connect()
    await db.execute("UPDATE taskmill.store SET created_at = created_at + 1")
    connection: Any = db
    async with db.transaction():
        with pytest.raises(WrongStore) as caught:
            await engine.submit([new()], tx=connection)
    assert caught.value.code == "foreign_connection"


@pytest.mark.parametrize("name", WAYS)
async def test_a_connection_that_commits_by_itself(stores: Stores, name: str) -> None:
    engine = await stores.engine()
    async with way_of(name, stores.url, autocommit=True) as way:
        error = await refused(engine, way, Conflict)
    assert error.code == "no_transaction"


@pytest.mark.parametrize("name", ["psycopg", "async psycopg"])
async def test_a_connection_that_commits_by_itself_has_transactions_too(stores: Stores, name: str) -> None:
    engine, task = await stores.engine(), new()
    async with way_of(name, stores.url, autocommit=True) as way:
        await way.execute("BEGIN")
        await way.ask(lambda tx: engine.submit([task], tx=tx))
        await way.execute("COMMIT")
    await record(engine, task.id)


@pytest.mark.parametrize("name", WAYS)
async def test_a_transaction_in_which_a_statement_has_failed(stores: Stores, name: str) -> None:
    """And it can be used again when it was rolled back."""
    engine, task = await stores.engine(), new()
    async with way_of(name, stores.url) as way:
        await way.begin()
        await way.ask(lambda tx: engine.submit([new()], tx=tx))
        with pytest.raises(Exception, match="division by zero"):
            await way.execute("SELECT 1 / 0")
        error = await refused(engine, way, Conflict)
        assert (error.code, error.message) == ("no_transaction", "a statement of the transaction has failed")
        assert "roll it back" in str(error.hint)
        await way.rollback()
        await way.begin()
        await way.ask(lambda tx: engine.submit([task], tx=tx))
        await way.commit()
    assert [each.id for each in await (await worker(engine)).claim(10)] == [task.id]


class Base(DeclarativeBase):
    pass


class Purchase(Base):
    __tablename__ = "purchase"
    number: Mapped[int] = mapped_column(primary_key=True)


async def test_a_session_whose_flush_has_failed(stores: Stores) -> None:
    engine, db = await stores.engine(), create_engine(stores.url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)
    Base.metadata.create_all(db)
    with Session(db) as session, session.begin():
        session.add(Purchase(number=1))
    with Session(db) as session:
        session.add(Purchase(number=1))
        with pytest.raises(IntegrityError):
            session.flush()
        connection: Any = session
        with pytest.raises(Conflict) as caught:
            run_here("submit", engine.submit([new()], tx=connection))
        assert caught.value.code == "no_transaction"
    Base.metadata.drop_all(db)


async def test_closed_connections(stores: Stores) -> None:
    engine = await stores.engine()
    one, two = await stores.connect(), psycopg.connect(stores.url)
    await one.close()
    two.close()
    for closed in (one, two):
        gone: Any = closed
        with pytest.raises(Conflict) as caught:
            await engine.submit([new()], tx=gone)
        assert caught.value.code == "no_transaction"


async def test_what_only_makes_connections(stores: Stores) -> None:
    engine = await stores.engine()
    db = create_engine(stores.url.replace("postgresql", "postgresql+psycopg", 1))
    async with asyncpg.create_pool(stores.url, min_size=0) as pool:
        for other in (db, pool, psycopg.connect, stores.url, None.__class__):
            maker: Any = other
            with pytest.raises(WrongStore) as caught:
                await engine.submit([new()], tx=maker)
            assert (caught.value.code, caught.value.field) == ("foreign_connection", "tx")


async def test_another_kind_of_database(stores: Stores) -> None:
    engine, lite = await stores.engine(), create_engine("sqlite://")
    with lite.connect() as connection:
        other: Any = connection
        with pytest.raises(WrongStore) as caught:
            await engine.submit([new()], tx=other)
    lite.dispose()
    assert (caught.value.code, "sqlite" in str(caught.value.hint)) == ("foreign_connection", True)


@pytest.mark.parametrize("name", ["asyncpg", "async psycopg", "AsyncSession on asyncpg"])
async def test_an_awaited_connection_on_a_thread_without_a_loop(stores: Stores, name: str) -> None:
    """Refused before anything is said on the connection, which is in use elsewhere."""
    engine, task = await stores.engine(), new()
    async with way_of(name, stores.url) as way:
        await way.begin()
        await way.execute("SELECT 1")
        with pytest.raises(InvalidInput) as caught:
            await asyncio.to_thread(lambda: run_here("submit", engine.submit([new()], tx=way.tx)))
        assert caught.value.code == "no_loop"
        await way.ask(lambda tx: engine.submit([task], tx=tx))
        await way.commit()
    await record(engine, task.id)


async def test_the_engines_own_transaction_on_another_loop(stores: Stores) -> None:
    engine = await stores.engine()
    async with engine.transaction() as tx:
        with pytest.raises(InvalidInput) as caught:
            await asyncio.to_thread(lambda: asyncio.run(engine.submit([new()], tx=tx)))
        assert caught.value.code == "other_loop"

    async def begin() -> None:
        async with engine.transaction():
            pass

    with pytest.raises(InvalidInput):
        await asyncio.to_thread(lambda: asyncio.run(begin()))
    await submit_one(engine)
