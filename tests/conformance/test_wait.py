"""wait: those of the tasks that have ended, as soon as one has; empty when the time is over."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import MILLISECOND, MINUTE
from taskmill.engine import Ending, Engine, Target
from taskmill.errors import NotFound
from taskmill.task import State, new_id
from tests.conformance.tools import Store, submit_many, submit_one, worker
from tests.conformance.tools_b import ENDED, guarded, make, settle


@pytest.mark.parametrize("now", ENDED)
async def test_what_has_ended_is_answered_at_once(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    assert await guarded(engine.wait([made.id], MINUTE)) == {made.id: now}


async def test_some_have_ended(engine: Engine) -> None:
    done, dead, live = await make(engine, State.COMPLETED), await make(engine, State.DEAD), await make(engine, State.PENDING)
    assert await guarded(engine.wait([live.id, done.id, dead.id], MINUTE)) == {done.id: State.COMPLETED, dead.id: State.DEAD}


async def test_the_time_is_over(engine: Engine) -> None:
    made = await make(engine, State.PENDING)
    assert await guarded(engine.wait([made.id], 20 * MILLISECOND)) == {}
    assert await guarded(engine.wait([made.id], 0)) == {}


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_waiter_is_woken_by_the_end(engine: Engine, store: Store, where: str) -> None:
    ids = await submit_many(engine, 3)
    ending = engine if where == "here" else await store.engine()
    hand = await worker(ending)
    waiter = asyncio.create_task(engine.wait(ids, MINUTE))
    claimed = await hand.claim(3)
    await hand.done(claimed[1], ending=Ending.DEAD)
    assert await guarded(waiter) == {claimed[1].id: State.DEAD}


async def test_many_waiters_in_one_process(engine: Engine, store: Store) -> None:
    ids = await submit_many(engine, 50)
    hand = await worker(await store.engine())
    waiters = [asyncio.create_task(engine.wait([id], MINUTE)) for id in ids]
    claimed = await hand.claim(50)
    for task in claimed:
        await hand.done(task)
    found = await guarded(asyncio.gather(*waiters))
    assert found == [{id: State.COMPLETED} for id in ids]


async def test_a_cancelled_task_has_ended_too(engine: Engine) -> None:
    id = await submit_one(engine)
    waiter = asyncio.create_task(engine.wait([id], MINUTE))
    await engine.cancel([Target(id)])
    assert await guarded(waiter) == {id: State.CANCELLED}


async def test_a_task_cancelled_by_an_edge_has_ended_too(engine: Engine) -> None:
    child = await make(engine, State.RUNNING)
    assert child.claimed
    parent = await make(engine, State.RUNNING)
    assert parent.claimed
    await parent.holder.done(parent.claimed, ending=Ending.WAITING, tasks=(child.id,))
    waiter = asyncio.create_task(engine.wait([parent.id], MINUTE))
    await child.holder.done(child.claimed, ending=Ending.DEAD)
    await settle(engine)
    assert await guarded(waiter) == {parent.id: State.CANCELLED}


async def test_a_retry_is_no_end(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    waiter = asyncio.create_task(engine.wait([made.id], MINUTE))
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    again = await made.holder.claim_one()
    assert not waiter.done()
    await made.holder.done(again)
    assert await guarded(waiter) == {made.id: State.COMPLETED}


async def test_a_waiter_that_gives_up_harms_nobody(engine: Engine) -> None:
    id = await submit_one(engine)
    leaving, staying = [asyncio.create_task(engine.wait([id], MINUTE)) for _ in range(2)]
    hand = await worker(engine)
    claimed = await hand.claim_one()
    leaving.cancel()
    await hand.done(claimed)
    assert await guarded(staying) == {id: State.COMPLETED}
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_what_was_removed_has_ended(engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    await engine.delete([Target(made.id)])
    assert await guarded(engine.wait([made.id], MINUTE)) == {made.id: State.DEAD}


async def test_an_unknown_task(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await guarded(engine.wait([new_id()], MINUTE))
