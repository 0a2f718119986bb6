"""A reserved task: accepted, known by its id, and not here yet. It can conflict, be waited for and be cancelled like any other."""

from __future__ import annotations

import pytest

from taskmill.engine import Ending, Engine, Status, Submitted, Target
from taskmill.task import Gone, NewTask, OnFailure, State
from tests.conformance.tools import accepted, all_tasks, encode, ids_of, new, record, state, submit, worker
from tests.conformance.tools_b import after, finish_next, settle, the_only


async def reserve(engine: Engine, task: NewTask) -> NewTask:
    [answer] = await engine.submit([task], reserved=True)
    assert accepted(answer) == task.id
    return task


async def answer_to(engine: Engine, task: NewTask, *, reserved: bool = False) -> Submitted:
    [answer] = await engine.submit([task], reserved=reserved)
    return answer


# A conflict.


@pytest.mark.parametrize("reserved", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
async def test_another_payload_is_a_conflict_and_creates_nothing(engine: Engine, key: str | None, *, reserved: bool) -> None:
    task = await reserve(engine, new(1, idempotency_key=key))
    answer = await answer_to(engine, new(2, id=task.id, idempotency_key=key), reserved=reserved)
    assert (answer.status, answer.id) == (Status.CONFLICT, task.id)
    assert answer.error is not None
    assert answer.error.code == "conflict"
    assert await engine.get([task.id]) == (Gone(task.id, None),)
    assert await all_tasks(engine) == []
    await submit(engine, task)
    assert (await record(engine, task.id)).payload == encode(1)


async def test_the_same_payload_written_otherwise_is_the_task(engine: Engine) -> None:
    task = await reserve(engine, new(payload=b'{"a": 1, "b": 2}'))
    again = new(payload=b'{ "b": 2, "a": 1 }', id=task.id)
    assert (await answer_to(engine, again, reserved=True)).status is Status.DUPLICATE
    await submit(engine, again)
    assert await state(engine, task.id) is State.PENDING


# A cancel.


async def test_a_reserved_task_can_be_cancelled(engine: Engine) -> None:
    task = await reserve(engine, new(1, idempotency_key="k"))
    changed = the_only(await engine.cancel([Target(task.id)]))
    assert (changed.task, changed.done, changed.state, changed.requested, changed.code) == (task.id, True, State.CANCELLED, False, None)
    assert await engine.get([task.id]) == (Gone(task.id, State.CANCELLED),)
    assert await engine.wait([task.id], 0) == {task.id: State.CANCELLED}


async def test_a_cancelled_reservation_may_be_cancelled_again(engine: Engine) -> None:
    task = await reserve(engine, new(1))
    first = the_only(await engine.cancel([Target(task.id)]))
    assert the_only(await engine.cancel([Target(task.id)])) == first


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_task_that_comes_after_its_cancel_is_not_created(engine: Engine, key: str | None) -> None:
    task = await reserve(engine, new(1, idempotency_key=key))
    await engine.cancel([Target(task.id)])
    for reserved in (False, True):
        answer = await answer_to(engine, task, reserved=reserved)
        assert (answer.status, answer.id, answer.reserved) == (Status.DUPLICATE, task.id, False)
    assert await all_tasks(engine) == []
    assert await (await worker(engine)).claim(5) == []
    assert await engine.get([task.id]) == (Gone(task.id, State.CANCELLED),)


# An edge.


async def test_an_edge_onto_a_reserved_task_is_open_until_that_has_ended(engine: Engine) -> None:
    task = await reserve(engine, new(1))
    behind = after(task)
    await submit(engine, behind)
    assert ((await record(engine, behind.id)).open_edges, await state(engine, behind.id)) == (1, State.WAITING)
    await settle(engine)
    await submit(engine, task)
    assert await state(engine, behind.id) is State.WAITING
    assert await finish_next(engine, result=b'"done"') == task.id
    await settle(engine)
    claimed = await (await worker(engine)).claim_one()
    assert claimed.id == behind.id
    assert [(edge.task, edge.outcome, edge.result) for edge in claimed.results] == [(task.id, State.COMPLETED, b'"done"')]


@pytest.mark.parametrize(("on_failure", "expected"), [(OnFailure.CANCEL, State.CANCELLED), (OnFailure.IGNORE, State.PENDING), (OnFailure.HOLD, State.WAITING)])
@pytest.mark.parametrize("how", ["dies", "is cancelled", "is never there"])
async def test_an_edge_onto_a_reserved_task_that_fails(engine: Engine, how: str, on_failure: OnFailure, expected: State) -> None:
    task = await reserve(engine, new(1))
    behind = after(task, on_failure=on_failure)
    await submit(engine, behind)
    if how != "is never there":
        await submit(engine, task)
    if how == "dies":
        assert await finish_next(engine, Ending.DEAD) == task.id
    else:
        await engine.cancel([Target(task.id)])
    await settle(engine)
    assert await state(engine, behind.id) is expected


@pytest.mark.parametrize(("on_failure", "expected"), [(OnFailure.CANCEL, State.CANCELLED), (OnFailure.IGNORE, State.PENDING)])
async def test_an_edge_onto_a_reservation_that_was_cancelled_before(engine: Engine, on_failure: OnFailure, expected: State) -> None:
    task = await reserve(engine, new(1))
    await engine.cancel([Target(task.id)])
    behind = after(task, on_failure=on_failure)
    await submit(engine, behind)
    await settle(engine)
    assert await state(engine, behind.id) is expected


async def test_an_edge_by_the_key_of_a_reserved_task(engine: Engine) -> None:
    task = await reserve(engine, new(1, idempotency_key="k"))
    again = new(1, idempotency_key="k")
    behind = after(again)
    answers = await engine.submit([again, behind])
    assert [accepted(answer) for answer in answers] == [task.id, behind.id]
    await submit(engine, task)
    assert await finish_next(engine) == task.id
    await settle(engine)
    assert ids_of(await (await worker(engine)).claim(5)) == [behind.id]


async def test_many_edges_onto_one_reserved_task(engine: Engine) -> None:
    task = await reserve(engine, new(1))
    behind = [after(task) for _ in range(50)]
    await submit(engine, *behind)
    await submit(engine, task)
    await finish_next(engine)
    await settle(engine)
    assert sorted(ids_of(await (await worker(engine)).claim(100))) == sorted(each.id for each in behind)


async def test_a_running_task_waits_for_a_reserved_one(engine: Engine) -> None:
    task = await reserve(engine, new(1))
    hand = await worker(engine)
    waiting = new("waits")
    await submit(engine, waiting)
    await hand.done(await hand.claim_one(), ending=Ending.WAITING, tasks=(task.id,))
    await settle(engine)
    assert await state(engine, waiting.id) is State.WAITING
    await submit(engine, task)
    await hand.done(await hand.claim_one())
    await settle(engine)
    assert ids_of(await hand.claim(5)) == [waiting.id]


async def test_a_wait_for_a_reserved_task_waits(engine: Engine) -> None:
    task = await reserve(engine, new(1))
    assert await engine.wait([task.id], 0) == {}
    await submit(engine, task)
    await finish_next(engine)
    assert await engine.wait([task.id], 0) == {task.id: State.COMPLETED}
