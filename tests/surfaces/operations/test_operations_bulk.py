"""cancel, requeue, delete, purge on many tasks: to the end of a filter, told as it goes, or only counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Call, Ending, Engine, Filter, Target
from taskmill.errors import InvalidInput, NotFound
from taskmill.operations import Operations, Tally, bulk
from taskmill.task import LIVE, TERMINAL, State
from tests.conformance.tools import all_tasks, new, states, step, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import make, make_unwinding

SIZE = bulk.BATCH
NOBODY = "00000000-0000-7000-8000-000000000000"
DEFAULT = Filter(queues=frozenset({"default"}))


async def one_of_each(engine: Engine) -> dict[State, str]:
    return {state: (await make(engine, state)).id for state in State}


async def snapshot(engine: Engine) -> dict[str, tuple[State, int]]:
    return {task.id: (task.state, task.version) for task in await all_tasks(engine)}


@pytest.mark.parametrize("which", [NOBODY, [NOBODY], (None,)])
async def test_what_says_no_tasks_is_refused(operations: Operations, which: Any) -> None:
    for verb in (operations.cancel, operations.requeue, operations.delete):
        for dry_run in (False, True):
            with pytest.raises(InvalidInput, match="Target") as refused:
                await verb(which, dry_run=dry_run)
            assert refused.value.field == "which"


# Cancel


async def test_cancel_to_the_end_of_a_filter(operations: Operations, engine: Engine, calls: list[Call]) -> None:
    told: list[int] = []
    ids = await submit_many(engine, 2 * SIZE + 3)
    other = await submit_one(engine, queue="other")
    tally = await operations.cancel(DEFAULT, progress=told.append)
    assert tally == Tally(matched=2 * SIZE + 3, done=2 * SIZE + 3)
    assert told == [SIZE, 2 * SIZE, 2 * SIZE + 3]
    assert set(await states(engine, ids)) == {State.CANCELLED}
    assert await states(engine, [other]) == [State.PENDING]
    assert [call.verb for call in calls].count("cancel") == 3


async def test_cancel_means_the_living(operations: Operations, engine: Engine) -> None:
    made = await one_of_each(engine)
    assert await operations.cancel(Filter()) == Tally(matched=5, done=4, requested=1)
    for state in LIVE - {State.RUNNING}:
        assert (await operations.get(made[state])).state is State.CANCELLED
    running = await operations.get(made[State.RUNNING])
    assert (running.state, running.cancel_requested) == (State.RUNNING, True)
    assert (await operations.get(made[State.DEAD])).state is State.DEAD


async def test_cancel_again_does_nothing_more(operations: Operations, engine: Engine) -> None:
    ids = await submit_many(engine, 3)
    await operations.cancel([Target(id) for id in ids])
    before = await snapshot(engine)
    assert await operations.cancel([Target(id) for id in ids]) == Tally(matched=3, done=3)
    assert await operations.cancel(DEFAULT) == Tally()
    assert await snapshot(engine) == before


async def test_targets_that_cannot_be_cancelled_are_counted_by_code(operations: Operations, engine: Engine) -> None:
    live = await submit_one(engine)
    dead = await make(engine, State.DEAD)
    gone = await make(engine, State.COMPLETED)
    await operations.delete([Target(gone.id)])
    told: list[int] = []
    targets = [Target(live), Target(dead.id), Target(NOBODY), Target(gone.id), Target(await submit_one(engine), version=7)]
    assert await operations.cancel(targets, progress=told.append) == Tally(
        matched=5, done=1, refused={"expired": 1, "not_found": 1, "stale_version": 1, "terminal": 1}
    )
    assert told == [5]


async def test_many_targets_go_in_batches(operations: Operations, engine: Engine, calls: list[Call]) -> None:
    ids = await submit_many(engine, SIZE + 1)
    assert (await operations.cancel([Target(id) for id in ids])).done == SIZE + 1
    assert [call.size for call in calls if call.verb == "cancel"] == [SIZE, 1]


async def test_those_submitted_meanwhile_are_not_meant(operations: Operations, engine: Engine) -> None:
    """The cursor goes from the newest to the oldest, so it comes to an end however fast others submit."""
    await submit_many(engine, SIZE + 1)
    late = new()
    submitting: list[asyncio.Task[list[str]]] = []

    def tell(_: int) -> None:
        if not submitting:
            submitting.append(asyncio.ensure_future(submit(engine, late)))

    assert (await operations.cancel(DEFAULT, progress=tell)).done == SIZE + 1
    await asyncio.gather(*submitting)
    assert await states(engine, [late.id]) == [State.PENDING]


# Requeue


async def test_requeue_takes_the_dead_unless_told(operations: Operations, engine: Engine) -> None:
    made = await one_of_each(engine)
    assert await operations.requeue(Filter()) == Tally(matched=1, done=1)
    assert (await operations.get(made[State.DEAD])).state is State.PENDING
    assert (await operations.get(made[State.COMPLETED])).state is State.COMPLETED
    assert await operations.requeue(Filter(states=frozenset({State.COMPLETED, State.CANCELLED, State.RUNNING}))) == Tally(matched=2, done=2)


async def test_requeue_keeps_checkpoints_or_not(operations: Operations, engine: Engine) -> None:
    for from_start, kept in ((False, {"step": b"1"}), (True, {})):
        made = await make(engine, State.RUNNING)
        assert made.claimed is not None
        await engine.checkpoint([step(made.claimed, "step", 1)])
        await made.holder.done(made.claimed, ending=Ending.DEAD)
        assert (await operations.requeue([Target(made.id)], from_start=from_start)).done == 1
        assert (await made.holder.claim_one()).checkpoints == kept


async def test_requeue_of_a_live_one_is_refused(operations: Operations, engine: Engine) -> None:
    live = await submit_one(engine)
    assert await operations.requeue([Target(live)]) == Tally(matched=1, refused={"not_terminal": 1})


# Delete


async def test_delete_takes_the_ended(operations: Operations, engine: Engine) -> None:
    made = await one_of_each(engine)
    told: list[int] = []
    assert await operations.delete(Filter(), progress=told.append) == Tally(matched=3, done=3)
    assert told == [3]
    assert {task.id for task in await all_tasks(engine)} == {made[state] for state in LIVE}
    assert await operations.delete(Filter()) == Tally()


async def test_delete_owed_ones_says_so(operations: Operations, engine: Engine) -> None:
    await engine.put("outbox", "ended", b"{}")
    made = await make(engine, State.COMPLETED)
    assert await operations.delete([Target(made.id)]) == Tally(matched=1, refused={"undelivered": 1})


# Only counted


@pytest.mark.parametrize("verb", ["cancel", "requeue", "delete"])
async def test_a_dry_run_counts_what_the_verb_would_do_and_changes_nothing(operations: Operations, engine: Engine, verb: str) -> None:
    await one_of_each(engine)
    await submit_many(engine, 7)
    before = await snapshot(engine)
    told: list[int] = []
    do = getattr(operations, verb)
    counted = await do(Filter(), dry_run=True, progress=told.append)
    assert await snapshot(engine) == before
    assert counted == Tally(matched=counted.matched)
    assert told == [counted.matched]
    done = await do(Filter())
    assert done.matched == counted.matched > 0
    assert await snapshot(engine) != before


@pytest.mark.parametrize(("verb", "which"), [("cancel", LIVE), ("requeue", TERMINAL), ("delete", TERMINAL)], ids=["cancel", "requeue", "delete"])
async def test_a_dry_run_of_targets(operations: Operations, engine: Engine, verb: str, which: frozenset[State]) -> None:
    made = await one_of_each(engine)
    before = await snapshot(engine)
    tally = await getattr(operations, verb)([*(Target(id) for id in made.values()), Target(NOBODY)], dry_run=True)
    assert tally == Tally(matched=len(which))
    assert await snapshot(engine) == before


async def test_a_dry_run_follows_the_cursors(operations: Operations, engine: Engine) -> None:
    await submit_many(engine, 1_000 + 1)
    told: list[int] = []
    assert (await operations.cancel(DEFAULT, dry_run=True, progress=told.append)).matched == 1_000 + 1
    assert told == [1_000, 1_001]


@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", State.DEAD), ("requeue", State.PENDING), ("delete", State.RUNNING)], ids=["cancel", "requeue", "delete"]
)
async def test_a_state_in_which_the_verb_means_nothing(operations: Operations, verb: str, state: State) -> None:
    with pytest.raises(InvalidInput, match=state) as raised:
        await getattr(operations, verb)(Filter(states=frozenset({state})))
    assert (raised.value.code, raised.value.field) == ("wrong_state", "states")
    assert raised.value.hint is not None
    assert state not in raised.value.hint


# Purge


async def test_purge_removes_what_waits_and_only_that(operations: Operations, engine: Engine) -> None:
    hand = await worker(engine, queues=("mail",))
    early = await submit_many(engine, 2, queue="mail")
    await operations.cancel([Target(early[0])])
    running = await hand.claim(1)
    assert [task.id for task in running] == [early[1]]
    await submit_many(engine, SIZE, queue="mail")
    await submit_many(engine, 3, queue="mail", delay=HOUR)
    other = await submit_one(engine)
    assert await operations.purge_queue("mail", dry_run=True) == Tally(matched=SIZE + 3)
    told: list[int] = []
    assert await operations.purge_queue("mail", progress=told.append) == Tally(matched=SIZE + 3, done=SIZE + 3)
    assert told[-1] == SIZE + 3
    assert {task.id: task.state for task in await all_tasks(engine)} == {early[0]: State.CANCELLED, early[1]: State.RUNNING, other: State.PENDING}
    assert await operations.purge_queue("mail") == Tally()


async def test_purge_of_one_that_must_unwind(operations: Operations, engine: Engine) -> None:
    made = await make_unwinding(engine, queue="mail")
    assert made.claimed is not None
    await made.holder.done(made.claimed, ending=Ending.RETRY, after=HOUR)
    assert await operations.purge_queue("mail") == Tally(matched=1, done=1)
    task = await operations.get(made.id)
    assert (task.state, task.must_end) == (State.PENDING, "cancelled")


async def test_purge_of_owed_ones_leaves_them_cancelled(operations: Operations, engine: Engine) -> None:
    await engine.put("outbox", "ended", b"{}")
    id = await submit_one(engine, queue="mail")
    assert await operations.purge_queue("mail") == Tally(matched=1, refused={"undelivered": 1})
    assert await states(engine, [id]) == [State.CANCELLED]


async def test_purge_of_a_queue_nobody_named(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    await submit_one(engine, queue="mail")
    with pytest.raises(NotFound, match="did you mean 'mail'"):
        await operations.purge_queue("mial")


async def test_a_dry_run_reads_no_record(operations: Operations, engine: Engine, calls: list[Call]) -> None:
    """Payloads may be large, and none of them is needed to count."""
    await submit_many(engine, 5, tenant="acme")
    calls.clear()
    assert (await operations.cancel(Filter(tenant="acme"), dry_run=True)).matched == 5
    assert (await operations.delete(Filter(tenant="acme"), dry_run=True)).matched == 0
    assert await operations.count(Filter(tenant="acme")) == 5
    assert {call.verb for call in calls} == {"matching"}
