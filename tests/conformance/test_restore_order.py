"""restore in any order and in separate calls: an edge onto a task that is not here yet is open, and falls when that one has come and ended."""

from __future__ import annotations

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Record, Target
from taskmill.task import EdgeResult, ErrorInfo, NewTask, OnFailure, State, Task, new_id
from tests.conformance.test_restore import whole
from tests.conformance.tools import Worker, ids_of, new, record, state, submit, worker
from tests.conformance.tools_b import finish_next, make, settle

FAILURES = [(OnFailure.CANCEL, State.CANCELLED), (OnFailure.IGNORE, State.PENDING), (OnFailure.HOLD, State.WAITING)]


def waiting_for(clock: ManualClock, *ids: str, on_failure: OnFailure = OnFailure.CANCEL) -> Record:
    task = whole(clock, state=State.WAITING, open_edges=len(ids))
    return Record(task=task, edges=tuple(EdgeResult(id, on_failure, None, None) for id in ids))


def ended(clock: ManualClock, id: str, now: State = State.COMPLETED) -> Record:
    error = ErrorInfo("oops") if now is State.DEAD else None
    return Record(task=whole(clock, id=id, state=now, result=b'"kept"' if now is State.COMPLETED else None, error=error, finished_at=clock.now()))


async def restored(engine: Engine, *records: Record) -> None:
    """Each in a call of its own."""
    for each in records:
        await engine.restore([each])


async def claim_parent(engine: Engine, parent: Task) -> tuple[EdgeResult, ...]:
    await settle(engine)
    hand: Worker = await worker(engine)
    claimed = await hand.claim_one()
    assert claimed.id == parent.id
    return claimed.results


async def test_a_parent_before_its_child(engine: Engine, clock: ManualClock) -> None:
    child = whole(clock)
    parent = waiting_for(clock, child.id)
    await restored(engine, parent)
    await settle(engine)
    assert await state(engine, parent.task.id) is State.WAITING
    await restored(engine, Record(task=child))
    assert await engine.edges(parent.task.id) == parent.edges
    assert await finish_next(engine, result=b"1") == child.id
    assert await claim_parent(engine, parent.task) == (EdgeResult(child.id, OnFailure.CANCEL, State.COMPLETED, b"1"),)


async def test_a_child_that_comes_as_ended(engine: Engine, clock: ManualClock) -> None:
    id = new_id()
    parent = waiting_for(clock, id)
    await restored(engine, parent, ended(clock, id))
    assert await claim_parent(engine, parent.task) == (EdgeResult(id, OnFailure.CANCEL, State.COMPLETED, b'"kept"'),)


@pytest.mark.parametrize(("on_failure", "expected"), FAILURES)
@pytest.mark.parametrize("now", [State.DEAD, State.CANCELLED])
async def test_a_child_that_comes_as_failed(engine: Engine, clock: ManualClock, now: State, on_failure: OnFailure, expected: State) -> None:
    id = new_id()
    parent = waiting_for(clock, id, on_failure=on_failure)
    await restored(engine, parent, ended(clock, id, now))
    await settle(engine)
    assert await state(engine, parent.task.id) is expected


@pytest.mark.parametrize(("on_failure", "expected"), FAILURES)
async def test_a_child_that_comes_and_fails(engine: Engine, clock: ManualClock, on_failure: OnFailure, expected: State) -> None:
    child = whole(clock)
    parent = waiting_for(clock, child.id, on_failure=on_failure)
    await restored(engine, parent, Record(task=child))
    assert await finish_next(engine, Ending.DEAD) == child.id
    await settle(engine)
    assert await state(engine, parent.task.id) is expected


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_child_that_is_submitted(engine: Engine, clock: ManualClock, *, reserved: bool) -> None:
    child: NewTask = new("child")
    parent = waiting_for(clock, child.id)
    await restored(engine, parent)
    if reserved:
        await engine.submit([child], reserved=True)
    await submit(engine, child)
    assert await finish_next(engine, result=b"1") == child.id
    assert await claim_parent(engine, parent.task) == (EdgeResult(child.id, OnFailure.CANCEL, State.COMPLETED, b"1"),)


async def test_a_child_that_is_submitted_and_cancelled(engine: Engine, clock: ManualClock) -> None:
    child: NewTask = new("child")
    parent = waiting_for(clock, child.id)
    await restored(engine, parent)
    await submit(engine, child)
    await engine.cancel([Target(child.id)])
    await settle(engine)
    assert await state(engine, parent.task.id) is State.CANCELLED


async def test_a_child_that_ended_here_and_is_gone(engine: Engine, clock: ManualClock) -> None:
    gone = await make(engine, State.COMPLETED)
    await engine.delete([Target(gone.id)])
    parent = waiting_for(clock, gone.id)
    await restored(engine, parent)
    assert [(edge.task, edge.outcome) for edge in await claim_parent(engine, parent.task)] == [(gone.id, State.COMPLETED)]


async def test_some_are_here_and_some_come_later(engine: Engine, clock: ManualClock) -> None:
    here, there = await make(engine, State.COMPLETED, queue="here"), whole(clock)
    live, later = new("live"), new_id()
    await submit(engine, live)
    parent = waiting_for(clock, here.id, live.id, there.id, later)
    await restored(engine, parent)
    assert (await record(engine, parent.task.id)).open_edges == 3
    await finish_next(engine)
    await restored(engine, Record(task=there))
    await finish_next(engine)
    await settle(engine)
    assert ((await record(engine, parent.task.id)).open_edges, await state(engine, parent.task.id)) == (1, State.WAITING)
    await restored(engine, ended(clock, later))
    assert len(await claim_parent(engine, parent.task)) == 4


@pytest.mark.parametrize("order", ["forwards", "backwards", "together"])
async def test_a_chain_in_any_order(engine: Engine, clock: ManualClock, order: str) -> None:
    chain = [Record(task=whole(clock))]
    for _ in range(10):
        chain.append(waiting_for(clock, chain[-1].task.id))
    if order == "together":
        await engine.restore(chain[::-1])
    else:
        await restored(engine, *(chain if order == "forwards" else chain[::-1]))
    for each in chain:
        assert await finish_next(engine) == each.task.id
        await settle(engine)


async def test_many_parents_of_one_child(engine: Engine, clock: ManualClock) -> None:
    id = new_id()
    parents = [waiting_for(clock, id) for _ in range(200)]
    await engine.restore(parents)
    await restored(engine, ended(clock, id))
    await settle(engine)
    assert sorted(ids_of(await (await worker(engine)).claim(300))) == sorted(each.task.id for each in parents)
