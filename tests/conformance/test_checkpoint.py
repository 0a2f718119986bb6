"""checkpoint: what a running task has done so far is merged into it if and only if its lease is current."""

from __future__ import annotations

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Checkpoint, Ending, Engine, Target
from taskmill.task import Progress, State, new_id
from tests.conformance.tools import lose, record, state, step, submit_many, worker
from tests.conformance.tools_b import ENDED, NOT_RUNNING, make, make_unwinding

BACK_IN_LINE = [Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED]


@pytest.mark.parametrize("ending", BACK_IN_LINE)
async def test_steps_are_there_in_the_next_attempt(engine: Engine, ending: Ending) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert made.claimed.checkpoints == {}
    assert await engine.checkpoint([step(made.claimed, "charge", {"id": 7}), step(made.claimed, "mail", None)]) == ()
    assert await engine.checkpoint([step(made.claimed, "ship", [1, 2])]) == ()
    await made.holder.done(made.claimed, ending=ending)
    again = await made.holder.claim_one()
    assert again.checkpoints == {"charge": b'{"id":7}', "mail": b"null", "ship": b"[1,2]"}


async def test_steps_survive_the_death_of_the_worker(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, "charge", 7)]) == ()
    await lose(engine, clock)
    other = await worker(engine, queues=made.holder.queues)
    assert (await other.claim_one()).checkpoints == {"charge": b"7"}


async def test_a_name_has_one_value_the_last(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, "total", 1), step(made.claimed, "total", 2)]) == ()
    assert await engine.checkpoint([step(made.claimed, "total", 3)]) == ()
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    assert (await made.holder.claim_one()).checkpoints == {"total": b"3"}


async def test_progress_shows_and_the_last_one_wins(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, progress=Progress(0.25, "a quarter"))]) == ()
    assert (await record(engine, made.id)).progress == Progress(0.25, "a quarter")
    assert await engine.checkpoint([step(made.claimed, progress=Progress(0.5)), step(made.claimed, progress=Progress(0.75, "nearly"))]) == ()
    assert (await record(engine, made.id)).progress == Progress(0.75, "nearly")


async def test_progress_is_no_step(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, progress=Progress(0.5), phase="running")]) == ()
    await made.holder.done(made.claimed, ending=Ending.RETRY)
    again = await made.holder.claim_one()
    assert (again.checkpoints, again.unwind, again.phase) == ({}, False, "running")


async def test_the_phase_is_kept_until_it_is_set_anew(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, phase="running")]) == ()
    assert await engine.checkpoint([step(made.claimed, "one", 1)]) == ()
    assert (await record(engine, made.id)).phase == "running"
    assert await engine.checkpoint([step(made.claimed, phase="compensating")]) == ()
    assert (await record(engine, made.id)).phase == "compensating"


async def test_unwind_is_set_and_taken_back(engine: Engine) -> None:
    made = await make_unwinding(engine)
    assert made.claimed
    assert (await record(engine, made.id)).unwind
    assert await engine.checkpoint([step(made.claimed, "one", 1)]) == ()
    assert (await record(engine, made.id)).unwind
    assert await engine.checkpoint([step(made.claimed, unwind=False)]) == ()
    assert not (await record(engine, made.id)).unwind
    await made.holder.done(made.claimed, ending=Ending.SNOOZED, after=1)
    await engine.cancel([Target(made.id)])
    assert await state(engine, made.id) is State.CANCELLED


async def test_one_entry_can_carry_everything(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, "one", 1, progress=Progress(0.5), unwind=True, phase="running")]) == ()
    task = await record(engine, made.id)
    assert (task.progress, task.unwind, task.phase, task.state) == (Progress(0.5), True, "running", State.RUNNING)


async def test_a_stale_entry_stands_alone(engine: Engine) -> None:
    hand = await worker(engine)
    await submit_many(engine, 3)
    first, second, third = await hand.claim(3)
    stale = Checkpoint(task=second.id, worker=second.worker, token=second.token + 1_000, name="one")
    unknown = Checkpoint(task=new_id(), worker=second.worker, token=second.token, name="one")
    refused = await engine.checkpoint([step(first, "one", 1), stale, unknown, step(third, "one", 3)])
    assert {(each.task, each.token, each.code) for each in refused} == {
        (stale.task, stale.token, "stale_lease"),
        (unknown.task, unknown.token, "not_found"),
    }
    await hand.done(first, second, third, ending=Ending.RETRY)
    assert {task.id: dict(task.checkpoints) for task in await hand.claim(3)} == {first.id: {"one": b"1"}, second.id: {}, third.id: {"one": b"3"}}


async def test_the_right_token_of_another_worker_is_stale(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    entry = Checkpoint(task=made.id, worker="somebody-else", token=made.claimed.token, unwind=True)
    assert [each.code for each in await engine.checkpoint([entry])] == ["stale_lease"]
    assert not (await record(engine, made.id)).unwind


@pytest.mark.parametrize("now", [wanted for wanted in (*NOT_RUNNING, *ENDED) if wanted not in {State.PENDING, State.SCHEDULED}])
async def test_a_task_that_no_longer_runs_takes_none(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    assert made.claimed
    before = await record(engine, made.id)
    refused = await engine.checkpoint([step(made.claimed, "late", 1, progress=Progress(1.0), unwind=True, phase="late")])
    assert [each.code for each in refused] == ["stale_lease"]
    assert await record(engine, made.id) == before


async def test_the_old_lease_of_a_task_that_runs_again_takes_none(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await lose(engine, clock)
    other = await worker(engine, queues=made.holder.queues)
    current = await other.claim_one()
    assert [each.code for each in await engine.checkpoint([step(made.claimed, "late", 1)])] == ["stale_lease"]
    await other.done(current, ending=Ending.RETRY)
    assert (await other.claim_one()).checkpoints == {}


async def test_nothing_to_write(engine: Engine) -> None:
    assert await engine.checkpoint([]) == ()
