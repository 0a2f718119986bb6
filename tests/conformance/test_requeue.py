"""requeue: an ended task is ready again, with failures and crashes 0, its attempt numbers going on."""

from __future__ import annotations

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Filter, Target
from taskmill.task import State, Unique, new_id
from tests.conformance.tools import accepted, ids_of, new, outcome, record, state, states, step, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import ALIVE, ENDED, make, seen, the_only


@pytest.mark.parametrize("now", ENDED)
async def test_an_ended_task_is_ready_again(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now)
    target = await seen(engine, made.id)
    clock.advance(1)
    changed = the_only(await engine.requeue([target]))
    task = await record(engine, made.id)
    assert (changed.task, changed.done, changed.state, changed.version, changed.code) == (made.id, True, State.PENDING, task.version, None)
    assert target.version
    assert task.version == target.version + 1
    assert (task.state, task.failures, task.crashes, task.executions, task.finished_at) == (State.PENDING, 0, 0, 1, None)
    claimed = await made.holder.claim_one()
    assert (claimed.id, claimed.attempt, claimed.failures, claimed.crashes) == (made.id, 2, 0, 0)
    assert made.claimed
    assert claimed.token > made.claimed.token
    await made.holder.done(claimed, result=b'"again"')
    task = await record(engine, made.id)
    assert (task.state, task.result, task.error) == (State.COMPLETED, b'"again"', None)
    assert [attempt.number for attempt in await engine.attempts(made.id)] == [1, 2]


async def test_poison_gets_all_its_crashes_again(engine: Engine) -> None:
    id = await submit_one(engine, max_crashes=1)
    hand = await worker(engine)
    for _ in range(2):
        await hand.done(await hand.claim_one(), ending=Ending.CRASHED)
    assert await state(engine, id) is State.DEAD
    await engine.requeue([Target(id)])
    await hand.done(await hand.claim_one(), ending=Ending.CRASHED)
    task = await record(engine, id)
    assert (task.state, task.crashes, task.executions) == (State.PENDING, 1, 3)


@pytest.mark.parametrize("now", ALIVE)
async def test_a_live_task_is_refused(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    before = await record(engine, made.id)
    changed = the_only(await engine.requeue([Target(made.id)]))
    assert (changed.done, changed.code, changed.state) == (False, "not_terminal", now)
    assert await record(engine, made.id) == before


async def test_unknown_gone_and_changed_tasks_are_refused_each_alone(engine: Engine) -> None:
    gone, stale, good = [await make(engine, State.DEAD) for _ in range(3)]
    await engine.delete([Target(gone.id)])
    unknown = new_id()
    changes = await engine.requeue([Target(unknown), Target(gone.id), Target(stale.id, 99), await seen(engine, good.id)])
    assert [(changed.task, changed.done, changed.code) for changed in changes.tasks] == [
        (unknown, False, "not_found"),
        (gone.id, False, "expired"),
        (stale.id, False, "stale_version"),
        (good.id, True, None),
    ]
    assert await states(engine, [stale.id, good.id]) == [State.DEAD, State.PENDING]


async def test_a_repeat_with_the_version_seen_answers_as_the_first(engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    target = await seen(engine, made.id)
    first = await engine.requeue([target])
    before = await record(engine, made.id)
    assert await engine.requeue([target]) == first
    assert await record(engine, made.id) == before


async def test_a_late_repeat_opens_no_second_time(engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    target = await seen(engine, made.id)
    await engine.requeue([target])
    await made.holder.done(await made.holder.claim_one())
    await engine.requeue([target])
    assert await state(engine, made.id) is State.COMPLETED


@pytest.mark.parametrize("from_start", [False, True])
async def test_checkpoints_are_kept_unless_it_starts_over(engine: Engine, from_start: bool) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, "charge", 7)]) == ()
    await made.holder.done(made.claimed, ending=Ending.DEAD)
    await engine.requeue([await seen(engine, made.id)], from_start=from_start)
    assert (await made.holder.claim_one()).checkpoints == ({} if from_start else {"charge": b"7"})


async def test_it_stands_behind_what_is_ready_already(engine: Engine, clock: ManualClock) -> None:
    hand = await worker(engine)
    first = await submit_one(engine)
    await hand.done(await hand.claim_one(), ending=Ending.DEAD)
    second = await submit_one(engine)
    clock.advance(1)
    await engine.requeue([await seen(engine, first)])
    assert ids_of(await hand.claim(5)) == [second, first]


async def test_refused_while_another_holds_its_unique_key(engine: Engine) -> None:
    first = await make(engine, State.DEAD, unique=Unique("one"), queue="line")
    second = await submit_one(engine, queue="line", unique=Unique("one"))
    changed = the_only(await engine.requeue([await seen(engine, first.id)]))
    assert (changed.done, changed.state, changed.code) == (False, State.DEAD, "unique_held")
    await engine.cancel([Target(second)])
    changed = the_only(await engine.requeue([await seen(engine, first.id)]))
    assert (changed.done, changed.state) == (True, State.PENDING)
    [answer] = await engine.submit([new(queue="line", unique=Unique("one"))])
    assert accepted(answer) == first.id


async def test_a_limit_holds_for_what_comes_back(engine: Engine) -> None:
    await engine.put("limit", "one", b'{"cap": 1}')
    ids = await submit(engine, new(limits=("one",)), new(limits=("one",)))
    hand = await worker(engine)
    for _ in ids:
        await hand.done(await hand.claim_one(), ending=Ending.DEAD)
    await engine.requeue([Target(id) for id in ids])
    claimed = await hand.claim(5)
    assert len(claimed) == 1
    assert (await engine.finish([outcome(claimed[0])])).refused == ()
    assert len(await hand.claim(5)) == 1


async def test_by_filter_over_several_batches(engine: Engine) -> None:
    hand = await worker(engine)
    ids = await submit_many(engine, 25)
    claimed = await hand.claim(25)
    await hand.done(*claimed[:20], ending=Ending.DEAD)
    await hand.done(*claimed[20:])
    which = Filter(states=frozenset({State.DEAD}))
    cursor, rounds = None, 0
    while rounds == 0 or cursor is not None:
        changes = await engine.requeue(which, after=cursor, n=7)
        assert len(changes.tasks) <= 7
        cursor, rounds = changes.cursor, rounds + 1
        assert rounds < 10
    found = dict(zip(ids, await states(engine, ids), strict=True))
    assert {found[task.id] for task in claimed[:20]} == {State.PENDING}
    assert {found[task.id] for task in claimed[20:]} == {State.COMPLETED}
    assert len(await hand.claim(50)) == 20
