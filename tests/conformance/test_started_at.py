"""When a task began: a running one shows it once its worker has said so, and a claimed one can be told from a running one."""

from __future__ import annotations

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Ending, Engine
from taskmill.task import Progress, State
from tests.conformance.tools import lose, record, step, submit_one, worker
from tests.conformance.tools_b import make


async def test_a_claimed_task_has_not_begun(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert (await record(engine, made.id)).started_at is None


async def test_a_checkpoint_says_when_it_began(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    before = await record(engine, made.id)
    clock.advance(5)
    assert await engine.checkpoint([step(made.claimed, started_after=2 * SECOND)]) == ()
    task = await record(engine, made.id)
    assert task.started_at == made.claimed.claimed_at + 2 * SECOND
    assert (task.state, task.version) == (State.RUNNING, before.version)
    [listed] = (await engine.list()).tasks
    assert listed.started_at == task.started_at


async def test_it_says_so_beside_other_things(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    claimed = made.claimed
    assert await engine.checkpoint([step(claimed, "one", 1, started_after=7), step(claimed, progress=Progress(0.5))]) == ()
    task = await record(engine, made.id)
    assert (task.started_at, task.progress) == (claimed.claimed_at + 7, Progress(0.5))
    await made.holder.done(claimed, ending=Ending.RETRY)
    assert (await made.holder.claim_one()).checkpoints == {"one": b"1"}


async def test_saying_it_makes_no_step(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, started_after=7)]) == ()
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    assert (await made.holder.claim_one()).checkpoints == {}


async def test_under_an_old_lease_nothing_is_said(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine)
    old = await one.claim_one()
    await lose(engine, clock, two)
    [refused] = await engine.checkpoint([step(old, started_after=1)])
    assert refused.code == "stale_lease"
    await two.claim_one()
    [refused] = await engine.checkpoint([step(old, started_after=1)])
    assert refused.code == "stale_lease"
    assert (await record(engine, id)).started_at is None


@pytest.mark.parametrize("said", [False, True])
async def test_the_end_says_when_it_had_begun(engine: Engine, clock: ManualClock, *, said: bool) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    if said:
        assert await engine.checkpoint([step(made.claimed, started_after=3)]) == ()
    clock.advance(1)
    await made.holder.done(made.claimed, started_after=3)
    task = await record(engine, made.id)
    [attempt] = await engine.attempts(made.id)
    assert (task.started_at, attempt.started_at) == (made.claimed.claimed_at + 3, made.claimed.claimed_at + 3)


async def test_the_next_attempt_has_not_begun(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, started_after=3)]) == ()
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    await made.holder.claim_one()
    assert (await record(engine, made.id)).started_at is None


async def test_the_running_attempt_is_shown(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    [attempt] = await engine.attempts(made.id)
    assert (attempt.number, attempt.token, attempt.worker, attempt.ended_at, attempt.outcome) == (1, made.claimed.token, made.holder.id, None, None)
    assert await engine.checkpoint([step(made.claimed, started_after=9)]) == ()
    [attempt] = await engine.attempts(made.id)
    assert (attempt.started_at, attempt.ended_at) == (made.claimed.claimed_at + 9, None)
