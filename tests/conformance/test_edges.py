"""Edges: "this task waits for that one" falls when the other ends, with what its failure means."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine, Target
from taskmill.task import EdgeResult, OnFailure, State, new_id
from tests.conformance.tools import accepted, ids_of, new, record, refusal, state, states, submit, worker
from tests.conformance.tools_b import after, finish_next, make, make_unwinding, settle


async def test_a_chain_runs_one_after_the_other_and_hands_results_on(engine: Engine) -> None:
    first = new()
    second = after(first)
    third = after(second)
    await submit(engine, third, second, first)
    hand = await worker(engine)
    seen = []
    for result, task in ((b"1", first), (b"2", second), (b"3", third)):
        [claimed] = await hand.claim(5)
        assert claimed.id == task.id
        seen.append([(edge.task, edge.outcome, edge.result) for edge in claimed.results])
        await hand.done(claimed, result=result)
    assert seen == [[], [(first.id, State.COMPLETED, b"1")], [(second.id, State.COMPLETED, b"2")]]


async def test_a_chord_waits_for_all_and_sees_results_in_the_order_of_its_edges(engine: Engine) -> None:
    group = [new(n, queue="group") for n in range(5)]
    callback = after(*reversed(group))
    await submit(engine, callback, *group)
    task = await record(engine, callback.id)
    assert (task.state, task.open_edges) == (State.WAITING, 5)
    hand = await worker(engine, queues=["group"])
    claimed = await hand.claim(5)
    for left, each in zip((4, 3, 2, 1, 0), claimed, strict=True):
        assert (await record(engine, callback.id)).open_edges == left + 1
        await hand.done(each, result=each.payload)
        assert (await record(engine, callback.id)).open_edges == left
    [last] = await (await worker(engine)).claim(5)
    assert last.id == callback.id
    assert [(edge.task, edge.result) for edge in last.results] == [(task.id, task.payload) for task in reversed(group)]


async def test_a_diamond(engine: Engine) -> None:
    top = new()
    left, right = after(top), after(top)
    bottom = after(left, right)
    await submit(engine, bottom, left, right, top)
    hand = await worker(engine)
    await hand.done(*await hand.claim(9))
    sides = await hand.claim(9)
    assert set(ids_of(sides)) == {left.id, right.id}
    await hand.done(*sides)
    assert ids_of(await hand.claim(9)) == [bottom.id]


async def test_a_task_named_twice_is_waited_for_once(engine: Engine) -> None:
    child = new()
    parent = after(child, child)
    await submit(engine, child, parent)
    assert (await record(engine, parent.id)).open_edges == 1
    assert await finish_next(engine) == child.id
    assert await state(engine, parent.id) is State.PENDING


async def test_a_delay_holds_after_the_edges_have_fallen(engine: Engine, clock: ManualClock) -> None:
    child = new()
    parent = after(child, run_at=clock.now() + HOUR)
    await submit(engine, child, parent)
    assert await finish_next(engine) == child.id
    assert await state(engine, parent.id) is State.SCHEDULED
    hand = await worker(engine)
    assert await hand.claim() == []
    clock.advance("1h")
    assert ids_of(await hand.claim()) == [parent.id]


@pytest.mark.parametrize("ending", [Ending.DEAD, Ending.CANCELLED])
async def test_cancel_on_failure_goes_up_the_whole_chain(engine: Engine, ending: Ending) -> None:
    tasks = [new()]
    for _ in range(30):
        tasks.append(after(tasks[-1]))
    beside = new()
    await submit(engine, *tasks, beside)
    assert await finish_next(engine, ending) == tasks[0].id
    await settle(engine)
    assert set(await states(engine, [task.id for task in tasks[1:]])) == {State.CANCELLED}
    assert await state(engine, beside.id) is State.PENDING
    parent = await record(engine, tasks[1].id)
    assert parent.error
    assert parent.error.code
    assert (parent.executions, parent.finished_at) == (0, parent.updated_at)


async def test_cancel_on_failure_leaves_the_other_children_alone(engine: Engine) -> None:
    failing, other = new(), new()
    parent = after(failing, other)
    await submit(engine, failing, other, parent)
    assert await finish_next(engine, Ending.DEAD) == failing.id
    assert await states(engine, [parent.id, other.id]) == [State.CANCELLED, State.PENDING]
    assert await finish_next(engine) == other.id
    assert await state(engine, parent.id) is State.CANCELLED


async def test_ignored_failures_are_seen_in_the_results(engine: Engine) -> None:
    good, bad = new(queue="children"), new(queue="children")
    parent = after(good, bad, on_failure=OnFailure.IGNORE)
    await submit(engine, good, bad, parent)
    hand = await worker(engine, queues=["children"])
    first, second = await hand.claim(2)
    await hand.done(first, result=b"1")
    await hand.done(second, ending=Ending.DEAD)
    claimed = await (await worker(engine)).claim_one()
    assert claimed.results == (
        EdgeResult(good.id, OnFailure.IGNORE, State.COMPLETED, b"1"),
        EdgeResult(bad.id, OnFailure.IGNORE, State.DEAD, None),
    )


async def test_a_held_edge_waits_until_the_child_is_mended(engine: Engine) -> None:
    child = new()
    parent = after(child, on_failure=OnFailure.HOLD)
    await submit(engine, child, parent)
    await finish_next(engine, Ending.DEAD)
    assert await state(engine, parent.id) is State.WAITING
    assert [edge.outcome for edge in await engine.edges(parent.id)] == [None]
    await engine.requeue([Target(child.id)])
    assert await finish_next(engine, result=b'"mended"') == child.id
    claimed = await (await worker(engine)).claim_one()
    assert (claimed.id, [edge.result for edge in claimed.results]) == (parent.id, [b'"mended"'])


@pytest.mark.parametrize(
    ("ended", "on_failure", "expected"),
    [
        (State.COMPLETED, OnFailure.CANCEL, State.PENDING),
        (State.DEAD, OnFailure.CANCEL, State.CANCELLED),
        (State.CANCELLED, OnFailure.CANCEL, State.CANCELLED),
        (State.DEAD, OnFailure.IGNORE, State.PENDING),
        (State.DEAD, OnFailure.HOLD, State.WAITING),
    ],
)
async def test_a_child_that_ended_before_the_submit(engine: Engine, ended: State, on_failure: OnFailure, expected: State) -> None:
    child = await make(engine, ended)
    parent = after(child.id, on_failure=on_failure)
    await submit(engine, parent)
    assert await state(engine, parent.id) is expected
    [edge] = await engine.edges(parent.id)
    assert edge.task == child.id
    if ended is State.COMPLETED:
        assert (edge.outcome, edge.result) == (State.COMPLETED, b'"made"')
    assert len(await (await worker(engine)).claim(5)) == (expected is State.PENDING)


async def test_some_children_have_ended_and_some_have_not(engine: Engine) -> None:
    ended = await make(engine, State.COMPLETED)
    running = await make(engine, State.RUNNING)
    parent = after(ended.id, running.id)
    await submit(engine, parent)
    task = await record(engine, parent.id)
    assert (task.state, task.open_edges) == (State.WAITING, 1)
    assert running.claimed
    await running.holder.done(running.claimed)
    assert await state(engine, parent.id) is State.PENDING


async def test_an_unknown_child_is_refused_and_nothing_of_it_is_stored(engine: Engine) -> None:
    bad, good = after(new_id()), new()
    answers = await engine.submit([bad, good])
    assert refusal(answers[0]) == "unknown_edge"
    assert accepted(answers[1]) == good.id
    assert await engine.get([bad.id]) == (None,)


async def test_a_child_of_the_same_batch_that_was_refused_is_unknown(engine: Engine) -> None:
    child = new(type="BAD NAME")
    middle = after(child)
    answers = await engine.submit([child, middle, after(middle)])
    assert refusal(answers[0]) == "invalid_name"
    assert [refusal(answer) for answer in answers[1:]] == ["unknown_edge", "unknown_edge"]


async def test_tasks_that_wait_for_each_other_are_refused(engine: Engine) -> None:
    """They could never run; an edge may only point to what exists without it."""
    first = new()
    second = after(first)
    first = after(second, id=first.id)
    answers = await engine.submit([first, second])
    assert {answer.status.value for answer in answers} == {"refused"}
    assert await engine.get([first.id, second.id]) == (None, None)


async def test_the_edge_to_a_duplicate_goes_to_the_first_one(engine: Engine) -> None:
    first = new("same", idempotency_key="k")
    await submit(engine, first)
    again = new("same", idempotency_key="k")
    parent = after(again)
    answers = await engine.submit([again, parent])
    assert accepted(answers[0]) == first.id
    assert accepted(answers[1]) == parent.id
    assert [edge.task for edge in await engine.edges(parent.id)] == [first.id]
    assert await finish_next(engine) == first.id
    assert await state(engine, parent.id) is State.PENDING


async def test_a_cancelled_child_cancels_its_parent(engine: Engine) -> None:
    child = new()
    parent = after(child)
    await submit(engine, child, parent)
    await engine.cancel([Target(child.id)])
    await settle(engine)
    assert await state(engine, parent.id) is State.CANCELLED


async def test_a_parent_that_must_unwind_gets_a_turn_when_its_child_fails(engine: Engine) -> None:
    parent = await make_unwinding(engine)
    assert parent.claimed
    child = new()
    await parent.holder.done(parent.claimed, ending=Ending.WAITING, then=(child,))
    assert await finish_next(engine, Ending.DEAD) == child.id
    await settle(engine)
    again = await parent.holder.claim_one()
    assert again.must_end
    assert [edge.outcome for edge in again.results] == [State.DEAD]
    await parent.holder.done(again, ending=Ending.CANCELLED)
    assert await state(engine, parent.id) is State.CANCELLED
