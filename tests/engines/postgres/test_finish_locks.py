"""finish beside others: what it waits for and what it holds meanwhile, and that whoever comes first is seen by whoever comes second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from taskmill.engine import Ending
from taskmill.engines.postgres import finish
from taskmill.engines.postgres.store import Store
from taskmill.task import ErrorInfo, State
from tests.engines.postgres.leases import blocked, lease, leases, opened_store, outcome

ROW = "SELECT 1 FROM taskmill.task WHERE id = $1 FOR UPDATE"
FREE = f"{ROW} SKIP LOCKED"
ENDINGS = [Ending.COMPLETED, Ending.RETRY, Ending.DEAD, Ending.SNOOZED, Ending.RELEASED]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    async with opened_store(postgres_url) as store:
        yield store


async def state_of(store: Store, task: str) -> int:
    found = "SELECT state FROM taskmill.task WHERE id = $1 UNION ALL SELECT state FROM taskmill.ended WHERE id = $1"
    state: int = await store.pool.fetchval(found, task)
    return state


# Locks


@pytest.mark.parametrize("high", [Ending.COMPLETED, Ending.RETRY])
@pytest.mark.parametrize("low", [Ending.COMPLETED, Ending.RETRY])
async def test_a_batch_that_waits_for_its_first_task_holds_no_other(store: Store, low: Ending, high: Ending) -> None:
    """Whatever their order and endings: so two batches never wait for each other in a circle."""
    first, last = await leases(store, 2)
    async with store.pool.transaction() as holder:
        await holder.fetch(ROW, first.task)
        finishing = asyncio.create_task(finish.finish(store, [outcome(last, high), outcome(first, low)]))
        await blocked(store)
        assert await holder.fetch(FREE, last.task)
    assert (await finishing).refused == ()


async def test_a_stale_lease_waits_for_nobody(store: Store) -> None:
    held = await lease(store)
    old = type(held)(held.task, held.token + 1_000)
    async with store.pool.transaction() as holder:
        await holder.fetch(ROW, held.task)
        for ending in (Ending.COMPLETED, Ending.RETRY):
            answer = await finish.finish(store, [outcome(old, ending)])
            assert [refused.code for refused in answer.refused] == ["stale_lease"]
    assert (await finish.finish(store, [outcome(held)])).refused == ()


async def test_batches_in_any_order_never_deadlock_and_one_of_each_is_applied(store: Store) -> None:
    held = await leases(store, 40, flags=8)
    chance = random.Random(5)

    async def one(n: int) -> int:
        batch = [outcome(task, chance.choice(ENDINGS)) for task in chance.sample(held, len(held))]
        async with store.pool.transaction() as connection:  # raises what the server says, and repeats nothing
            refused = (await finish.finish(store, batch, db=connection)).refused
        return len(refused)

    await asyncio.gather(*(one(n) for n in range(12)))
    versions = await store.pool.fetch("SELECT version FROM taskmill.task UNION ALL SELECT version FROM taskmill.ended")
    assert [version for [version] in versions] == [3] * 40


async def test_in_a_users_transaction_no_row_of_a_queue_is_held(store: Store) -> None:
    held = await lease(store)
    await store.pool.fetch("UPDATE taskmill.queue SET idle = true")
    async with store.pool.transaction() as tx, store.pool.transaction() as other:
        assert (await finish.finish(store, [outcome(held, Ending.RETRY)], db=tx)).refused == ()
        assert await other.fetch("SELECT 1 FROM taskmill.queue FOR UPDATE SKIP LOCKED")


# Races


async def test_a_cancel_that_was_first_is_seen(store: Store) -> None:
    going_on, done = await leases(store, 2)
    async with store.pool.transaction() as holder:
        await holder.fetch("UPDATE taskmill.task SET flags = flags | 2, version = version + 1")
        finishing = asyncio.create_task(finish.finish(store, [outcome(going_on, Ending.RETRY), outcome(done)]))
        await blocked(store)
    answer = await finishing
    assert (answer.refused, dict(answer.instead)) == ((), {going_on.task: State.CANCELLED})
    assert (await state_of(store, going_on.task), await state_of(store, done.task)) == (7, 5)


async def test_a_task_that_was_taken_away_first_is_not_ended(store: Store) -> None:
    held = await lease(store)
    async with store.pool.transaction() as holder:
        await holder.fetch("UPDATE taskmill.task SET state = 0, token = NULL, worker = NULL, request = NULL")
        finishing = asyncio.create_task(finish.finish(store, [outcome(held)]))
        await blocked(store)
    assert [refused.code for refused in (await finishing).refused] == ["stale_lease"]
    assert await state_of(store, held.task) == 0


async def wait_for(store: Store, child: str, *, flagged: bool) -> str:
    """Another task that waits for this one, as settle finds it: the child is told already, or its edge lies in the inbox."""
    parent = (await lease(store)).task
    await store.pool.fetch("UPDATE taskmill.task SET state = 4, open_edges = 1, flags = 16, ready_at = 1::bigint << 62 WHERE id = $1", parent)
    number = await store.pool.fetchval("INSERT INTO taskmill.edge (parent, child, on_failure) VALUES ($1, $2, 0) RETURNING number", parent, child)
    if not flagged:
        await store.pool.fetch("INSERT INTO taskmill.late_edge VALUES ($1)", number)
    return parent


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.DEAD])
async def test_an_edge_that_comes_while_its_task_ends_falls(store: Store, ending: Ending) -> None:
    """The edge is hooked first, by a step that has not committed: the end waits for it and sees it."""
    held = await lease(store)
    parent = await wait_for(store, held.task, flagged=True)
    async with store.pool.transaction() as holder:
        await holder.fetch("UPDATE taskmill.task SET flags = flags | 32 WHERE id = $1", held.task)
        finishing = asyncio.create_task(finish.finish(store, [outcome(held, ending)]))
        await blocked(store)
    await finishing
    assert await state_of(store, parent) == (0 if ending is Ending.COMPLETED else 7)


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.DEAD])
async def test_an_edge_onto_a_task_that_is_just_ending_falls_after_it(store: Store, ending: Ending) -> None:
    """The end is first, in a user's transaction: the edge is left in the inbox until that has committed."""
    held = await lease(store)
    parent = await wait_for(store, held.task, flagged=False)
    async with store.pool.transaction() as tx:
        assert (await finish.finish(store, [outcome(held, ending)], db=tx)).refused == ()
        await store.settle()
        assert await state_of(store, parent) == 4
    await store.settle()
    assert await state_of(store, parent) == (0 if ending is Ending.COMPLETED else 7)


async def test_a_signal_that_comes_while_the_wait_begins_is_not_missed(store: Store) -> None:
    held = await lease(store)
    async with store.pool.transaction() as holder:
        await holder.fetch("SELECT * FROM taskmill.signal($1, 'go', '1', 'signal-1', NULL)", held.task)
        finishing = asyncio.create_task(finish.finish(store, [outcome(held, Ending.WAITING, signals=("go",))]))
        await blocked(store)
    await finishing
    assert await state_of(store, held.task) == 0


async def test_a_signal_that_waits_for_the_beginning_of_the_wait_ends_it(store: Store) -> None:
    held = await lease(store)
    async with store.pool.transaction() as tx:
        await finish.finish(store, [outcome(held, Ending.WAITING, signals=("go",))], db=tx)
        sending = asyncio.create_task(finish.signal(store, held.task, "go", b"1", "signal-1"))
        await blocked(store)
    assert await sending == 1
    assert await state_of(store, held.task) == 0


# What PostgreSQL would refuse


async def test_a_result_that_is_no_json_stands_alone(store: Store) -> None:
    held = await leases(store, 6)
    results = [b"1", b"{no", b"null", b"\xff", b'"a\x00b"', b"[2]"]
    batch = [outcome(each, result=result) for each, result in zip(held, results, strict=True)]
    answer = await finish.finish(store, batch)
    assert [(refused.task, refused.code) for refused in answer.refused] == [(held[n].task, "refused") for n in (1, 3, 4)]
    assert [await state_of(store, each.task) for each in held] == [5, 3, 5, 3, 3, 5]
    assert (await finish.finish(store, [outcome(each) for each in held])).refused == ()


@pytest.mark.parametrize("ending", [Ending.DEAD, Ending.RETRY, Ending.CRASHED])
async def test_an_error_that_holds_a_zero_is_kept(store: Store, ending: Ending) -> None:
    held = await lease(store)
    assert (await finish.finish(store, [outcome(held, ending, error=ErrorInfo("value_error", "a\0b"))])).refused == ()
    found = "SELECT error ->> 'message' FROM taskmill.ended UNION ALL SELECT error ->> 'message' FROM taskmill.task_attempts"
    assert await store.pool.fetchval(found) == "a\ufffdb"
