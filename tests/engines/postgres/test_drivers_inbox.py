"""The inbox: of all transactions that deal with a message, one that commits is told that it is the first."""

from __future__ import annotations

import asyncio
from contextvars import Context

import pytest

from taskmill.clock import DAY, HOUR, SECOND, ManualClock
from taskmill.engine import DEFAULT_RETENTION, Retention
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.errors import Conflict, InvalidInput, StaleTerm
from tests.conformance.tools import submit_one, worker
from tests.engines.postgres.stores import SOON, Stores, waits_for_a_lock


async def first(engine: PostgresEngine, message: str, source: str = "shop") -> bool:
    async with engine.transaction() as tx:
        return await engine.inbox(tx, source, message)


async def test_the_first_and_the_second_time(stores: Stores) -> None:
    engine, other = await stores.engine(), await stores.engine()
    assert [await first(engine, "1"), await first(engine, "1"), await first(other, "1"), await first(other, "2")] == [True, False, False, True]
    assert await first(engine, "1", "bank")


async def test_a_message_that_was_not_dealt_with_comes_again(stores: Stores) -> None:
    engine = await stores.engine()

    async def fails() -> None:
        async with engine.transaction() as tx:
            assert await engine.inbox(tx, "shop", "1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert await first(engine, "1")


@pytest.mark.parametrize("commits", [True, False])
async def test_a_second_consumer_waits_for_the_first(stores: Stores, commits: bool) -> None:
    """It is told what became of it: dealt with, or its turn."""
    engine, db = await stores.engine(), await stores.connect()
    transaction = db.transaction()
    await transaction.start()
    assert await engine.inbox(db, "shop", "1")
    second = asyncio.create_task(first(engine, "1"))
    await waits_for_a_lock(db)
    assert await first(engine, "2")
    await (transaction.commit() if commits else transaction.rollback())
    assert await asyncio.wait_for(second, SOON) is not commits


async def test_many_consumers_of_one_message(stores: Stores) -> None:
    engines = [await stores.engine() for _ in range(3)]
    told = await asyncio.gather(*(first(engines[n % 3], "1") for n in range(12)))
    assert sorted(told) == [False] * 11 + [True]


async def test_two_that_wait_for_each_other_are_not_left_to_it(stores: Stores) -> None:
    """Messages in another order: one of them is told that its message is in flight, and its transaction is as it was."""
    engine = await stores.engine()
    met = asyncio.Barrier(2)

    async def consume(one: str, two: str) -> str:
        async with engine.transaction() as tx:
            assert await engine.inbox(tx, "shop", one)
            await met.wait()
            try:
                return str(await engine.inbox(tx, "shop", two))
            except Conflict as error:
                assert [row[0] for row in await tx.execute("SELECT 1")] == [1]
                return error.code

    async with asyncio.timeout(SOON):
        told = await asyncio.gather(consume("1", "2"), consume("2", "1"))
    assert sorted(told) == ["False", "key_in_flight"]


async def test_a_message_that_is_in_flight_for_too_long(stores: Stores) -> None:
    stores.url = f"{stores.url}{'&' if '?' in stores.url else '?'}busy_timeout=100ms"
    engine = await stores.engine()
    async with engine.transaction() as tx:
        assert await engine.inbox(tx, "shop", "1")
        with pytest.raises(Conflict) as caught:
            await asyncio.create_task(first(engine, "1"), context=Context())
    assert (caught.value.code, caught.value.field) == ("key_in_flight", "message_id")


@pytest.mark.parametrize(("source", "message"), [("", "1"), ("shop", ""), ("shop", "x" * 10_000), ("shop", "\0")])
async def test_a_name_that_no_one_can_keep(stores: Stores, source: str, message: str) -> None:
    engine = await stores.engine()
    with pytest.raises(InvalidInput):
        await first(engine, message, source)


# Forgotten


async def prune(engine: PostgresEngine, n: int = 1_000, retention: Retention = DEFAULT_RETENTION) -> int:
    term = await engine.lead("maintenance", "anna")
    assert term is not None
    return (await engine.prune(n, term, retention)).moved


async def test_messages_are_kept_for_their_time(stores: Stores, clock: ManualClock) -> None:
    engine = await stores.engine()
    assert await first(engine, "old")
    clock.advance(f"{DEFAULT_RETENTION.inbox // SECOND - 60}s")
    assert await first(engine, "young")
    assert (await prune(engine), await first(engine, "old")) == (0, False)
    clock.advance("2m")
    assert await prune(engine) == 1
    assert [await first(engine, "old"), await first(engine, "young")] == [True, False]


async def test_a_retention_of_its_own(stores: Stores, clock: ManualClock) -> None:
    engine = await stores.engine()
    assert await first(engine, "1")
    clock.advance("2h")
    assert await prune(engine, retention=Retention(inbox=HOUR)) == 1
    assert await first(engine, "1")


async def test_many_are_forgotten_in_pieces(stores: Stores, clock: ManualClock) -> None:
    engine = await stores.engine()
    async with engine.transaction() as tx:
        for n in range(25):
            assert await engine.inbox(tx, "shop", str(n))
    clock.advance(f"{DEFAULT_RETENTION.inbox // DAY + 1}d")
    term = await engine.lead("maintenance", "anna")
    assert term is not None
    pruned = [await engine.prune(10, term) for _ in range(3)]
    assert [(each.moved, each.more) for each in pruned] == [(10, True), (10, True), (5, False)]


async def test_ended_tasks_and_messages_share_the_bound(stores: Stores, clock: ManualClock) -> None:
    engine = await stores.engine()
    one = await worker(engine)
    for n in range(3):
        await submit_one(engine)
        await one.done(await one.claim_one())
        assert await first(engine, str(n))
    clock.advance("400d")
    moved = [await prune(engine, 4) for _ in range(10)]
    assert (sum(moved) >= 6, max(moved)) == (True, 4)
    assert await first(engine, "1")


async def test_a_deposed_leader_forgets_nothing(stores: Stores, clock: ManualClock) -> None:
    engine = await stores.engine()
    assert await first(engine, "1")
    old = await engine.lead("maintenance", "anna")
    assert old is not None
    clock.advance("400d")
    assert await engine.lead("maintenance", "ben") is not None
    with pytest.raises(StaleTerm):
        await engine.prune(10, old)
    assert not await first(engine, "1")
