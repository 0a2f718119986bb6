"""The stale token at every write, and the transitions there are not: nothing is written, and the answer says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Claimed, Ending, Engine, Target
from taskmill.errors import Conflict, NotFound
from taskmill.task import Progress, State, new_id
from tests.conformance.tools import Worker, lose, new, outcome, pass_time, record, state, step, submit_one, worker

Fate = Callable[[Engine, ManualClock, Worker, Claimed], Awaitable[Claimed]]
"""What happens to a lease; answers the lease to write under afterwards, which must not be current."""


async def recovered(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await lose(engine, clock)
    return lease


async def poisoned(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await lose(engine, clock)
    assert await state(engine, lease.id) is State.DEAD
    return lease


async def running_elsewhere(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await lose(engine, clock)
    await (await worker(engine)).claim_one()
    return lease


async def released_and_taken_again_by_itself(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await one.done(lease, ending=Ending.RELEASED, started_after=None)
    await one.claim_one()
    return lease


async def given_back_by_a_beat(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await engine.heartbeat(one.id, one.request, [])
    return lease


async def given_back_by_leaving(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await engine.leave(one.id)
    return lease


async def of_another_worker(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    two = await worker(engine)
    return structs.replace(lease, worker=two.id)


async def of_a_stranger(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    return structs.replace(lease, worker="nobody")


async def with_a_wrong_token(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    return structs.replace(lease, token=lease.token + 1)


async def with_no_token(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    return structs.replace(lease, token=0)


async def of_another_task(engine: Engine, clock: ManualClock, one: Worker, lease: Claimed) -> Claimed:
    await submit_one(engine)
    return structs.replace(lease, token=(await one.claim_one()).token)


FATES: list[Fate] = [
    recovered,
    poisoned,
    running_elsewhere,
    released_and_taken_again_by_itself,
    given_back_by_a_beat,
    given_back_by_leaving,
    of_another_worker,
    of_a_stranger,
    with_a_wrong_token,
    with_no_token,
    of_another_task,
]

ALREADY_SO = {
    (recovered, Ending.CRASHED),
    (poisoned, Ending.CRASHED),
    (running_elsewhere, Ending.CRASHED),
    (released_and_taken_again_by_itself, Ending.RELEASED),
    (given_back_by_a_beat, Ending.RELEASED),
    (given_back_by_leaving, Ending.RELEASED),
}
"""The lease ended in this very way: whether a second report of it is refused is the store's affair, as long as it changes nothing."""

fates = pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.__name__)


async def stale_lease(engine: Engine, clock: ManualClock, fate: Fate) -> Claimed:
    one = await worker(engine)
    await submit_one(engine, max_crashes=0 if fate is poisoned else 3)
    await pass_time(engine, clock, 1, one)
    return await fate(engine, clock, one, await one.claim_one())


@fates
@pytest.mark.parametrize("ending", list(Ending))
async def test_finish_under_a_stale_lease(engine: Engine, clock: ManualClock, fate: Fate, ending: Ending) -> None:
    lease = await stale_lease(engine, clock, fate)
    before = await record(engine, lease.id)
    attempts = await engine.attempts(lease.id)
    follower = new("then")
    fields: dict[str, Any] = {"signals": ("go",)} if ending is Ending.WAITING else {}
    answer = await engine.finish([outcome(lease, ending, after=SECOND, result=b"1", then=(follower,), **fields)])
    if (fate, ending) not in ALREADY_SO:
        assert [(refused.task, refused.token, refused.code) for refused in answer.refused] == [(lease.id, lease.token, "stale_lease")]
    assert await record(engine, lease.id) == before
    assert await engine.attempts(lease.id) == attempts
    assert await engine.get([follower.id]) == (None,)


@fates
async def test_checkpoint_under_a_stale_lease(engine: Engine, clock: ManualClock, fate: Fate) -> None:
    lease = await stale_lease(engine, clock, fate)
    before = await record(engine, lease.id)
    entries = [step(lease, "done", 1), step(lease, progress=Progress(0.5)), step(lease, unwind=True), step(lease, phase="late")]
    refused = await engine.checkpoint(entries)
    assert [(each.task, each.token, each.code) for each in refused] == [(lease.id, lease.token, "stale_lease")] * 4
    assert await record(engine, lease.id) == before


@fates
async def test_a_beat_with_a_stale_lease_takes_nothing(engine: Engine, clock: ManualClock, fate: Fate) -> None:
    lease = await stale_lease(engine, clock, fate)
    if fate is of_another_task:
        return
    before = await record(engine, lease.id)
    beat = await engine.heartbeat(lease.worker, 0, [lease.token])
    assert not beat.known or beat.lost == (lease.token,)
    assert await record(engine, lease.id) == before


# One among good ones.


async def test_a_stale_outcome_does_not_hold_up_the_others_of_its_batch(engine: Engine) -> None:
    one = await worker(engine)
    ids = [await submit_one(engine) for _ in range(3)]
    first, stale, last = await one.claim(3)
    answer = await one.finish(first, structs.replace(stale, token=stale.token + 100), last)
    assert [refused.task for refused in answer.refused] == [stale.id]
    assert [await state(engine, id) for id in ids] == [State.COMPLETED, State.RUNNING, State.COMPLETED]
    await one.done(stale)


async def test_a_stale_checkpoint_does_not_hold_up_the_others_of_its_batch(engine: Engine) -> None:
    one = await worker(engine)
    await submit_one(engine)
    [task] = await one.claim()
    stale = structs.replace(task, token=task.token + 100)
    refused = await engine.checkpoint([step(task, "a", 1), step(stale, "b", 2), step(task, "c", 3)])
    assert [each.code for each in refused] == ["stale_lease"]
    await one.done(task, ending=Ending.RETRY)
    [again] = await one.claim()
    assert dict(again.checkpoints) == {"a": b"1", "c": b"3"}


# What never existed, never ran, or has ended.


async def test_writes_for_an_unknown_task(engine: Engine) -> None:
    one = await worker(engine)
    await submit_one(engine)
    [task] = await one.claim()
    unknown = structs.replace(task, id=new_id())
    assert [refused.code for refused in (await one.finish(unknown)).refused] == ["not_found"]
    assert [refused.code for refused in await engine.checkpoint([step(unknown, "a", 1)])] == ["not_found"]
    assert await state(engine, task.id) is State.RUNNING


async def test_writes_for_a_task_that_was_never_claimed(engine: Engine) -> None:
    one = await worker(engine)
    await submit_one(engine)
    [task] = await one.claim()
    id = await submit_one(engine)
    before = await record(engine, id)
    pending = structs.replace(task, id=id)
    for ending in Ending:
        assert [refused.code for refused in (await one.finish(pending, ending=ending, signals=("go",))).refused] == ["stale_lease"]
    assert [refused.code for refused in await engine.checkpoint([step(pending, "a", 1)])] == ["stale_lease"]
    assert await record(engine, id) == before


TERMINAL = [Ending.COMPLETED, Ending.DEAD, Ending.CANCELLED]


@pytest.mark.parametrize("second", list(Ending))
@pytest.mark.parametrize("first", TERMINAL)
async def test_an_end_is_absorbing(engine: Engine, clock: ManualClock, first: Ending, second: Ending) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    [task] = await one.claim()
    await one.done(task, ending=first, result=b'"first"')
    before = await record(engine, id)
    clock.advance(1)
    follower = new("then")
    answer = await one.finish(task, ending=second, result=b'"second"', signals=("go",), then=(follower,))
    assert await record(engine, id) == before
    assert len(await engine.attempts(id)) == 1
    if second is not first:
        assert [refused.code for refused in answer.refused] == ["stale_lease"]
    assert await engine.get([follower.id]) == (None,)
    assert [refused.code for refused in await engine.checkpoint([step(task, "late", 1)])] == ["stale_lease"]
    assert await one.claim(10) == []


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.DEAD])
async def test_what_has_ended_takes_no_cancel_and_no_signal(engine: Engine, ending: Ending) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.done(await one.claim_one(), ending=ending)
    before = await record(engine, id)
    [changed] = (await engine.cancel([Target(id)])).tasks
    assert (changed.done, changed.requested, changed.code) == (False, False, "terminal")
    with pytest.raises(Conflict) as refused:
        await engine.signal(id, "go", b"1", "signal-1")
    assert refused.value.code == "terminal"
    assert await record(engine, id) == before


@pytest.mark.parametrize("alive", ["pending", "scheduled", "running", "retrying", "waiting"])
async def test_what_is_alive_is_neither_requeued_nor_deleted(engine: Engine, alive: str) -> None:
    one = await worker(engine)
    id = await submit_one(engine, delay=SECOND if alive == "scheduled" else None)
    if alive not in {"pending", "scheduled"}:
        [task] = await one.claim()
        if alive == "retrying":
            await one.done(task, ending=Ending.RETRY, after=SECOND)
        elif alive == "waiting":
            await one.done(task, ending=Ending.WAITING, signals=("go",))
    before = await record(engine, id)
    assert before.state == alive
    for verb in (engine.requeue, engine.delete):
        [changed] = (await verb([Target(id)])).tasks
        assert (changed.done, changed.code) == (False, "not_terminal")
    assert await record(engine, id) == before


async def test_nothing_is_done_to_what_does_not_exist(engine: Engine) -> None:
    nowhere = new_id()
    for verb in (engine.cancel, engine.requeue, engine.delete):
        [changed] = (await verb([Target(nowhere)])).tasks
        assert (changed.done, changed.state, changed.code) == (False, None, "not_found")
    with pytest.raises(NotFound):
        await engine.signal(nowhere, "go", b"1", "signal-1")


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED, Ending.CRASHED, Ending.WAITING])
async def test_a_repeat_of_an_applied_outcome_after_the_task_has_moved_on(engine: Engine, ending: Ending) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine)
    [first] = await one.claim()
    applied = outcome(first, ending, signals=("go",) if ending is Ending.WAITING else ())
    assert (await engine.finish([applied])).refused == ()
    if ending is Ending.WAITING:
        await engine.signal(id, "go", b"1", "signal-1")
    [second] = await two.claim()
    before = await record(engine, id)
    assert (await engine.finish([applied])).refused == ()
    assert await record(engine, id) == before
    await two.done(second)


@pytest.mark.parametrize("first", [Ending.RETRY, Ending.SNOOZED, Ending.CRASHED, Ending.WAITING, Ending.RELEASED])
async def test_a_lease_ends_in_one_way_only(engine: Engine, first: Ending) -> None:
    """Whoever completes in a transaction of its own must hear that its attempt was ended as crashed before."""
    one = await worker(engine)
    id = await submit_one(engine)
    [task] = await one.claim()
    await one.done(task, ending=first, after=SECOND, signals=("go",) if first is Ending.WAITING else ())
    before = await record(engine, id)
    assert [refused.code for refused in (await one.finish(task)).refused] == ["stale_lease"]
    assert await record(engine, id) == before


async def test_an_old_version_changes_nothing(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.RETRY, after=SECOND)
    before = await record(engine, id)
    [changed] = (await engine.cancel([Target(id, 1)])).tasks
    assert (changed.done, changed.code) == (False, "stale_version")
    assert await record(engine, id) == before


async def test_an_older_lease_beside_the_current_one_in_one_batch(engine: Engine) -> None:
    """A process that lost a task and claimed it again reports both ends together: only the current one counts, and the other is told so."""
    id = await submit_one(engine)
    one = await worker(engine)
    old = await one.claim_one()
    await one.done(old, ending=Ending.RETRY)
    current = await one.claim_one()
    assert current.id == id
    finished = await engine.finish([outcome(old), outcome(current)])
    assert [(refusal.token, refusal.code) for refusal in finished.refused] == [(old.token, "stale_lease")]
    assert (await record(engine, id)).state is State.COMPLETED
