"""The user's own transaction: what is submitted or finished in it exists if and only if it commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context

import pytest

from taskmill.engine import Ending, Engine, Status, Transaction
from taskmill.errors import StaleLease
from taskmill.task import Edge, State, Unique
from tests.conformance.tools import (
    Store,
    accepted,
    all_tasks,
    encode,
    execute,
    ids_of,
    needs,
    new,
    outcome,
    record,
    refusal,
    state,
    submit,
    submit_many,
    submit_one,
    worker,
)


class Undone(Exception):
    """The user's own reason to roll back."""


@pytest.fixture(autouse=True)
async def _user_table(engine: Engine) -> None:
    """A table of the user's own beside ours."""
    needs(engine, "user_transactions")
    async with engine.transaction() as tx:
        await execute(tx, "CREATE TABLE purchase (number INTEGER PRIMARY KEY)")


async def purchases(engine: Engine) -> list[int]:
    async with engine.transaction() as tx:
        return [number for [number] in await execute(tx, "SELECT number FROM purchase ORDER BY number")]


async def buy(tx: Transaction, number: int) -> None:
    await execute(tx, f"INSERT INTO purchase VALUES ({number})")


@asynccontextmanager
async def undone(engine: Engine) -> AsyncIterator[Transaction]:
    """A transaction that is rolled back because its body raises."""
    try:
        async with engine.transaction() as tx:
            yield tx
            raise Undone
    except Undone:
        return
    raise AssertionError("the transaction swallowed its user's error")


async def test_the_users_own_writes_commit_and_roll_back(engine: Engine) -> None:
    async with engine.transaction() as tx:
        await buy(tx, 1)
    async with undone(engine) as tx:
        await buy(tx, 2)
    assert await purchases(engine) == [1]


async def test_a_committed_submit_exists(engine: Engine, fresh: Status) -> None:
    one = await worker(engine)
    task = new({"purchase": 1})
    async with engine.transaction() as tx:
        await buy(tx, 1)
        [answer] = await engine.submit([task], tx=tx)
        assert (answer.status, answer.id) == (fresh, task.id)
    assert (await record(engine, task.id)).payload == encode({"purchase": 1})
    assert await purchases(engine) == [1]
    assert ids_of(await one.claim(10)) == [task.id]


async def test_a_rolled_back_submit_does_not(engine: Engine, fresh: Status) -> None:
    one = await worker(engine)
    task = new(1, idempotency_key="k", unique=Unique("u"))
    async with undone(engine) as tx:
        await buy(tx, 1)
        assert accepted((await engine.submit([task], tx=tx))[0]) == task.id
    assert await engine.get([task.id]) == (None,)
    assert await purchases(engine) == []
    assert await one.claim(10) == []
    [answer] = await engine.submit([new(2, idempotency_key="k", unique=Unique("u"))])
    assert answer.status is fresh


async def test_nobody_sees_it_before_the_commit(store: Store, engine: Engine) -> None:
    other = await store.engine()
    task = new()
    async with engine.transaction() as tx:
        await submit(engine, task, tx=tx)
        assert await other.get([task.id]) == (None,)
        assert await all_tasks(other) == []
    assert await state(other, task.id) is State.PENDING


async def test_a_statement_that_fails_undoes_the_submit(engine: Engine) -> None:
    task = new()
    async with engine.transaction() as tx:
        await buy(tx, 1)

    async def buy_twice() -> None:
        async with engine.transaction() as tx:
            await submit(engine, task, tx=tx)
            await buy(tx, 1)

    with pytest.raises(Exception, match=r"(?i)unique"):
        await buy_twice()
    assert await engine.get([task.id]) == (None,)


async def test_a_refused_task_does_not_break_the_transaction(engine: Engine) -> None:
    good = new(1)
    async with engine.transaction() as tx:
        await buy(tx, 1)
        bad, kept = await engine.submit([new(queue="Not A Name"), good], tx=tx)
        assert (refusal(bad), accepted(kept)) == ("invalid_name", good.id)
    assert await purchases(engine) == [1]
    assert await state(engine, good.id) is State.PENDING


async def test_a_duplicate_in_a_transaction(engine: Engine) -> None:
    first = await submit_one(engine, 1, idempotency_key="k")
    async with engine.transaction() as tx:
        [answer] = await engine.submit([new(1, idempotency_key="k")], tx=tx)
    assert (answer.status, answer.id) == (Status.DUPLICATE, first)


async def test_edges_of_a_transaction(engine: Engine) -> None:
    one = await worker(engine)
    child, parent = new("child"), new("parent")
    async with engine.transaction() as tx:
        await submit(engine, child, tx=tx)
        parent = new("parent", edges=(Edge(child.id),))
        await submit(engine, parent, tx=tx)
    assert await state(engine, parent.id) is State.WAITING
    await one.done(await one.claim_one())
    assert ids_of(await one.claim(10)) == [parent.id]


async def test_rolled_back_edges_leave_the_other_task_alone(engine: Engine) -> None:
    one = await worker(engine)
    child = await submit_one(engine)
    async with undone(engine) as tx:
        await submit(engine, new(edges=(Edge(child),)), tx=tx)
    await one.done(await one.claim_one())
    assert await one.claim(10) == []
    assert await state(engine, child) is State.COMPLETED


async def test_several_submits_in_one_transaction(engine: Engine) -> None:
    async with engine.transaction() as tx:
        ids = [id for n in range(5) for id in await submit(engine, new(n), new(n), tx=tx)]
    assert {task.id for task in await all_tasks(engine)} == set(ids)


# finish: the effect is exactly once.


async def test_a_committed_finish_and_the_users_write_stand_together(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    [task] = await one.claim()
    async with engine.transaction() as tx:
        await buy(tx, 1)
        assert (await engine.finish([outcome(task, result=encode("bought"))], tx=tx)).refused == ()
    ended = await record(engine, id)
    assert (ended.state, ended.result) == (State.COMPLETED, encode("bought"))
    assert await purchases(engine) == [1]


async def test_a_rolled_back_finish_leaves_the_task_running_under_its_lease(engine: Engine) -> None:
    one = await worker(engine)
    follower = new("then")
    id = await submit_one(engine)
    [task] = await one.claim()
    before = await record(engine, id)
    async with undone(engine) as tx:
        await buy(tx, 1)
        assert (await engine.finish([outcome(task, then=(follower,))], tx=tx)).refused == ()
    assert await record(engine, id) == before
    assert await engine.get([follower.id]) == (None,)
    assert await purchases(engine) == []
    assert (await one.beat()).lost == ()
    await one.done(task)


async def test_then_in_a_transaction(engine: Engine) -> None:
    one = await worker(engine)
    follower = new("then")
    await submit_one(engine)
    [task] = await one.claim()
    async with engine.transaction() as tx:
        await engine.finish([outcome(task, then=(follower,))], tx=tx)
    assert ids_of(await one.claim(10)) == [follower.id]


@pytest.mark.parametrize("ending", list(Ending))
async def test_a_stale_lease_raises_and_rolls_everything_back(engine: Engine, ending: Ending) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine)
    [late] = await one.claim()
    await engine.leave(one.id)
    [current] = await two.claim()

    async def finish_late() -> None:
        async with engine.transaction() as tx:
            await buy(tx, 1)
            await engine.finish([outcome(late, ending, signals=("go",) if ending is Ending.WAITING else ())], tx=tx)

    with pytest.raises(StaleLease):
        await finish_late()
    assert await purchases(engine) == []
    assert await state(engine, id) is State.RUNNING
    await two.done(current)


async def test_slots_return_with_the_commit_only(engine: Engine) -> None:
    one = await worker(engine)
    await engine.put("limit", "one", b'{"cap": 1}')
    await submit_many(engine, 2, limits=("one",))
    [task] = await one.claim(10)
    async with undone(engine) as tx:
        await engine.finish([outcome(task)], tx=tx)
    assert await one.claim(10) == []
    async with engine.transaction() as tx:
        await engine.finish([outcome(task)], tx=tx)
    assert len(await one.claim(10)) == 1
    assert await one.claim(10) == []


async def test_edges_fall_with_the_commit_only(engine: Engine) -> None:
    one = await worker(engine)
    child = await submit_one(engine)
    parent = await submit_one(engine, edges=(Edge(child),))
    [task] = await one.claim(10)
    async with undone(engine) as tx:
        await engine.finish([outcome(task)], tx=tx)
    assert await state(engine, parent) is State.WAITING
    async with engine.transaction() as tx:
        await engine.finish([outcome(task)], tx=tx)
    assert ids_of(await one.claim(10)) == [parent]


@pytest.mark.parametrize("ending", list(Ending))
async def test_every_ending_in_a_transaction(engine: Engine, ending: Ending) -> None:
    one = await worker(engine)
    alone, in_tx = await submit_many(engine, 2)
    first, second = await one.claim(2)
    fields = {"signals": ("go",)} if ending is Ending.WAITING else {}
    await one.done(first, ending=ending, after=1_000, **fields)
    async with engine.transaction() as tx:
        assert (await engine.finish([outcome(second, ending, after=1_000, **fields)], tx=tx)).refused == ()
    assert await state(engine, in_tx) is await state(engine, alone)


async def test_submit_and_finish_in_one_transaction(engine: Engine) -> None:
    one = await worker(engine)
    follower = new("follows")
    id = await submit_one(engine)
    [task] = await one.claim()
    async with undone(engine) as tx:
        await submit(engine, follower, tx=tx)
        await engine.finish([outcome(task)], tx=tx)
    assert await state(engine, id) is State.RUNNING
    async with engine.transaction() as tx:
        await submit(engine, follower, tx=tx)
        await engine.finish([outcome(task)], tx=tx)
    assert await state(engine, id) is State.COMPLETED
    assert ids_of(await one.claim(10)) == [follower.id]


# Beside others.


async def test_a_beat_is_not_held_up_by_a_users_transaction(store: Store, engine: Engine) -> None:
    one = await worker(await store.engine())
    await submit_one(engine)
    [task] = await one.claim()
    async with engine.transaction() as tx:
        await buy(tx, 1)
        async with asyncio.timeout(30):
            beat = await one.beat()
        assert (beat.known, beat.lost) == (True, ())
    await one.done(task)


async def test_transactions_of_many_at_once(store: Store, engine: Engine) -> None:
    engines = [engine, *await store.engines(3)]

    async def shop(number: int) -> None:
        each = engines[number % 4]
        async with each.transaction() as tx:
            await buy(tx, number)
            await submit(each, new(number), tx=tx)

    await asyncio.gather(*(shop(number) for number in range(20)))
    assert await purchases(engine) == list(range(20))
    assert sorted(int(task.payload) for task in await all_tasks(engine)) == list(range(20))


async def test_transactions_and_other_steps_racing(store: Store, engine: Engine) -> None:
    other = await store.engine()

    async def shop() -> None:
        for number in range(10):
            async with engine.transaction() as tx:
                await buy(tx, number)
                await submit(engine, new("tx"), tx=tx)

    async def plain(each: Engine) -> None:
        for _ in range(20):
            await submit_one(each, "plain")

    await asyncio.gather(shop(), plain(other), plain(engine))
    assert len(await all_tasks(engine)) == 50


async def test_who_stands_in_a_transaction_knows(engine: Engine, store: Store) -> None:
    """Also what it calls and starts there; nobody else, no other engine, and not once it is over."""
    needs(engine, "user_transactions")
    another = await store.engine()
    seen: list[tuple[bool, bool]] = []
    outside = copy_context()

    async def look() -> None:
        seen.append((engine.in_transaction(), another.in_transaction()))

    await look()
    async with engine.transaction():
        await look()
        await asyncio.create_task(look())
        await asyncio.create_task(look(), context=outside)
        late = asyncio.Event()
        started = asyncio.create_task(_after(late, look))
    late.set()
    await started
    await look()
    assert seen == [(False, False), (True, False), (True, False), (False, False), (False, False), (False, False)]


async def _after(event: asyncio.Event, do: Callable[[], Awaitable[None]]) -> None:
    await event.wait()
    await do()


async def test_one_face_for_statements_of_the_user(engine: Engine) -> None:
    """Numbered bindings in any order, awaited rows: a handler that is written so runs on every engine that has transactions."""
    needs(engine, "user_transactions")
    async with engine.transaction() as tx:
        await tx.execute("CREATE TABLE goods (number integer, name text)")
    async with engine.transaction() as tx:
        await tx.execute("INSERT INTO goods (name, number) VALUES ($2, $1)", (1, "costs $9"))
        await tx.executemany("INSERT INTO goods (number, name) VALUES ($1, $2)", [(2, "two"), (3, "three")])
        rows = await tx.execute("SELECT number, name FROM goods WHERE number < $1 OR name = '$1' OR number = $1 ORDER BY number", [2])
        assert [tuple(row) for row in rows] == [(1, "costs $9"), (2, "two")]
        assert await tx.execute("DELETE FROM goods WHERE name = $1", ["two"]) == []
    async with engine.transaction() as tx:
        assert [row[0] for row in await tx.execute("SELECT number FROM goods ORDER BY number DESC")] == [3, 1]
