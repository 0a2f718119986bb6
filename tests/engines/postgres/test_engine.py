"""Opening a store, its clock, and the user's transaction on asyncpg connections."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from taskmill.clock import HOUR, ManualClock, SystemClock
from taskmill.engine import Ending, Transaction
from taskmill.engines.postgres import ticking
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.postgres.target import parse
from taskmill.errors import AnswerLost, Conflict, StaleLease, StoreError, TaskmillError, WrongStore
from taskmill.task import State
from tests.conformance.tools import accepted, new, outcome, record, submit, submit_one, worker
from tests.engines.postgres.stores import Stores
from tests.engines.postgres.tools import opened

# Opening


async def refused(url: str) -> TaskmillError:
    engine = PostgresEngine(parse(url))
    with pytest.raises(WrongStore) as caught:
        await engine.open()
    assert str(parse(url)) in str(caught.value) or caught.value.code == "newer_schema"
    return caught.value


async def test_a_database_without_a_store_is_refused_and_left_alone(empty_url: str) -> None:
    error = await refused(empty_url)
    assert error.code == "no_store"
    assert "taskmill db upgrade" in str(error.hint)
    async with opened(empty_url) as pool:
        assert not await pool.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'taskmill'")


async def test_an_older_store_is_refused_with_the_remedy(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        await pool.fetch("DELETE FROM taskmill.migration WHERE number = (SELECT max(number) FROM taskmill.migration)")
    error = await refused(postgres_url)
    assert error.code == "older_schema"
    assert "taskmill db upgrade" in str(error.hint)


async def test_a_store_from_which_a_newer_program_took_something_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url) as pool:
        await pool.fetch("INSERT INTO taskmill.migration VALUES (9999, 'later', 'contract', '', 0)")
    assert (await refused(postgres_url)).code == "newer_schema"


async def test_a_store_to_which_a_newer_program_only_added_is_used(postgres_url: str, stores: Stores) -> None:
    async with opened(postgres_url) as pool:
        await pool.fetch("INSERT INTO taskmill.migration VALUES (9999, 'later', 'expand', '', 0)")
    await submit_one(await stores.engine())


async def test_migrate_makes_a_store_once(empty_url: str) -> None:
    engine = PostgresEngine(parse(empty_url))
    applied = await engine.migrate()
    assert applied[0] == "0001 tables"
    assert await engine.migrate() == ()
    await engine.open()
    try:
        assert await engine.get([await submit_one(engine)]) != (None,)
    finally:
        await engine.close()


async def test_a_verb_before_open_and_after_close_is_refused(stores: Stores) -> None:
    engine = await stores.engine()
    await engine.close()
    await engine.close()
    for each in (engine, PostgresEngine(parse(stores.url))):
        with pytest.raises(StoreError) as caught:
            await each.get(["x"])
        assert caught.value.code == "closed"


async def test_tokens_do_not_fall_behind_the_clock(stores: Stores, clock: ManualClock) -> None:
    """A store that was made anew never gives a token again that the one before has given."""
    first = await stores.engine()
    await submit_one(first)
    taken = (await (await worker(first)).claim_one()).token
    assert taken >= clock.now() - 1_577_836_800_000_000
    db = await stores.connect()
    await db.execute("ALTER SEQUENCE taskmill.token RESTART WITH 1")
    clock.advance("1h")
    await asyncio.gather(*(stores.engine() for _ in range(4)))
    await submit_one(first)
    assert (await (await worker(first)).claim_one()).token > taken


# The clock


async def test_the_clock_is_the_servers(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose clock is an hour ahead: whoever sleeps until one of its times must not sleep an hour too long."""
    monkeypatch.setattr(ticking, "_NOW", f"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {HOUR}")
    engine = await stores.engine(clock=None)
    assert HOUR // 2 < engine.clock.now() - SystemClock().now() < 2 * HOUR
    assert abs(engine.clock.monotonic() - SystemClock().monotonic()) < HOUR // 2


async def test_times_are_the_servers_own(stores: Stores) -> None:
    engine = await stores.engine(clock=None)
    db = await stores.connect()
    moment = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    before = await db.fetchval(moment)
    task = await record(engine, await submit_one(engine))
    assert before <= task.created_at <= await db.fetchval(moment)


# The user's transaction


async def table(stores: Stores) -> asyncpg.Connection:
    db = await stores.connect()
    await db.execute("CREATE TABLE purchase (number integer PRIMARY KEY, name text)")
    return db


async def test_statements_take_bindings(stores: Stores) -> None:
    db, engine = await table(stores), await stores.engine()
    async with engine.transaction() as tx:
        await tx.execute("INSERT INTO purchase VALUES ($1, $2)", (1, "one"))
        await tx.executemany("INSERT INTO purchase VALUES ($1, $2)", [(2, "two"), (3, "three")])
        assert [tuple(row) for row in await tx.execute("SELECT number FROM purchase WHERE name <> $1 ORDER BY 1", ["two"])] == [(1,), (3,)]
        assert await db.fetchval("SELECT count(*) FROM purchase") == 0
    assert await db.fetchval("SELECT count(*) FROM purchase") == 3


async def test_a_statement_that_ends_the_transaction_is_told(stores: Stores) -> None:
    engine = await stores.engine()
    task = new()

    async def end_it() -> None:
        async with engine.transaction() as tx:
            await submit(engine, task, tx=tx)
            await tx.execute("ROLLBACK")

    with pytest.raises(Conflict) as caught:
        await end_it()
    assert caught.value.code == "transaction_ended"
    assert await engine.get([task.id]) == (None,)


async def test_a_commit_behind_our_back_is_told(stores: Stores) -> None:
    engine = await stores.engine()

    async def end_it() -> None:
        async with engine.transaction() as tx:
            connection: Any = tx
            await connection.connection.execute("COMMIT")

    with pytest.raises(Conflict) as caught:
        await end_it()
    assert caught.value.code == "transaction_ended"


async def test_an_ended_transaction_takes_nothing_more(stores: Stores) -> None:
    engine = await stores.engine()
    async with engine.transaction() as tx:
        assert engine.in_transaction()
    assert not engine.in_transaction()
    for late in (engine.submit([new()], tx=tx), tx.execute("SELECT 1")):
        with pytest.raises(Conflict) as caught:
            await late
        assert caught.value.code == "transaction_ended"


async def test_a_step_without_the_transaction_it_stands_in_is_refused(stores: Stores) -> None:
    engine = await stores.engine()
    async with engine.transaction():
        with pytest.raises(Conflict) as caught:
            await engine.submit([new()])
        assert caught.value.code == "inside_transaction"
        assert await engine.get(["x"]) == (None,)


async def test_another_engines_transaction_is_refused(stores: Stores) -> None:
    engine, other = await stores.engine(), await stores.engine()
    async with engine.transaction() as tx:
        with pytest.raises(WrongStore) as caught:
            await other.submit([new()], tx=tx)
    assert caught.value.code == "foreign_connection"


async def test_what_is_no_transaction_is_refused(stores: Stores) -> None:
    engine = await stores.engine()
    something: Any = object()
    with pytest.raises(WrongStore) as caught:
        await engine.submit([new()], tx=something)
    assert caught.value.code == "foreign_connection"


async def test_a_connection_of_the_users_own(stores: Stores) -> None:
    db, engine = await table(stores), await stores.engine()
    connection: Any = db
    kept, undone, ended = new(1), new(2), new(3)
    async with db.transaction():
        await db.execute("INSERT INTO purchase VALUES (1)")
        assert accepted((await engine.submit([kept], tx=connection))[0]) == kept.id
        assert await engine.get([kept.id]) == (None,)
    transaction = db.transaction()
    await transaction.start()
    await engine.submit([undone], tx=connection)
    await transaction.rollback()
    assert (await record(engine, kept.id)).state is State.PENDING
    assert await engine.get([undone.id]) == (None,)
    with pytest.raises(Conflict) as caught:
        await engine.submit([ended], tx=connection)
    assert caught.value.code == "no_transaction"


async def test_an_end_on_a_connection_of_the_users_own(stores: Stores) -> None:
    db, engine = await table(stores), await stores.engine()
    connection: Any = db
    hand = await worker(engine)
    id = await submit_one(engine)
    claimed = await hand.claim_one()
    async with db.transaction():
        await engine.finish([outcome(claimed)], tx=connection)
        assert (await record(engine, id)).state is State.RUNNING
    assert (await record(engine, id)).state is State.COMPLETED
    stale = outcome(claimed, Ending.DEAD)

    async def again() -> None:
        async with db.transaction():
            await engine.finish([stale], tx=connection)

    with pytest.raises(StaleLease):
        await again()


async def test_a_pooled_connection_of_the_users_own(stores: Stores) -> None:
    engine = await stores.engine()
    task = new()
    async with asyncpg.create_pool(stores.url, min_size=1, max_size=1) as pool, pool.acquire() as db, db.transaction():
        proxy: Any = db
        await engine.submit([task], tx=proxy)
    assert (await record(engine, task.id)).state is State.PENDING


async def test_a_commit_that_breaks_off_is_neither_done_nor_failed(stores: Stores) -> None:
    """The backend dies in the COMMIT: whether it came through, the caller finds out by the task's id."""
    db, engine = await table(stores), await stores.engine()
    await db.execute("CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$")
    await db.execute("CREATE CONSTRAINT TRIGGER die AFTER INSERT ON purchase DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()")
    task = new()

    async def buy() -> None:
        async with engine.transaction() as tx:
            await submit(engine, task, tx=tx)
            await tx.execute("INSERT INTO purchase VALUES (1)")

    with pytest.raises(AnswerLost):
        await buy()
    assert await engine.get([task.id]) == (None,)


async def test_a_connection_that_breaks_before_the_commit_wrote_nothing(stores: Stores) -> None:
    db, engine = await stores.connect(), await stores.engine()
    task = new()

    async def broken(tx: Transaction) -> None:
        await submit(engine, task, tx=tx)
        await db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()")
        await tx.execute("SELECT 1")

    async def buy() -> None:
        async with engine.transaction() as tx:
            await broken(tx)

    with pytest.raises(StoreError) as caught:
        await buy()
    assert not isinstance(caught.value, AnswerLost)
    assert await engine.get([task.id]) == (None,)


async def test_an_engine_that_is_closed_takes_its_transactions_with_it(stores: Stores) -> None:
    engine, other = await stores.engine(), await stores.engine()
    task = new()

    async def closed_inside() -> None:
        async with engine.transaction() as tx:
            await submit(engine, task, tx=tx)
            await engine.close()

    with pytest.raises(StoreError) as caught:
        await closed_inside()
    assert caught.value.code == "closed"
    assert await other.get([task.id]) == (None,)
