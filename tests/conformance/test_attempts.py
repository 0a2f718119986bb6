"""attempts: every execution leaves a record: number, worker, start, end, outcome, error."""

from __future__ import annotations

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Ending, Engine, Target
from taskmill.errors import Expired, NotFound
from taskmill.task import ErrorInfo, State, new_id
from tests.conformance.tools import lose, submit_one, worker
from tests.conformance.tools_b import make

ENDINGS = [
    (Ending.COMPLETED, "completed"),
    (Ending.RETRY, "failed"),
    (Ending.DEAD, "failed"),
    (Ending.SNOOZED, "snoozed"),
    (Ending.WAITING, "waiting"),
    (Ending.CANCELLED, "cancelled"),
    (Ending.RELEASED, "released"),
    (Ending.CRASHED, "crashed"),
]


@pytest.mark.parametrize(("ending", "expected"), ENDINGS)
async def test_every_ending_is_recorded(engine: Engine, clock: ManualClock, ending: Ending, expected: str) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    claimed_at = clock.now()
    clock.advance(10)
    await made.holder.done(made.claimed, ending=ending, started_after=2 * SECOND, signals=("go",))
    [attempt] = await engine.attempts(made.id)
    assert (attempt.number, attempt.worker, attempt.token, attempt.outcome) == (1, made.holder.id, made.claimed.token, expected)
    assert (attempt.started_at, attempt.ended_at) == (claimed_at + 2 * SECOND, clock.now())
    assert (attempt.error is not None) == (ending in {Ending.RETRY, Ending.DEAD})


async def test_one_record_per_execution_oldest_first(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine)
    workers = [await worker(engine) for _ in range(4)]
    tokens = []
    for number, (hand, ending) in enumerate(zip(workers, [Ending.RETRY, Ending.SNOOZED, Ending.CRASHED, Ending.COMPLETED], strict=True)):
        claimed = await hand.claim_one()
        tokens.append(claimed.token)
        await hand.done(claimed, ending=ending, **({"error": ErrorInfo("oops", str(number))} if ending is Ending.RETRY else {}))
        clock.advance(1)
    attempts = await engine.attempts(id)
    assert [attempt.number for attempt in attempts] == [1, 2, 3, 4]
    assert [attempt.worker for attempt in attempts] == [hand.id for hand in workers]
    assert [attempt.token for attempt in attempts] == tokens
    assert [attempt.outcome for attempt in attempts] == ["failed", "snoozed", "crashed", "completed"]
    assert attempts[0].error == ErrorInfo("oops", "0")
    assert [attempt.error for attempt in attempts[1:]] == [None, None, None]


async def test_the_one_that_runs_has_no_end(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    [attempt] = await engine.attempts(made.id)
    assert (attempt.number, attempt.worker, attempt.token, attempt.ended_at, attempt.outcome) == (1, made.holder.id, made.claimed.token, None, None)


async def test_a_task_that_never_ran_has_none(engine: Engine) -> None:
    assert await engine.attempts((await make(engine, State.PENDING)).id) == ()


async def test_a_lost_worker_leaves_a_crash(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    await lose(engine, clock)
    [attempt] = await engine.attempts(made.id)
    assert (attempt.number, attempt.worker, attempt.outcome) == (1, made.holder.id, "crashed")
    assert attempt.ended_at is not None


async def test_a_requested_cancel_is_recorded_as_it_came_to_be(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await engine.cancel([Target(made.id)])
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    [attempt] = await engine.attempts(made.id)
    assert attempt.ended_at is not None
    assert attempt.outcome in {"cancelled", "failed"}


async def test_requeue_goes_on_counting(engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    for _ in range(3):
        await engine.requeue([Target(made.id)])
        await made.holder.done(await made.holder.claim_one(), ending=Ending.DEAD)
    assert [(attempt.number, attempt.outcome) for attempt in await engine.attempts(made.id)] == [(number, "failed") for number in (1, 2, 3, 4)]


async def test_unknown_and_gone(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.attempts(new_id())
    made = await make(engine, State.DEAD)
    await engine.delete([Target(made.id)])
    with pytest.raises(Expired):
        await engine.attempts(made.id)
