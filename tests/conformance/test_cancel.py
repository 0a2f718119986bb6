"""cancel: a waiting task is cancelled, a running one's worker is told, one that must unwind becomes ready to do so."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Changed, Ending, Engine, Filter, Target
from taskmill.task import State, Unique, new_id
from tests.conformance.tools import Store, accepted, ids_of, lose, new, outcome, record, state, states, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import NOT_RUNNING, guarded, make, make_unwinding, seen, the_only


@pytest.mark.parametrize("now", NOT_RUNNING)
async def test_a_task_that_does_not_run_is_cancelled_at_once(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now)
    target = await seen(engine, made.id)
    clock.advance(1)
    changed = the_only(await engine.cancel([target]))
    task = await record(engine, made.id)
    assert (task.state, task.finished_at, task.cancel_requested) == (State.CANCELLED, clock.now(), False)
    assert (changed.task, changed.done, changed.state, changed.version, changed.requested, changed.code) == (
        made.id,
        True,
        State.CANCELLED,
        task.version,
        False,
        None,
    )
    assert target.version
    assert task.version == target.version + 1
    clock.advance("2h")
    assert await made.holder.claim() == []


async def test_the_worker_of_a_running_task_is_told(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    target = await seen(engine, made.id)
    changed = the_only(await engine.cancel([target]))
    assert (changed.done, changed.requested, changed.state, changed.code) == (True, True, State.RUNNING, None)
    task = await record(engine, made.id)
    assert (task.state, task.cancel_requested, task.version) == (State.RUNNING, True, changed.version)
    assert (await made.holder.beat()).cancelled == (made.id,)
    assert (await made.holder.beat()).cancelled == (made.id,)
    await made.holder.done(made.claimed, ending=Ending.CANCELLED)
    assert await state(engine, made.id) is State.CANCELLED
    assert (await made.holder.beat()).cancelled == ()


async def test_a_cancel_requested_of_a_worker_that_dies(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    await engine.cancel([Target(made.id)])
    await lose(engine, clock)
    assert await state(engine, made.id) is State.CANCELLED


async def test_a_cancel_requested_of_a_task_that_its_worker_gives_back(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    await engine.cancel([Target(made.id)])
    await engine.leave(made.holder.id)
    assert await state(engine, made.id) is State.CANCELLED


@pytest.mark.parametrize("now", [State.COMPLETED, State.DEAD])
async def test_an_ended_task_stays_as_it_is(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    before = await record(engine, made.id)
    changed = the_only(await engine.cancel([Target(made.id)]))
    assert (changed.done, changed.requested, changed.state, changed.code) == (False, False, now, "terminal")
    assert await record(engine, made.id) == before


async def test_a_cancelled_task_may_be_cancelled_again(engine: Engine) -> None:
    made = await make(engine, State.CANCELLED)
    before = await record(engine, made.id)
    changed = the_only(await engine.cancel([Target(made.id)]))
    assert (changed.done, changed.requested, changed.state, changed.code) == (True, False, State.CANCELLED, None)
    assert await record(engine, made.id) == before


async def test_unknown_gone_and_changed_tasks_are_refused_each_alone(engine: Engine) -> None:
    gone = await make(engine, State.COMPLETED)
    await engine.delete([Target(gone.id)])
    good, stale, unknown = await submit_one(engine), await submit_one(engine), new_id()
    targets = [Target(unknown), Target(gone.id), Target(stale, 99), await seen(engine, good)]
    changes = await engine.cancel(targets)
    assert [(changed.task, changed.done, changed.code) for changed in changes.tasks] == [
        (unknown, False, "not_found"),
        (gone.id, False, "expired"),
        (stale, False, "stale_version"),
        (good, True, None),
    ]
    assert changes.cursor is None
    assert await states(engine, [stale, good]) == [State.PENDING, State.CANCELLED]


@pytest.mark.parametrize("now", [*NOT_RUNNING, State.RUNNING])
async def test_a_repeat_with_the_version_seen_answers_as_the_first(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    target = await seen(engine, made.id)
    first = await engine.cancel([target])
    before = await record(engine, made.id)
    assert await engine.cancel([target]) == first
    assert await record(engine, made.id) == before


async def test_the_version_that_was_seen_before_a_change_is_stale(engine: Engine) -> None:
    made = await make(engine, State.PENDING)
    target = await seen(engine, made.id)
    await made.holder.claim_one()
    changed = the_only(await engine.cancel([target]))
    assert (changed.done, changed.requested, changed.code) == (False, False, "stale_version")
    assert not (await record(engine, made.id)).cancel_requested


@pytest.mark.parametrize("ending", [Ending.SNOOZED, Ending.WAITING, Ending.RETRY, Ending.RELEASED])
async def test_what_must_unwind_becomes_ready(engine: Engine, ending: Ending) -> None:
    made = await make_unwinding(engine)
    assert made.claimed
    await made.holder.done(made.claimed, ending=ending, after=10**9, signals=("go",) if ending is Ending.WAITING else ())
    changed = the_only(await engine.cancel([await seen(engine, made.id)]))
    assert (changed.done, changed.requested, changed.code, changed.state) == (True, False, None, State.PENDING)
    task = await record(engine, made.id)
    assert (task.state, task.must_end, task.cancel_requested) == (State.PENDING, "cancelled", False)
    again = await made.holder.claim_one()
    assert (again.must_end, again.unwind) == ("cancelled", True)
    await made.holder.done(again, ending=Ending.CANCELLED)
    assert await state(engine, made.id) is State.CANCELLED


async def test_a_repeated_cancel_while_it_unwinds_changes_nothing(engine: Engine) -> None:
    made = await make_unwinding(engine)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.SNOOZED, after=10**9)
    await engine.cancel([Target(made.id)])
    before = await record(engine, made.id)
    await engine.cancel([Target(made.id)])
    after = await record(engine, made.id)
    assert (after.state, after.must_end, after.run_at) == (before.state, before.must_end, before.run_at)


async def test_by_filter_over_several_batches(engine: Engine) -> None:
    wanted = await submit_many(engine, 25, tags={"run": "7"})
    others = await submit_many(engine, 5, tags={"run": "8"})
    cursor, rounds, told = None, 0, set()
    while rounds == 0 or cursor is not None:
        changes = await engine.cancel(Filter(tags={"run": "7"}), after=cursor, n=10)
        assert len(changes.tasks) <= 10
        told |= {changed.task for changed in changes.tasks}
        cursor, rounds = changes.cursor, rounds + 1
        assert rounds < 10
    assert set(await states(engine, wanted)) == {State.CANCELLED}
    assert set(await states(engine, others)) == {State.PENDING}
    assert told <= set(wanted)


@pytest.mark.heard_only("the second answer has nothing left to tell")
async def test_by_filter_tells_each_task_once(engine: Engine) -> None:
    wanted = await submit_many(engine, 25)
    running = await make(engine, State.RUNNING)
    told: list[Changed] = []
    cursor = None
    while True:
        changes = await engine.cancel(Filter(), after=cursor, n=10)
        told += changes.tasks
        if (cursor := changes.cursor) is None:
            break
    assert sorted(changed.task for changed in told) == sorted([*wanted, running.id])
    assert {changed.task: changed.requested for changed in told}[running.id]
    assert sum(changed.done and not changed.requested for changed in told) == 25


async def test_by_filter_of_a_state(engine: Engine) -> None:
    made = {now: (await make(engine, now)).id for now in State}
    await engine.cancel(Filter(states=frozenset({State.SCHEDULED, State.WAITING})))
    expected = {now: State.CANCELLED if now in {State.SCHEDULED, State.WAITING} else now for now in State}
    assert await states(engine, list(made.values())) == list(expected.values())


async def test_an_empty_filter_result(engine: Engine) -> None:
    changes = await engine.cancel(Filter(queues=frozenset({"nobody"})))
    assert (changes.tasks, changes.cursor) == ((), None)


async def test_the_next_of_an_ordered_lane_follows(engine: Engine) -> None:
    first, second = await submit(engine, new(order_key="k"), new(order_key="k"))
    hand = await worker(engine)
    claimed = await hand.claim(5)
    assert ids_of(claimed) == [first]
    await hand.done(*claimed, ending=Ending.SNOOZED, after=10**12)
    assert await hand.claim(5) == []
    await engine.cancel([Target(first)])
    assert ids_of(await hand.claim(5)) == [second]


async def test_the_unique_key_is_free_again(engine: Engine) -> None:
    first = await submit_one(engine, unique=Unique("one"))
    await engine.cancel([Target(first)])
    second = new(unique=Unique("one"))
    [answer] = await engine.submit([second])
    assert accepted(answer) == second.id


async def test_a_cap_is_given_back_when_the_running_one_ends(engine: Engine) -> None:
    await engine.put("limit", "one", b'{"cap": 1}')
    first, second = await submit(engine, new(limits=("one",)), new(limits=("one",)))
    hand = await worker(engine)
    claimed = await hand.claim(5)
    assert ids_of(claimed) == [first]
    await engine.cancel([Target(first)])
    assert await hand.claim(5) == []
    assert (await engine.finish([outcome(claimed[0], Ending.RELEASED)])).refused == ()
    assert await state(engine, first) is State.CANCELLED
    assert ids_of(await hand.claim(5)) == [second]


async def test_cancel_and_claim_at_once(engine: Engine, store: Store) -> None:
    """Each task is either cancelled and never runs, or runs and its worker is told; never both, never neither."""
    ids = await submit_many(engine, 40)
    hand = await worker(await store.engine())
    steps = [each for n in range(0, 40, 4) for each in (hand.claim(4), *(engine.cancel([Target(id)]) for id in reversed(ids[n : n + 4])))]
    await guarded(asyncio.gather(*steps))
    told = set((await hand.beat()).cancelled)
    for task in [await record(engine, id) for id in ids]:
        assert (task.state, task.executions) in {(State.CANCELLED, 0), (State.RUNNING, 1)}
        assert (task.id in told) == task.cancel_requested == (task.state is State.RUNNING)


async def test_cancel_and_finish_at_once(engine: Engine, store: Store) -> None:
    ids = await submit_many(engine, 30)
    hand = await worker(await store.engine())
    claimed = await hand.claim(30)
    both = [each for task in claimed for each in (hand.done(task, ending=Ending.RETRY, after=10**9), engine.cancel([Target(task.id)]))]
    await guarded(asyncio.gather(*both))
    assert set(await states(engine, ids)) == {State.CANCELLED}
