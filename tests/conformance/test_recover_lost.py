"""recover_lost: what dead workers held becomes ready again or poison; what the store itself caused costs nobody anything."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import DAY, HOUR, SECOND, ManualClock
from taskmill.engine import Claimed, Ending, Engine
from taskmill.errors import Conflict
from taskmill.task import Edge, State
from tests.conformance.tools import (
    Store,
    Worker,
    ids_of,
    last_attempt,
    lose,
    new,
    pass_time,
    record,
    state,
    states,
    step,
    submit,
    submit_many,
    submit_one,
    worker,
)


async def test_a_dead_workers_task_is_ready_again_within_five_seconds(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine)
    [first] = await one.claim()
    await pass_time(engine, clock, 1, one, two)
    await pass_time(engine, clock, 3, two)
    assert await state(engine, id) is State.RUNNING
    await pass_time(engine, clock, 2, two)
    task = await record(engine, id)
    assert (task.state, task.crashes, task.failures, task.worker) == (State.PENDING, 1, 0, None)
    attempt = await last_attempt(engine, id)
    assert (attempt.number, attempt.worker, attempt.token, attempt.outcome) == (1, one.id, first.token, "crashed")
    [second] = await two.claim()
    assert (second.id, second.attempt, second.crashes) == (id, 2, 1)
    assert second.token > first.token


async def test_a_worker_that_beats_loses_nothing(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 3)
    claimed = await one.claim(3)
    await pass_time(engine, clock, 30, one)
    assert await states(engine, ids) == [State.RUNNING] * 3
    await one.done(*claimed)


async def test_a_longer_lease_is_kept_longer(engine: Engine, clock: ManualClock) -> None:
    remote = await worker(engine, lease=30 * SECOND)
    id = await submit_one(engine)
    await remote.claim()
    await remote.beat()
    await pass_time(engine, clock, 29)
    assert await state(engine, id) is State.RUNNING
    await pass_time(engine, clock, 32)
    assert (await record(engine, id)).crashes == 1


async def test_a_dead_worker_is_no_longer_known(engine: Engine, clock: ManualClock) -> None:
    one, idle, two = await worker(engine), await worker(engine), await worker(engine)
    await submit_one(engine)
    await one.claim()
    await lose(engine, clock, two)
    for dead in (one, idle):
        assert not (await dead.beat()).known
        with pytest.raises(Conflict) as refused:
            await dead.claim()
        assert refused.value.code == "unknown_worker"
    assert (await two.beat()).known


@pytest.mark.heard_only("what the recovering call itself answers")
async def test_the_dead_are_named_once(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    await submit_many(engine, 2)
    await one.claim(2)
    await engine.recover_lost()
    lost: list[str] = []
    moved = 0
    for _ in range(8):
        clock.advance(1)
        await two.beat()
        answer = await engine.recover_lost()
        lost += answer.lost
        moved += answer.moved
    assert (lost, moved) == ([one.id], 2)


@pytest.mark.heard_only("how much one call moves")
async def test_a_call_is_bounded_and_says_that_there_is_more(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    ids = await submit_many(engine, 25)
    await one.claim(25)
    await engine.recover_lost()
    for _ in range(4):
        clock.advance(1)
        await two.beat()
        await engine.recover_lost()
    clock.advance(1)
    answers = [await engine.recover_lost(n=10)]
    while answers[-1].more:
        answers.append(await engine.recover_lost(n=10))
    assert all(answer.moved <= 10 for answer in answers)
    assert sum(answer.moved for answer in answers) == 25
    assert await states(engine, ids) == [State.PENDING] * 25
    assert {(await record(engine, id)).crashes for id in ids} == {1}


# Crashes are counted.


async def crash(engine: Engine, clock: ManualClock, id: str) -> Claimed:
    """A worker takes the task and dies."""
    one = await worker(engine)
    [task] = await one.claim()
    assert task.id == id
    await lose(engine, clock)
    return task


@pytest.mark.parametrize("max_crashes", [0, 1, 3])
async def test_a_task_that_kills_too_often_is_poison(engine: Engine, clock: ManualClock, max_crashes: int) -> None:
    id = await submit_one(engine, max_crashes=max_crashes)
    for crashes in range(1, max_crashes + 1):
        await crash(engine, clock, id)
        task = await record(engine, id)
        assert (task.state, task.crashes, task.failures) == (State.PENDING, crashes, 0)
    await crash(engine, clock, id)
    task = await record(engine, id)
    assert (task.state, task.crashes, task.executions) == (State.DEAD, max_crashes + 1, max_crashes + 1)
    assert task.error is not None
    assert task.error.code == "poison"
    assert task.finished_at is not None
    assert [attempt.outcome for attempt in await engine.attempts(id)] == ["crashed"] * (max_crashes + 1)


async def test_a_reported_crash_counts_like_a_found_one(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine, max_crashes=1)
    one = await worker(engine)
    await one.done(await one.claim_one(), ending=Ending.CRASHED)
    assert (await record(engine, id)).crashes == 1
    await crash(engine, clock, id)
    assert await state(engine, id) is State.DEAD


async def test_a_failure_between_does_not_forget_crashes(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine, max_crashes=1)
    await crash(engine, clock, id)
    one = await worker(engine)
    await one.done(await one.claim_one(), ending=Ending.RETRY)
    task = await record(engine, id)
    assert (task.crashes, task.failures, task.executions) == (1, 1, 2)
    await crash(engine, clock, id)
    assert await state(engine, id) is State.DEAD


async def test_what_waits_for_a_poisoned_task_hears_of_it(engine: Engine, clock: ManualClock) -> None:
    child = await submit_one(engine, max_crashes=0)
    parent = await submit_one(engine, edges=(Edge(child),))
    await crash(engine, clock, child)
    assert await states(engine, [child, parent]) == [State.DEAD, State.CANCELLED]


async def test_a_crash_is_counted_once_however_many_recover(store: Store, engine: Engine, clock: ManualClock) -> None:
    engines = [engine, *await store.engines(3)]
    one = await worker(engine)
    ids = await submit_many(engine, 20)
    await one.claim(20)
    await engine.recover_lost()
    for _ in range(6):
        clock.advance(1)
        await asyncio.gather(*(each.recover_lost() for each in engines))
    for id in ids:
        task = await record(engine, id)
        assert (task.state, task.crashes) == (State.PENDING, 1)
        assert len(await engine.attempts(id)) == 1


async def test_finish_and_recovery_racing(store: Store, engine: Engine, clock: ManualClock) -> None:
    other = await store.engine()
    one, two = await worker(engine), await worker(engine)
    ids = await submit_many(engine, 20)
    claimed = await one.claim(20)
    await pass_time(engine, clock, 4, two)
    clock.advance(1)
    await two.beat()
    answers = await asyncio.gather(*(one.finish(task) for task in claimed[:10]), other.recover_lost(), *(one.finish(task) for task in claimed[10:]))
    refused = {each.task for answer in answers for each in getattr(answer, "refused", ())}
    for id in ids:
        task = await record(engine, id)
        assert (task.state, task.crashes) == ((State.PENDING, 1) if id in refused else (State.COMPLETED, 0))


# Under unwind only the handler ends a task.


async def unwinding(engine: Engine, max_crashes: int = 0) -> tuple[Worker, str]:
    """A task that has done something it must be able to undo, held by this worker."""
    one = await worker(engine)
    id = await submit_one(engine, max_crashes=max_crashes)
    [task] = await one.claim()
    assert await engine.checkpoint([step(task, "charged", 1, unwind=True, phase="running")]) == ()
    return one, id


async def test_poison_under_unwind_makes_ready_with_the_reason(engine: Engine, clock: ManualClock) -> None:
    _, id = await unwinding(engine)
    two = await worker(engine)
    await lose(engine, clock, two)
    task = await record(engine, id)
    assert (task.state, task.must_end, task.unwind) == (State.PENDING, "poison", True)
    [claimed] = await two.claim()
    assert (claimed.id, claimed.unwind, claimed.must_end) == (id, True, "poison")
    assert set(claimed.checkpoints) == {"charged"}


async def test_below_max_crashes_unwind_changes_nothing(engine: Engine, clock: ManualClock) -> None:
    _, id = await unwinding(engine, max_crashes=3)
    await lose(engine, clock)
    task = await record(engine, id)
    assert (task.state, task.crashes, task.must_end) == (State.PENDING, 1, None)


async def test_a_compensation_that_kills_too_is_dead(engine: Engine, clock: ManualClock) -> None:
    _, id = await unwinding(engine)
    await lose(engine, clock)
    await crash(engine, clock, id)
    task = await record(engine, id)
    assert (task.state, task.phase) == (State.DEAD, "compensation_failed")
    assert task.error is not None
    assert task.error.code == "poison"


async def test_a_compensation_that_fails_is_dead(engine: Engine, clock: ManualClock) -> None:
    _, id = await unwinding(engine)
    two = await worker(engine)
    await lose(engine, clock, two)
    await two.done(await two.claim_one(), ending=Ending.DEAD)
    task = await record(engine, id)
    assert (task.state, task.phase) == (State.DEAD, "compensation_failed")


# The store's own pauses.


@pytest.mark.parametrize("pause", [3, 5, 60, 3600])
async def test_a_store_paused_for_most_of_a_lease_or_longer_loses_nothing(engine: Engine, clock: ManualClock, pause: int) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    [task] = await one.claim()
    await pass_time(engine, clock, 2, one)
    clock.advance(pause)
    await engine.recover_lost()
    assert await state(engine, id) is State.RUNNING
    clock.advance(2)
    await engine.recover_lost()
    beat = await one.beat()
    assert (beat.known, beat.lost) == (True, ())
    await pass_time(engine, clock, 10, one)
    await one.done(task)
    ended = await record(engine, id)
    assert (ended.state, ended.crashes, ended.executions) == (State.COMPLETED, 0, 1)


async def test_nothing_runs_twice_after_a_pause(store: Store, engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(await store.engine())
    ids = await submit_many(engine, 4)
    held = [*await one.claim(2), *await two.claim(2)]
    await pass_time(engine, clock, 1, one, two)
    for _ in range(3):
        clock.advance(20)
        await asyncio.gather(engine.recover_lost(), two.engine.recover_lost())
        assert await one.claim(10) == []
        await one.beat()
        await two.beat()
    assert [(task.state, task.crashes) for task in [await record(engine, id) for id in ids]] == [(State.RUNNING, 0)] * 4
    for task in held:
        await (one if task.worker == one.id else two).done(task)


async def test_a_worker_that_died_in_the_pause_is_found_one_lease_later(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine)
    await one.claim()
    await pass_time(engine, clock, 1, one, two)
    clock.advance(100)
    await engine.recover_lost()
    await two.beat()
    await pass_time(engine, clock, 3, two)
    assert await state(engine, id) is State.RUNNING
    await pass_time(engine, clock, 2, two)
    assert await state(engine, id) is State.PENDING
    assert (await two.beat()).known


async def test_the_first_look_ever_recovers_nothing(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.claim()
    clock.advance(30)
    await engine.recover_lost()
    assert await state(engine, id) is State.RUNNING
    assert (await one.beat()).known


async def test_a_new_engine_on_the_store_knows_the_marks_of_the_others(store: Store, engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.claim()
    await pass_time(engine, clock, 3)
    await pass_time(await store.engine(), clock, 3)
    assert (await record(engine, id)).crashes == 1


@pytest.mark.parametrize("by", [-DAY, -HOUR, HOUR, DAY])
async def test_a_wall_clock_that_is_set_loses_nothing_and_hides_nothing(engine: Engine, clock: ManualClock, by: int) -> None:
    one, two = await worker(engine), await worker(engine)
    kept, lost = await submit_many(engine, 2)
    [task] = await one.claim()
    await two.claim()
    await pass_time(engine, clock, 1, one, two)
    clock.step(by)
    await engine.recover_lost()
    assert await states(engine, [kept, lost]) == [State.RUNNING, State.RUNNING]
    await lose(engine, clock, one)
    assert await states(engine, [kept, lost]) == [State.RUNNING, State.PENDING]
    await one.done(task)


# Expiry.


async def test_what_has_expired_is_cancelled(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    until = clock.now() + 10 * SECOND
    retrying, snoozed, waiting, running, blocker = await submit(engine, *(new(n, expires_at=until) for n in range(4)), new())
    claimed = {task.id: task for task in await one.claim(10)}
    await one.done(claimed[retrying], ending=Ending.RETRY, after=HOUR)
    await one.done(claimed[snoozed], ending=Ending.SNOOZED, after=HOUR)
    await one.done(claimed[waiting], ending=Ending.WAITING, signals=("go",))
    scheduled, pending, behind = await submit(engine, new(expires_at=until, delay=HOUR), new(expires_at=until), new(expires_at=until, edges=(Edge(blocker),)))
    await pass_time(engine, clock, 9, one)
    waiters = [retrying, snoozed, waiting, scheduled, pending, behind]
    assert State.CANCELLED not in await states(engine, waiters)
    await pass_time(engine, clock, 1, one)
    for id in waiters:
        task = await record(engine, id)
        assert task.state is State.CANCELLED
        assert task.error is not None
        assert task.error.code == "expired"
    assert await states(engine, [running, blocker]) == [State.RUNNING, State.RUNNING]
    await one.done(claimed[running])
    assert await state(engine, running) is State.COMPLETED


async def test_a_running_task_that_expired_is_cancelled_when_it_would_run_again(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    id = await submit_one(engine, expires_at=clock.now() + SECOND)
    [task] = await one.claim()
    await pass_time(engine, clock, 2, one)
    await one.done(task, ending=Ending.RETRY)
    assert await one.claim() == []
    await engine.recover_lost()
    assert await state(engine, id) is State.CANCELLED


async def test_what_has_expired_under_unwind_becomes_ready_with_the_reason(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    id = await submit_one(engine, expires_at=clock.now() + 5 * SECOND)
    [task] = await one.claim()
    assert await engine.checkpoint([step(task, "charged", 1, unwind=True)]) == ()
    await one.done(task, ending=Ending.RETRY, after=HOUR)
    await pass_time(engine, clock, 6, one)
    expired = await record(engine, id)
    assert (expired.state, expired.must_end) == (State.PENDING, "expired")
    [again] = await one.claim()
    assert (again.id, again.must_end) == (id, "expired")


async def test_what_waits_for_an_expired_task_hears_of_it(engine: Engine, clock: ManualClock) -> None:
    child = await submit_one(engine, expires_at=clock.now() + SECOND)
    parent = await submit_one(engine, edges=(Edge(child),))
    await pass_time(engine, clock, 2)
    assert await states(engine, [child, parent]) == [State.CANCELLED, State.CANCELLED]


async def test_recovery_with_nothing_to_do(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 3)
    [task] = await one.claim()
    before = [await record(engine, id) for id in ids]
    await pass_time(engine, clock, 3, one)
    assert [await record(engine, id) for id in ids] == before
    await one.done(task)
    assert ids_of(await one.claim(10)) == ids[1:]


async def test_a_clock_set_back_keeps_no_pending_task_waiting(engine: Engine, clock: ManualClock) -> None:
    """Their time had come; and they keep their order among themselves."""
    ids = []
    for _ in range(5):
        ids.append(await submit_one(engine))
        clock.advance(1)
    later = await submit_one(engine, delay=HOUR)
    clock.step(-2 * HOUR)
    while (await engine.recover_lost()).more:
        pass
    one = await worker(engine)
    assert ids_of(await one.claim(10)) == ids
    assert await state(engine, later) is State.SCHEDULED


async def test_a_clock_set_back_while_a_task_runs(engine: Engine, clock: ManualClock) -> None:
    """It is given back with its age, and is due."""
    one = await worker(engine)
    id = await submit_one(engine)
    [claimed] = await one.claim()
    clock.step(-HOUR)
    await engine.recover_lost()
    await one.finish(claimed, ending=Ending.RELEASED)
    assert ids_of(await one.claim()) == [id]


async def test_a_clock_set_forward_and_right_again(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    clock.step(DAY)
    await engine.recover_lost()
    first = await submit_one(engine)
    clock.step(-DAY)
    await engine.recover_lost()
    second = await submit_one(engine)
    assert sorted(ids_of(await one.claim(5))) == sorted([first, second])
