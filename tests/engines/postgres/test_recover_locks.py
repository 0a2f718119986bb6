"""Recovery beside others: it never waits for them, does nothing twice, passes over what a user's transaction holds, and leaves no lease behind."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Target
from taskmill.engines.postgres.sql import load
from taskmill.errors import Conflict
from taskmill.task import State
from tests.conformance.tools import LEASE, Worker, lose, new, outcome, pass_time, record, states, submit, submit_many, worker
from tests.engines.postgres.stores import SOON, Stores, waits_for_a_lock


async def silent_for_a_lease(engine: Engine, clock: ManualClock, *alive: Worker) -> None:
    """The next look finds every other worker dead."""
    await pass_time(engine, clock, 4, *alive)
    clock.advance(1)
    for each in alive:
        await each.beat()


async def recover(db: asyncpg.Connection, clock: ManualClock) -> asyncpg.Record:
    """A recoverer whose step lasts: it is over when its transaction is."""
    row = await db.fetchrow("SELECT * FROM taskmill.recover(500, $1, $2, $3)", LEASE, clock.now(), clock.monotonic())
    assert row is not None
    return row


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_two_recoverers_never_wait_and_do_nothing_twice(stores: Stores, clock: ManualClock, ends: str) -> None:
    engine, db = await stores.engine(), await stores.connect()
    dead = await worker(engine)
    ids = await submit_many(engine, 20)
    await dead.claim(20)
    await silent_for_a_lease(engine, clock)
    transaction = db.transaction()
    await transaction.start()
    first = await recover(db, clock)
    assert (first["moved"], first["lost"]) == (20, [dead.id])
    async with asyncio.timeout(SOON):
        second = await engine.recover_lost()
    assert (second.moved, second.lost) == (0, ())
    await getattr(transaction, ends)()
    third = await engine.recover_lost()
    assert third.lost == (() if ends == "commit" else (dead.id,))
    for task in [await record(engine, id) for id in ids]:
        assert (task.state, task.crashes) == (State.PENDING, 1)
        assert len(await engine.attempts(task.id)) == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_what_a_users_transaction_holds_is_passed_over(stores: Stores, clock: ManualClock, commits: bool) -> None:
    """The handler ends its task in its own transaction while its worker is taken for dead: whoever comes second sees what the first has done."""
    engine, user = await stores.engine(), await stores.engine()
    dead = await worker(engine)
    held, free = await submit_many(engine, 2)
    claimed = {task.id: task for task in await dead.claim(2)}
    await silent_for_a_lease(engine, clock)
    with contextlib.suppress(ZeroDivisionError):
        async with user.transaction() as tx:
            await user.finish([outcome(claimed[held])], tx=tx)
            async with asyncio.timeout(SOON):
                moved = await engine.recover_lost()
            assert (moved.moved, moved.lost) == (1, ())
            assert [(found.id, found.running) for found in await engine.workers()] == [(dead.id, 1)]
            if not commits:
                raise ZeroDivisionError
    moved = await engine.recover_lost()
    assert (moved.moved, moved.lost) == (0 if commits else 1, (dead.id,))
    task = await record(engine, held)
    assert (task.state, task.crashes) == ((State.COMPLETED, 0) if commits else (State.PENDING, 1))
    assert (await record(engine, free)).crashes == 1


async def test_an_expired_task_that_somebody_holds_is_looked_at_again(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    held, free = await submit(engine, *(new(expires_at=clock.now() + 1_000_000) for _ in range(2)))
    clock.advance(2)
    async with db.transaction():
        await db.fetch("SELECT 1 FROM taskmill.task WHERE id = $1::text::uuid FOR UPDATE", held)
        async with asyncio.timeout(SOON):
            await engine.recover_lost()
        assert await states(engine, [held, free]) == [State.PENDING, State.CANCELLED]
    clock.advance(2)
    await engine.recover_lost()
    assert await states(engine, [held]) == [State.CANCELLED]


async def claim(db: asyncpg.Connection, clock: ManualClock, worker: str) -> list[asyncpg.Record]:
    return await db.fetch("SELECT * FROM taskmill.claim($1, 1, '{default}', 10, NULL, 0, 1000000, $2)", worker, clock.now())


async def test_a_claim_under_way_when_its_worker_dies_leaves_no_lease_behind(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    dying = await worker(engine)
    ids = await submit_many(engine, 3)
    await silent_for_a_lease(engine, clock)
    async with db.transaction():
        await claim(db, clock, dying.id)
        async with asyncio.timeout(SOON):
            moved = await engine.recover_lost()
        assert (moved.moved, moved.lost) == (0, ())
    assert await states(engine, ids) == [State.RUNNING] * 3
    moved = await engine.recover_lost()
    assert (moved.moved, moved.lost) == (3, (dying.id,))
    assert await states(engine, ids) == [State.PENDING] * 3


async def test_a_claim_that_comes_while_its_worker_is_buried_gets_nothing(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    dying = await worker(engine)
    ids = await submit_many(engine, 3)
    await silent_for_a_lease(engine, clock)
    async with db.transaction():
        assert (await recover(db, clock))["lost"] == [dying.id]
        late = asyncio.ensure_future(dying.claim(3))
        await waits_for_a_lock(db)
    with pytest.raises(Conflict) as refused:
        async with asyncio.timeout(SOON):
            await late
    assert refused.value.code == "unknown_worker"
    assert await states(engine, ids) == [State.PENDING] * 3


async def test_a_beat_that_comes_while_its_worker_is_buried_says_so(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    dying = await worker(engine)
    await silent_for_a_lease(engine, clock)
    async with db.transaction():
        await recover(db, clock)
        late = asyncio.ensure_future(dying.beat())
        await waits_for_a_lock(db)
    async with asyncio.timeout(SOON):
        assert not (await late).known


async def test_a_worker_that_beats_in_time_is_not_judged_by_what_was_read_before(stores: Stores, clock: ManualClock) -> None:
    """The beat is on its way to its commit: recovery passes over it, and sees it the next time."""
    engine, db = await stores.engine(), await stores.connect()
    alive = await worker(engine)
    await silent_for_a_lease(engine, clock)
    async with db.transaction():
        await db.fetch("SELECT * FROM taskmill.heartbeat($1, 0, '{}', $2, $3)", alive.id, clock.now(), clock.monotonic())
        async with asyncio.timeout(SOON):
            assert (await engine.recover_lost()).lost == ()
    assert (await engine.recover_lost()).lost == ()
    assert (await alive.beat()).known


async def test_who_leaves_while_a_transaction_holds_one_of_its_tasks(stores: Stores, clock: ManualClock) -> None:
    """Its row stays, so that the lease is found if the transaction is rolled back."""
    engine, user = await stores.engine(), await stores.engine()
    one, two = await worker(engine), await worker(engine)
    held, free = await submit_many(engine, 2)
    claimed = {task.id: task for task in await one.claim(2)}
    with contextlib.suppress(ZeroDivisionError):
        async with user.transaction() as tx:
            await user.finish([outcome(claimed[held])], tx=tx)
            async with asyncio.timeout(SOON):
                await engine.leave(one.id)
            assert await states(engine, [held, free]) == [State.RUNNING, State.PENDING]
            raise ZeroDivisionError
    await lose(engine, clock, two)
    assert await states(engine, [held, free]) == [State.PENDING] * 2
    assert [found.id for found in await engine.workers()] == [two.id]


async def test_a_lease_that_a_beat_does_not_name_and_somebody_holds_is_given_back_later(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    one = await worker(engine)
    held, free = await submit_many(engine, 2)
    await one.claim(2)
    async with db.transaction():
        await db.fetch("SELECT 1 FROM taskmill.task WHERE id = $1::text::uuid FOR UPDATE", held)
        async with asyncio.timeout(SOON):
            assert (await engine.heartbeat(one.id, one.request, [])).known
        assert await states(engine, [held, free]) == [State.RUNNING, State.PENDING]
    await engine.heartbeat(one.id, one.request, [])
    assert await states(engine, [held, free]) == [State.PENDING] * 2


async def test_a_beat_and_a_renewal_wait_for_no_disk(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    one = await worker(engine)
    seen = []
    for statement, *args in (
        ("SELECT * FROM taskmill.heartbeat($1, 0, '{}', $2, $3)", one.id, clock.now(), clock.monotonic()),
        ("SELECT taskmill.lead_role('pruning', 'me', 4000000, $1, $2)", clock.now(), clock.monotonic()),
        ("SELECT taskmill.lead_role('pruning', 'me', 4000000, $1, $2)", clock.now(), clock.monotonic()),
    ):
        async with db.transaction():
            await db.fetch(statement, *args)
            seen.append(await db.fetchval("SHOW synchronous_commit"))
    assert seen == ["off", "on", "off"]


# What waits for the disk: numbers of outbox entries that a crash takes back would be given twice, and cut unread.


async def waits_for_the_disk(db: asyncpg.Connection, statement: str, *arguments: object) -> bool:
    """Whether the commit of a transaction with this step in it would."""
    async with db.transaction():
        await db.execute("SET LOCAL search_path TO taskmill")
        await db.fetch(statement, *arguments)
        return bool(await db.fetchval("SELECT current_setting('synchronous_commit') <> 'off'"))


BEAT = "SELECT * FROM heartbeat($1, $2, $3, $4, $5)"
CLAIM = "SELECT * FROM claim($1, $2, '{default}', 5, NULL, 0, 1000000, $3)"


async def test_a_beat_that_ends_something_is_on_the_disk(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    one = await worker(engine)
    [id] = await submit_many(engine, 1)
    [held] = await one.claim(1)
    times = (clock.now(), clock.monotonic())
    assert not await waits_for_the_disk(db, BEAT, one.id, one.request, [held.token], *times)
    await engine.cancel([Target(id)])
    assert await waits_for_the_disk(db, BEAT, one.id, one.request, [], *times)
    assert (await states(engine, [id])) == [State.CANCELLED]


async def test_a_claim_that_ends_something_is_on_the_disk(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    one = await worker(engine)
    assert not await waits_for_the_disk(db, CLAIM, one.id, 1, clock.now())
    [id] = await submit(engine, new(expires_at=clock.now() + 1))
    clock.advance(1)
    assert await waits_for_the_disk(db, CLAIM, one.id, 2, clock.now())
    assert (await states(engine, [id])) == [State.CANCELLED]


async def test_what_settles_is_on_the_disk(stores: Stores) -> None:
    await stores.engine()
    assert await waits_for_the_disk(await stores.connect(), load("store.sql", "taskmill").settle, None, True)
