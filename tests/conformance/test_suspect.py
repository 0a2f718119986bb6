"""What a task is suspected of stands in its record: every worker that gets it knows, until it has completed or an operator says otherwise."""

from __future__ import annotations

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Target
from taskmill.task import State
from tests.conformance.tools import Store, lose, record, submit_one, worker

AGAIN = (Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.WAITING)


@pytest.mark.parametrize("killed", [False, True])
async def test_the_next_worker_knows_a_suspect(store: Store, engine: Engine, *, killed: bool) -> None:
    one, two = await worker(engine), await worker(await store.engine())
    id = await submit_one(engine)
    claimed = await one.claim_one()
    assert not claimed.suspect
    assert not (await record(engine, id)).suspect
    if killed:
        await one.done(claimed, ending=Ending.RETRY, suspect=True)
    else:
        await one.done(claimed, ending=Ending.CRASHED)
    assert (await record(engine, id)).suspect
    again = await two.claim_one()
    assert (again.id, again.suspect) == (id, True)
    assert (await record(engine, id)).suspect


async def test_a_task_that_failed_is_no_suspect(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    for ending in AGAIN:
        fields = {"signals": ("go",), "deadline": 0} if ending is Ending.WAITING else {}
        await one.done(await one.claim_one(), ending=ending, **fields)
        assert not (await record(engine, id)).suspect


async def test_it_stays_one_over_other_endings(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine, max_crashes=9)
    await one.done(await one.claim_one(), ending=Ending.CRASHED)
    for ending in (*AGAIN, Ending.CRASHED):
        claimed = await one.claim_one()
        assert claimed.suspect
        fields = {"signals": ("go",), "deadline": 0} if ending is Ending.WAITING else {}
        await one.done(claimed, ending=ending, **fields)
    await one.claim_one()
    await lose(engine, clock, two)
    assert (await two.claim_one()).suspect
    assert (await record(engine, id)).suspect


async def test_a_lost_worker_makes_no_suspect(engine: Engine, clock: ManualClock) -> None:
    """Its machine may have gone; after two crashes the number of them speaks for itself."""
    one, two = await worker(engine), await worker(engine)
    await submit_one(engine)
    await one.claim_one()
    await lose(engine, clock, two)
    again = await two.claim_one()
    assert (again.crashes, again.suspect) == (1, False)


async def test_a_killed_one_that_waits_is_a_suspect(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.SNOOZED, suspect=True)
    assert (await record(engine, id)).suspect


async def test_a_completed_one_is_cleared(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.CRASHED)
    await one.done(await one.claim_one())
    assert not (await record(engine, id)).suspect


async def test_a_dead_one_keeps_it_until_it_is_requeued(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine, max_crashes=0)
    await one.done(await one.claim_one(), ending=Ending.CRASHED)
    dead = await record(engine, id)
    assert (dead.state, dead.suspect) == (State.DEAD, True)
    await engine.requeue([Target(id, dead.version)])
    assert not (await record(engine, id)).suspect
    assert not (await one.claim_one()).suspect


async def test_a_timeout_that_killed_and_ended_it_is_seen(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.DEAD, suspect=True)
    assert (await record(engine, id)).suspect
