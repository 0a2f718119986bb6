"""expires_at: a task that has not started by then never starts; recovery cancels it as `expired`."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, MINUTE, ManualClock
from taskmill.engine import Ending, Engine
from taskmill.task import Edge, State, Unique
from tests.conformance.tools import accepted, ids_of, new, pass_time, record, state, states, submit, submit_one, worker
from tests.conformance.tools_b import NOT_RUNNING, make, make_unwinding, settle


@pytest.mark.parametrize("now", NOT_RUNNING)
async def test_what_does_not_run_is_cancelled(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now, expires_at=clock.now() + MINUTE)
    clock.advance("59s")
    await settle(engine)
    assert await state(engine, made.id) is now
    clock.advance("1s")
    await settle(engine)
    task = await record(engine, made.id)
    assert (task.state, task.finished_at) == (State.CANCELLED, clock.now())
    assert task.error
    assert (task.error.code, task.error.message) == ("expired", "its deadline (expires) has passed")


async def test_it_is_not_claimed_even_before_anybody_noticed(engine: Engine, clock: ManualClock) -> None:
    expired = await submit_one(engine, expires_at=clock.now() + MINUTE)
    lasting = await submit_one(engine)
    clock.advance("1m")
    hand = await worker(engine)
    assert ids_of(await hand.claim(9)) == [lasting]
    await settle(engine)
    assert await state(engine, expired) is State.CANCELLED


async def test_in_a_lane_too(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "one", b'{"cap": 1}')
    expired = await submit_one(engine, limits=("one",), expires_at=clock.now() + MINUTE)
    lasting = await submit_one(engine, limits=("one",))
    ordered = await submit(engine, new(order_key="k", expires_at=clock.now() + MINUTE), new(order_key="k"))
    clock.advance("1m")
    hand = await worker(engine)
    taken = ids_of(await hand.claim(9))
    assert lasting in taken
    assert expired not in taken
    assert ordered[0] not in taken
    await settle(engine)
    taken += ids_of(await hand.claim(9))
    assert sorted(taken) == sorted([lasting, ordered[1]])
    assert await states(engine, [expired, ordered[0]]) == [State.CANCELLED, State.CANCELLED]


async def test_one_that_runs_may_end(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING, expires_at=clock.now() + 3_000_000)
    assert made.claimed
    await pass_time(engine, clock, 10, made.holder)
    assert await state(engine, made.id) is State.RUNNING
    await made.holder.done(made.claimed)
    assert await state(engine, made.id) is State.COMPLETED


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED, Ending.RELEASED])
async def test_one_that_comes_back_too_late_is_cancelled(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    made = await make(engine, State.RUNNING, expires_at=clock.now() + 3_000_000)
    assert made.claimed
    await pass_time(engine, clock, 5, made.holder)
    await made.holder.done(made.claimed, ending=ending)
    assert await made.holder.claim() == []
    await settle(engine)
    task = await record(engine, made.id)
    assert task.error
    assert (task.state, task.error.code) == (State.CANCELLED, "expired")


async def test_what_must_unwind_gets_a_turn_to_do_so(engine: Engine, clock: ManualClock) -> None:
    made = await make_unwinding(engine, expires_at=clock.now() + MINUTE)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.SNOOZED, after=HOUR)
    clock.advance("61s")
    await settle(engine)
    task = await record(engine, made.id)
    assert (task.state, task.must_end) == (State.PENDING, "expired")
    again = await made.holder.claim_one()
    assert again.must_end == "expired"
    await made.holder.done(again, ending=Ending.CANCELLED)
    assert await state(engine, made.id) is State.CANCELLED


async def test_its_parent_is_cancelled_with_it(engine: Engine, clock: ManualClock) -> None:
    child = new(expires_at=clock.now() + MINUTE)
    parent = new(edges=(Edge(child.id),))
    await submit(engine, child, parent)
    clock.advance("1m")
    await settle(engine)
    assert await states(engine, [child.id, parent.id]) == [State.CANCELLED, State.CANCELLED]


async def test_its_unique_key_is_free_again(engine: Engine, clock: ManualClock) -> None:
    await submit_one(engine, unique=Unique("one"), expires_at=clock.now() + MINUTE)
    clock.advance("1m")
    await settle(engine)
    follower = new(unique=Unique("one"))
    [answer] = await engine.submit([follower])
    assert accepted(answer) == follower.id


async def test_many_in_bounded_batches(engine: Engine, clock: ManualClock) -> None:
    ids = await submit(engine, *(new(n, expires_at=clock.now() + MINUTE) for n in range(60)))
    clock.advance("61s")
    await engine.recover_lost(25)
    for _ in range(10):
        moved = await engine.recover_lost(25)
        assert moved.moved <= 25
        if not moved.more:
            break
    assert set(await states(engine, ids)) == {State.CANCELLED}


async def test_the_wall_clock_decides(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine, expires_at=clock.now() + MINUTE)
    clock.step(MINUTE)
    await settle(engine)
    assert await state(engine, id) is State.CANCELLED
