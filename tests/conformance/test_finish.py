"""finish: each outcome is applied if and only if its lease is current; every ending has one meaning."""

from __future__ import annotations

from typing import Any

import pytest

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Finished, Outcome, Target
from taskmill.task import ErrorInfo, Progress, State, Task, new_id
from tests.conformance.tools import Store, ids_of, last_attempt, lose, new, outcome, record, state, states, step, submit_many, submit_one, worker
from tests.conformance.tools_b import make, make_unwinding

BACK_IN_LINE = [Ending.RETRY, Ending.SNOOZED, Ending.WAITING, Ending.RELEASED, Ending.CRASHED]
EVERY_FIELD: dict[Ending, dict[str, Any]] = {Ending.COMPLETED: {"result": b"1"}, Ending.WAITING: {"signals": ("go",)}}


async def test_completed_keeps_the_result_and_the_times(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine)
    began = clock.now()
    hand = await worker(engine)
    claimed = await hand.claim_one()
    clock.advance("2s")
    await hand.done(claimed, result=b'{"sum": 3}', started_after=SECOND)
    task = await record(engine, id)
    assert (task.state, task.result, task.error) == (State.COMPLETED, b'{"sum": 3}', None)
    assert (task.executions, task.failures, task.crashes) == (1, 0, 0)
    assert (task.created_at, task.finished_at, task.updated_at) == (began, clock.now(), clock.now())
    assert task.version == claimed.version + 1


async def test_completed_without_a_result(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed)
    assert (await record(engine, made.id)).result is None


async def test_retry_counts_a_failure_and_waits_for_its_time(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine)
    hand = await worker(engine)
    claimed = await hand.claim_one()
    await hand.done(claimed, ending=Ending.RETRY, after=MINUTE, error=ErrorInfo("value_error", "no", "line 1"))
    task = await record(engine, id)
    assert (task.state, task.failures, task.executions, task.run_at) == (State.RETRYING, 1, 1, clock.now() + MINUTE)
    assert (await last_attempt(engine, id)).error == ErrorInfo("value_error", "no", "line 1")
    clock.advance("59s")
    assert await hand.claim() == []
    clock.advance("1s")
    assert await state(engine, id) is State.PENDING
    again = await hand.claim_one()
    assert (again.id, again.attempt, again.failures) == (id, 2, 1)
    assert again.token > claimed.token


async def test_dead_keeps_the_error(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    error = ErrorInfo("fail", "no such user", "line 1\nline 2")
    await made.holder.done(made.claimed, ending=Ending.DEAD, error=error)
    task = await record(engine, made.id)
    assert (task.state, task.error, task.failures, task.finished_at) == (State.DEAD, error, 1, clock.now())
    assert (await last_attempt(engine, made.id)).error == error


async def test_snoozed_is_no_failure(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.SNOOZED, after=MINUTE)
    task = await record(engine, made.id)
    assert (task.state, task.failures, task.executions, task.run_at) == (State.SCHEDULED, 0, 1, clock.now() + MINUTE)
    assert (await last_attempt(engine, made.id)).outcome == "snoozed"
    assert await made.holder.claim() == []
    clock.advance(60)
    assert (await made.holder.claim_one()).attempt == 2


async def test_released_unstarted_gives_its_number_back(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.RELEASED, started_after=None)
    task = await record(engine, made.id)
    assert (task.state, task.executions, task.failures, task.crashes) == (State.PENDING, 0, 0, 0)
    assert await engine.attempts(made.id) == ()
    again = await made.holder.claim_one()
    assert again.attempt == 1
    assert again.token > made.claimed.token


async def test_released_after_its_start_uses_its_number(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.RELEASED, started_after=5)
    assert (await record(engine, made.id)).executions == 1
    assert (await last_attempt(engine, made.id)).outcome == "released"
    assert (await made.holder.claim_one()).attempt == 2


@pytest.mark.parametrize("ending", [Ending.RELEASED, Ending.CRASHED])
async def test_what_comes_back_keeps_its_age(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    hand = await worker(engine)
    first = await submit_one(engine)
    clock.advance(1)
    second = await submit_one(engine)
    claimed = await hand.claim_one()
    assert claimed.id == first
    clock.advance(1)
    await hand.done(claimed, ending=ending, started_after=None)
    assert ids_of(await hand.claim(2)) == [first, second]


async def test_a_retry_stands_behind_what_became_ready_before_it(engine: Engine, clock: ManualClock) -> None:
    hand = await worker(engine)
    first, second = await submit_many(engine, 2)
    claimed = await hand.claim_one()
    clock.advance(1)
    await hand.done(claimed, ending=Ending.RETRY, after=0)
    assert ids_of(await hand.claim(2)) == [second, first]


async def test_crashed_counts_and_is_poison_at_last(engine: Engine) -> None:
    id = await submit_one(engine, max_crashes=2)
    hand = await worker(engine)
    for crashes in (1, 2):
        await hand.done(await hand.claim_one(), ending=Ending.CRASHED)
        task = await record(engine, id)
        assert (task.state, task.crashes, task.failures) == (State.PENDING, crashes, 0)
        assert (await last_attempt(engine, id)).outcome == "crashed"
    await hand.done(await hand.claim_one(), ending=Ending.CRASHED)
    task = await record(engine, id)
    assert (task.state, task.crashes) == (State.DEAD, 3)
    assert task.error
    assert task.error.code == "poison"


async def test_cancelled_by_its_handler(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.CANCELLED)
    task = await record(engine, made.id)
    assert (task.state, task.finished_at, task.failures) == (State.CANCELLED, clock.now(), 0)
    assert (await last_attempt(engine, made.id)).outcome == "cancelled"


async def test_a_row_that_is_refused_stands_alone(engine: Engine) -> None:
    hand = await worker(engine)
    ids = await submit_many(engine, 3)
    first, second, third = await hand.claim(3)
    outcomes = [outcome(first, result=b"1"), outcome(second, then=(new(type="NO NAME"),)), outcome(third, result=b"3")]
    answer = await engine.finish(outcomes)
    assert [(refused.task, refused.token) for refused in answer.refused] == [(second.id, second.token)]
    assert answer.refused[0].code == "refused"
    assert await states(engine, ids) == [State.COMPLETED, State.RUNNING, State.COMPLETED]
    await hand.done(second)


async def test_a_stale_row_stands_alone(engine: Engine) -> None:
    hand = await worker(engine)
    ids = await submit_many(engine, 3)
    first, second, third = await hand.claim(3)
    stale = Outcome(task=second.id, worker=second.worker, token=second.token + 1_000, ending=Ending.COMPLETED)
    unknown = Outcome(task=new_id(), worker=second.worker, token=second.token, ending=Ending.COMPLETED)
    answer = await engine.finish([outcome(first), stale, unknown, outcome(third)])
    assert {(refused.task, refused.code) for refused in answer.refused} == {(second.id, "stale_lease"), (unknown.task, "not_found")}
    assert await states(engine, ids) == [State.COMPLETED, State.RUNNING, State.COMPLETED]


async def test_nothing_to_finish(engine: Engine) -> None:
    assert await engine.finish([]) == Finished()


@pytest.mark.parametrize("ending", list(Ending))
async def test_a_repeat_is_not_refused_and_changes_nothing(engine: Engine, ending: Ending) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    end = outcome(made.claimed, ending, **EVERY_FIELD.get(ending, {}))
    assert (await engine.finish([end])).refused == ()
    before, attempts = await record(engine, made.id), await engine.attempts(made.id)
    assert (await engine.finish([end])).refused == ()
    assert (await engine.finish([end, end])).refused == ()
    assert await record(engine, made.id) == before
    assert await engine.attempts(made.id) == attempts


async def test_a_repeat_that_comes_after_the_next_claim_changes_nothing(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    end = outcome(made.claimed, Ending.RETRY)
    assert (await engine.finish([end])).refused == ()
    again = await made.holder.claim_one()
    before = await record(engine, made.id)
    assert (await engine.finish([end])).refused == ()
    assert await record(engine, made.id) == before
    await made.holder.done(again)
    assert (await engine.finish([end])).refused == ()
    assert await state(engine, made.id) is State.COMPLETED


async def test_another_ending_after_the_end_changes_nothing(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, result=b"1")
    await engine.finish([outcome(made.claimed, Ending.DEAD)])
    task = await record(engine, made.id)
    assert (task.state, task.result, task.error) == (State.COMPLETED, b"1", None)


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.CRASHED])
async def test_a_lost_lease_writes_nothing(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await lose(engine, clock)
    other = await worker(engine, queues=made.holder.queues)
    current = await other.claim_one()
    before = await record(engine, made.id)
    follower = new()
    answer = await engine.finish([outcome(made.claimed, ending, then=(follower,), **EVERY_FIELD.get(ending, {}))])
    assert [(refused.task, refused.token, refused.code) for refused in answer.refused] == [(made.id, made.claimed.token, "stale_lease")]
    assert await record(engine, made.id) == before
    assert await engine.get([follower.id]) == (None,)
    await other.done(current)


async def test_the_right_token_of_another_worker_is_stale(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    other = await worker(engine)
    answer = await engine.finish([Outcome(task=made.id, worker=other.id, token=made.claimed.token, ending=Ending.COMPLETED)])
    assert [refused.code for refused in answer.refused] == ["stale_lease"]
    assert await state(engine, made.id) is State.RUNNING


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.DEAD])
async def test_a_requested_cancel_does_not_undo_an_end(engine: Engine, ending: Ending) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await engine.cancel([Target(made.id)])
    answer = await made.holder.finish(made.claimed, ending=ending)
    assert (answer.refused, dict(answer.instead)) == ((), {})
    assert await state(engine, made.id) is (State.COMPLETED if ending is Ending.COMPLETED else State.DEAD)


@pytest.mark.parametrize("ending", BACK_IN_LINE)
async def test_a_requested_cancel_ends_what_would_go_on(engine: Engine, ending: Ending) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await engine.cancel([Target(made.id)])
    answer = await made.holder.finish(made.claimed, ending=ending, **EVERY_FIELD.get(ending, {}))
    assert answer.refused == ()
    assert dict(answer.instead) == {made.id: State.CANCELLED}
    task = await record(engine, made.id)
    assert (task.state, task.result) == (State.CANCELLED, None)
    assert await made.holder.claim() == []


@pytest.mark.parametrize("ending", BACK_IN_LINE)
async def test_a_requested_cancel_of_what_must_unwind_makes_it_ready(engine: Engine, ending: Ending) -> None:
    made = await make_unwinding(engine)
    assert made.claimed
    await engine.cancel([Target(made.id)])
    await made.holder.done(made.claimed, ending=ending, **EVERY_FIELD.get(ending, {}))
    task = await record(engine, made.id)
    assert (task.state, task.must_end, task.cancel_requested) == (State.PENDING, "cancelled", False)
    again = await made.holder.claim_one()
    assert (again.unwind, again.must_end) == (True, "cancelled")
    await made.holder.done(again, ending=Ending.CANCELLED)
    assert await state(engine, made.id) is State.CANCELLED


async def test_poison_that_must_unwind_gets_another_turn_and_then_is_dead(engine: Engine) -> None:
    made = await make_unwinding(engine, max_crashes=0)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.CRASHED)
    task = await record(engine, made.id)
    assert (task.state, task.must_end) == (State.PENDING, "poison")
    again = await made.holder.claim_one()
    assert again.must_end == "poison"
    await made.holder.done(again, ending=Ending.CRASHED)
    task = await record(engine, made.id)
    assert (task.state, task.phase) == (State.DEAD, "compensation_failed")


async def test_a_compensation_that_its_handler_gives_up_is_dead(engine: Engine) -> None:
    made = await make_unwinding(engine)
    assert made.claimed
    await engine.cancel([Target(made.id)])
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    await made.holder.done(await made.holder.claim_one(), ending=Ending.DEAD)
    task = await record(engine, made.id)
    assert (task.state, task.phase) == (State.DEAD, "compensation_failed")


async def test_progress_and_lease_are_over_with_the_end(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, progress=Progress(0.5, "half"))]) == ()
    await made.holder.done(made.claimed)
    beat = await made.holder.beat()
    assert (beat.known, beat.lost) == (True, ())
    assert await engine.checkpoint([step(made.claimed, "late")]) != ()


async def test_a_large_batch_of_every_ending(engine: Engine, store: Store) -> None:
    endings = [Ending.COMPLETED, Ending.RETRY, Ending.DEAD, Ending.SNOOZED, Ending.CANCELLED, Ending.RELEASED, Ending.CRASHED, Ending.WAITING]
    ids = await submit_many(engine, 400)
    hand = await worker(engine)
    claimed = {task.id: task for task in await hand.claim_all()}
    chosen = {id: endings[n % 8] for n, id in enumerate(ids)}
    answer = await engine.finish([outcome(claimed[id], ending, after=MINUTE, **EVERY_FIELD.get(ending, {})) for id, ending in chosen.items()])
    assert answer.refused == ()
    expected = [State.COMPLETED, State.RETRYING, State.DEAD, State.SCHEDULED, State.CANCELLED, State.PENDING, State.PENDING, State.WAITING]
    other = await store.engine()
    found = await other.get(ids)
    assert [task.state for task in found if isinstance(task, Task)] == expected * 50
