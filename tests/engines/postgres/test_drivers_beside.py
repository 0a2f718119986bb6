"""A user's transaction beside everybody else: however long it is open, others go on; when it has committed, those who wait for work are told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context

import asyncpg
import pytest

from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.postgres.target import parse
from taskmill.errors import StoreError
from taskmill.task import Edge, State
from tests.conformance.tools import Worker, ids_of, new, outcome, record, submit_one, worker
from tests.engines.postgres.stores import SOON, Stores
from tests.engines.postgres.ways import ANNOUNCING, WAYS, way_of


@asynccontextmanager
async def not_for_ever() -> AsyncIterator[None]:
    async with asyncio.timeout(SOON):
        yield


# Open for long


@pytest.mark.parametrize("name", WAYS)
async def test_others_go_on_beside_an_open_transaction(stores: Stores, name: str) -> None:
    """In the same queues and lanes, also those that it was the first to name."""
    engine, other = await stores.engine(), await stores.engine()
    await engine.put("limit", "user", b'{"cap": 1}')
    async with way_of(name, stores.url) as way:
        await way.begin()
        mine = [new(), new(queue="first"), new(queue="first", limits=("user:1",), order_key="one"), new(idempotency_key="mine")]
        await way.ask(lambda tx: engine.submit(mine, tx=tx))
        async with not_for_ever():
            one = await worker(other, queues=["default", "first"])
            theirs = [
                await submit_one(other),
                await submit_one(other, queue="first"),
                await submit_one(other, queue="first", limits=("user:1",), order_key="one"),
            ]
            held = await one.claim(10)
            assert sorted(ids_of(held)) == sorted(theirs)
            assert (await one.beat()).lost == ()
            for each in held:
                await one.done(each)
            await other.recover_lost()
            await other.cancel([])
        await way.commit()
    assert sorted(ids_of(await one.claim(10))) == sorted(task.id for task in mine)


async def test_others_go_on_beside_the_engines_own_transactions(stores: Stores) -> None:
    """More of them than the pool holds: each waits for its turn, and steps of the same engine go on meanwhile."""
    url = f"{stores.url}{'&' if '?' in stores.url else '?'}pool=4"
    async with opened(url) as engine:
        leave, begun = asyncio.Event(), asyncio.Semaphore(0)

        async def hold(number: int) -> None:
            async with engine.transaction() as tx:
                begun.release()
                await leave.wait()
                await engine.submit([new(number)], tx=tx)

        holding = [asyncio.create_task(hold(number)) for number in range(6)]
        async with not_for_ever():
            await begun.acquire()
            await begun.acquire()
            one = await worker(engine)
            id = await submit_one(engine, "beside")
            await one.done(await one.claim_one())
            assert (await record(engine, id)).state is State.COMPLETED
            leave.set()
            await asyncio.gather(*holding)
        assert len(await one.claim(10)) == 6


async def test_who_waits_too_long_for_a_transaction_is_told(stores: Stores) -> None:
    url = f"{stores.url}{'&' if '?' in stores.url else '?'}pool=1&busy_timeout=100ms"
    async with opened(url) as engine, engine.transaction():
        with pytest.raises(StoreError) as caught:
            await asyncio.create_task(begin(engine), context=Context())
    assert (caught.value.code, "?pool=" in str(caught.value.hint)) == ("pool_busy", True)


async def begin(engine: PostgresEngine) -> None:
    async with engine.transaction():
        pass


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(parse(url))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


# Announced


class Listener:
    """Hears what is said to idle workers."""

    def __init__(self, db: asyncpg.Connection) -> None:
        self.db = db
        self.heard = 0
        self.news = asyncio.Event()

    def hear(self, *said: object) -> None:
        if said[-1] == "work":
            self.heard += 1
            self.news.set()

    async def so_far(self) -> int:
        """The server says what was committed before it answers a statement."""
        await self.db.execute("SELECT 1")
        return self.heard

    async def next(self) -> None:
        async with not_for_ever():
            await self.news.wait()


async def idle(stores: Stores) -> tuple[Worker, Listener]:
    """A worker that has found nothing in its queue, and one who hears when it is told."""
    db = await stores.connect()
    listener = Listener(db)
    one = await worker(await stores.engine(), queues=["mail"])
    await submit_one(one.engine, queue="mail")
    await one.done(await one.claim_one())
    assert await one.claim(10) == []
    await db.add_listener("taskmill", listener.hear)
    return one, listener


@pytest.mark.parametrize("name", ANNOUNCING)
async def test_an_idle_worker_is_told_of_a_commit(stores: Stores, name: str) -> None:
    engine = await stores.engine()
    one, listener = await idle(stores)
    async with way_of(name, stores.url) as way:
        await way.begin()
        await way.ask(lambda tx: engine.submit([new(queue="mail")], tx=tx))
        assert await listener.so_far() == 0
        await way.commit()
        await listener.next()
    assert len(await one.claim(10)) == 1


@pytest.mark.parametrize("name", ANNOUNCING)
async def test_nobody_is_told_of_what_was_rolled_back(stores: Stores, name: str) -> None:
    """Neither by the rollback nor by the commit of a savepoint: the hint of a nested block waits for the outer one."""
    engine = await stores.engine()
    one, listener = await idle(stores)
    async with way_of(name, stores.url) as way:

        async def inside() -> None:
            await way.ask(lambda tx: engine.submit([new(queue="mail")], tx=tx))

        await way.begin()
        await way.nested(inside)
        await inside()
        await way.rollback()
        await submit_one(engine, queue="other")
        assert await listener.so_far() == 0
    assert await one.claim(10) == []


async def test_an_idle_worker_is_told_of_the_engines_own_commit(stores: Stores) -> None:
    engine = await stores.engine()
    one, listener = await idle(stores)
    async with engine.transaction() as tx:
        await engine.submit([new(queue="mail")], tx=tx)
        assert await listener.so_far() == 0
    await listener.next()
    assert len(await one.claim(10)) == 1


@pytest.mark.parametrize("name", ANNOUNCING)
async def test_edges_that_a_commit_let_fall_are_followed(stores: Stores, name: str) -> None:
    """Nobody else is there who would do it."""
    engine = await stores.engine()
    one = await worker(engine)
    child = await submit_one(engine)
    parent = await submit_one(engine, edges=(Edge(child),))
    claimed = await one.claim_one()
    async with way_of(name, stores.url) as way:
        await way.begin()
        await way.ask(lambda tx: engine.finish([outcome(claimed)], tx=tx))
        await way.commit()
    async with not_for_ever():
        while (await record(engine, parent)).state is not State.PENDING:
            pass
