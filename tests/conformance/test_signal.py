"""signal: a named value is kept, once by its id, in order, until the task ends; a task that waits for it becomes ready."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import MINUTE, ManualClock
from taskmill.engine import Claimed, Ending, Engine, Target
from taskmill.errors import Conflict, Expired, NotFound
from taskmill.task import State, new_id
from tests.conformance.tools import Store, ids_of, record, state
from tests.conformance.tools_b import ALIVE, ENDED, Made, guarded, make


async def wait_for(made: Made, *names: str, claimed: Claimed | None = None, **fields: object) -> None:
    task = claimed or made.claimed
    assert task
    await made.holder.done(task, ending=Ending.WAITING, signals=names, **fields)


@pytest.mark.parametrize("now", ALIVE)
async def test_signals_are_numbered_and_kept_for_the_next_attempt(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now)
    ids = [new_id(), new_id()]
    assert await engine.signal(made.id, "first", b'{"by": "ann"}', ids[0]) == 1
    clock.advance(1)
    assert await engine.signal(made.id, "second", b"null", ids[1]) == 2
    if now is State.RUNNING:
        assert made.claimed
        await made.holder.done(made.claimed, ending=Ending.RETRY)
    if now is State.WAITING:
        await engine.signal(made.id, "go", b"1", new_id())
    clock.advance("2h")
    claimed = await made.holder.claim_one()
    found = [(signal.number, signal.name, signal.data, signal.id) for signal in claimed.signals]
    assert found[:2] == [(1, "first", b'{"by": "ann"}', ids[0]), (2, "second", b"null", ids[1])]
    assert claimed.signals[1].at - claimed.signals[0].at == 1_000_000


async def test_a_signal_before_the_wait_is_not_missed(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    await engine.signal(made.id, "go", b"1", new_id())
    await wait_for(made, "go")
    assert await state(engine, made.id) is State.PENDING
    assert [signal.name for signal in (await made.holder.claim_one()).signals] == ["go"]


async def test_a_signal_before_the_first_claim_is_not_missed(engine: Engine) -> None:
    made = await make(engine, State.PENDING)
    await engine.signal(made.id, "go", b"1", new_id())
    claimed = await made.holder.claim_one()
    await wait_for(made, "go", claimed=claimed)
    assert await state(engine, made.id) is State.PENDING


async def test_a_signal_during_the_wait_makes_it_ready(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    await wait_for(made, "go", "stop")
    clock.advance(5)
    assert await made.holder.claim() == []
    await engine.signal(made.id, "stop", b"1", new_id())
    claimed = await made.holder.claim_one()
    assert (claimed.id, claimed.attempt) == (made.id, 2)


async def test_another_signal_does_not_end_the_wait(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    await wait_for(made, "go")
    await engine.signal(made.id, "gossip", b"1", new_id())
    assert await state(engine, made.id) is State.WAITING
    await engine.signal(made.id, "go", b"1", new_id())
    assert [signal.name for signal in (await made.holder.claim_one()).signals] == ["gossip", "go"]


async def test_signals_that_were_seen_do_not_end_the_next_wait(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    await engine.signal(made.id, "go", b"1", new_id())
    await wait_for(made, "go", seen=1)
    assert await state(engine, made.id) is State.WAITING
    await engine.signal(made.id, "go", b"2", new_id())
    claimed = await made.holder.claim_one()
    assert [(signal.number, signal.data) for signal in claimed.signals] == [(1, b"1"), (2, b"2")]
    await wait_for(made, "go", claimed=claimed, seen=1)
    assert await state(engine, made.id) is State.PENDING


async def test_a_signal_that_came_between_the_look_and_the_wait_is_not_missed(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    await engine.signal(made.id, "go", b"1", new_id())
    await engine.signal(made.id, "go", b"2", new_id())
    await wait_for(made, "go", seen=1)
    assert await state(engine, made.id) is State.PENDING


async def test_the_deadline_ends_a_wait_and_the_signal_then_comes_late(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    await wait_for(made, "go", deadline=MINUTE)
    clock.advance("59s")
    assert await state(engine, made.id) is State.WAITING
    clock.advance("1s")
    claimed = await made.holder.claim_one()
    assert claimed.signals == ()
    assert await engine.signal(made.id, "go", b"1", new_id()) == 1
    assert await state(engine, made.id) is State.RUNNING
    await made.holder.done(claimed)


async def test_a_signal_before_the_deadline_leaves_no_deadline_behind(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    await wait_for(made, "go", deadline=MINUTE)
    await engine.signal(made.id, "go", b"1", new_id())
    claimed = await made.holder.claim_one()
    clock.advance("2m")
    assert await made.holder.claim() == []
    await wait_for(made, "go", claimed=claimed, seen=1)
    assert await state(engine, made.id) is State.WAITING


async def test_a_repeat_by_id_is_the_same_signal(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    id = new_id()
    assert await engine.signal(made.id, "go", b"1", id) == 1
    assert await engine.signal(made.id, "go", b"1", new_id()) == 2
    assert await engine.signal(made.id, "go", b"1", id) == 1
    await wait_for(made, "go", seen=2)
    assert await engine.signal(made.id, "go", b"1", id) == 1
    assert await state(engine, made.id) is State.WAITING
    await engine.signal(made.id, "go", b"1", new_id())
    assert len((await made.holder.claim_one()).signals) == 3


async def test_the_same_id_at_two_tasks_is_two_signals(engine: Engine) -> None:
    first, second = await make(engine, State.WAITING), await make(engine, State.WAITING)
    id = new_id()
    assert await engine.signal(first.id, "go", b"1", id) == 1
    assert await engine.signal(second.id, "go", b"1", id) == 1
    assert await state(engine, second.id) is State.PENDING


@pytest.mark.parametrize("now", ENDED)
async def test_an_ended_task_takes_none(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    before = await record(engine, made.id)
    with pytest.raises(Conflict) as caught:
        await engine.signal(made.id, "go", b"1", new_id())
    assert caught.value.code == "terminal"
    assert await record(engine, made.id) == before


async def test_an_unknown_task_and_one_that_is_gone(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.signal(new_id(), "go", b"1", new_id())
    made = await make(engine, State.COMPLETED)
    await engine.delete([Target(made.id)])
    with pytest.raises(Expired):
        await engine.signal(made.id, "go", b"1", new_id())


async def test_many_callers_at_once_number_without_gaps(engine: Engine, store: Store) -> None:
    made = await make(engine, State.RUNNING)
    engines = [engine, *await store.engines(2)]
    ids = [new_id() for _ in range(20)]
    numbers = await guarded(asyncio.gather(*(engines[n % 3].signal(made.id, "go", str(n).encode(), id) for n, id in enumerate(ids * 2))))
    assert numbers[:20] == numbers[20:]
    assert sorted(numbers[:20]) == list(range(1, 21))
    await wait_for(made, "go")
    claimed = await made.holder.claim_one()
    assert [signal.number for signal in claimed.signals] == list(range(1, 21))
    assert {signal.id: signal.number for signal in claimed.signals} == dict(zip(ids, numbers, strict=False))


async def test_a_woken_task_is_claimed_once(engine: Engine) -> None:
    made = await make(engine, State.WAITING)
    await engine.signal(made.id, "go", b"1", new_id())
    await engine.signal(made.id, "go", b"2", new_id())
    assert ids_of(await made.holder.claim(5)) == [made.id]
    assert await made.holder.claim(5) == []
