"""Edges fall exactly once, and keep the outcome, whatever happens to the other afterwards."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Retention, Target
from taskmill.task import State, Task
from tests.conformance.tools import Store, lose, new, outcome, record, state, states, submit, worker
from tests.conformance.tools_b import after, finish_next, guarded, led, make, settle


async def test_a_repeated_submit_adds_no_edge(engine: Engine) -> None:
    child = new()
    parent = after(child)
    await submit(engine, child, parent)
    await submit(engine, child, parent)
    assert (await record(engine, parent.id)).open_edges == 1
    assert await finish_next(engine) == child.id
    await submit(engine, child, parent)
    assert await state(engine, parent.id) is State.PENDING


async def test_a_repeated_finish_lets_an_edge_fall_once(engine: Engine) -> None:
    """Were it counted twice, the parent would not wait for its second child."""
    first, second = new(), new()
    parent = after(first, second)
    await submit(engine, first, second, parent)
    hand = await worker(engine)
    claimed = await hand.claim_one()
    for _ in range(3):
        assert (await engine.finish([outcome(claimed)])).refused == ()
    task = await record(engine, parent.id)
    assert (task.state, task.open_edges) == (State.WAITING, 1)


async def test_the_late_finish_of_a_dead_worker_lets_nothing_fall(engine: Engine, clock: ManualClock) -> None:
    first, second = new(), new()
    parent = after(first, second)
    await submit(engine, first, second, parent)
    claimed = await (await worker(engine)).claim_one()
    await lose(engine, clock)
    assert [refused.code for refused in (await engine.finish([outcome(claimed)])).refused] == ["stale_lease"]
    assert (await record(engine, parent.id)).open_edges == 2
    assert await finish_next(engine) == first.id
    await engine.finish([outcome(claimed)])
    assert (await record(engine, parent.id)).open_edges == 1


async def test_a_child_that_poisons_its_workers_cancels_its_parent(engine: Engine, clock: ManualClock) -> None:
    child = new(max_crashes=0)
    parent = after(child)
    await submit(engine, child, parent)
    await (await worker(engine)).claim_one()
    await lose(engine, clock)
    await settle(engine)
    assert await states(engine, [child.id, parent.id]) == [State.DEAD, State.CANCELLED]


async def test_a_requeued_child_lets_its_edge_fall_no_second_time(engine: Engine) -> None:
    first, second = new(), new()
    parent = after(first, second)
    await submit(engine, first, second, parent)
    assert await finish_next(engine, result=b"1") == first.id
    await engine.requeue([Target(first.id)])
    hand = await worker(engine)
    claimed = {task.id: task for task in await hand.claim(2)}
    await hand.done(claimed[first.id], result=b'"again"')
    task = await record(engine, parent.id)
    assert (task.state, task.open_edges) == (State.WAITING, 1)
    assert [(edge.outcome, edge.result) for edge in await engine.edges(parent.id)] == [(State.COMPLETED, b"1"), (None, None)]
    await hand.done(claimed[second.id])
    assert [edge.result for edge in (await hand.claim_one()).results] == [b"1", None]


async def test_a_child_that_is_open_again_keeps_its_first_result_for_its_parent(engine: Engine) -> None:
    child = await make(engine, State.COMPLETED)
    parent = after(child.id)
    await submit(engine, parent)
    await engine.requeue([Target(child.id)])
    claimed = await (await worker(engine)).claim_one()
    assert [(edge.outcome, edge.result) for edge in claimed.results] == [(State.COMPLETED, b'"made"')]


async def test_a_requeued_child_does_not_wake_a_parent_that_ended(engine: Engine) -> None:
    child = new()
    parent = after(child)
    await submit(engine, child, parent)
    assert await finish_next(engine) == child.id
    assert await finish_next(engine) == parent.id
    before = await record(engine, parent.id)
    await engine.requeue([Target(child.id)])
    assert await finish_next(engine, Ending.DEAD) == child.id
    assert await record(engine, parent.id) == before


async def test_a_requeued_parent_keeps_its_fallen_edges(engine: Engine) -> None:
    child = new()
    parent = after(child)
    await submit(engine, child, parent)
    await finish_next(engine, Ending.DEAD)
    assert await state(engine, parent.id) is State.CANCELLED
    await engine.requeue([Target(parent.id)])
    claimed = await (await worker(engine)).claim_one()
    assert (claimed.id, [edge.outcome for edge in claimed.results]) == (parent.id, [State.DEAD])


async def test_a_requeued_parent_waits_for_what_is_still_open(engine: Engine) -> None:
    failing, running = new(), new()
    parent = after(failing, running)
    await submit(engine, failing, running, parent)
    await finish_next(engine, Ending.DEAD)
    await engine.requeue([Target(parent.id)])
    assert await state(engine, parent.id) is State.WAITING
    assert await finish_next(engine) == running.id
    assert await state(engine, parent.id) is State.PENDING


@pytest.mark.parametrize("removed_by", ["prune", "delete"])
async def test_a_removed_child_loses_nothing(engine: Engine, clock: ManualClock, removed_by: str) -> None:
    child, other = new(), new()
    parent = after(child, other)
    await submit(engine, child, other, parent)
    assert await finish_next(engine, result=b'{"kept": true}') == child.id
    clock.advance("1h")
    if removed_by == "prune":
        await engine.prune(10, await led(engine), Retention(completed=0))
    else:
        await engine.delete([Target(child.id)])
    assert not isinstance((await engine.get([child.id]))[0], Task)
    assert await finish_next(engine) == other.id
    claimed = await (await worker(engine)).claim_one()
    assert [(edge.task, edge.outcome, edge.result) for edge in claimed.results] == [
        (child.id, State.COMPLETED, b'{"kept": true}'),
        (other.id, State.COMPLETED, None),
    ]


async def test_a_child_removed_before_the_submit_has_ended_all_the_same(engine: Engine) -> None:
    child = await make(engine, State.COMPLETED)
    await engine.delete([Target(child.id)])
    parent = after(child.id)
    await submit(engine, parent)
    claimed = await (await worker(engine)).claim_one()
    assert [(edge.task, edge.outcome) for edge in claimed.results] == [(child.id, State.COMPLETED)]


async def test_a_waiting_parent_that_is_cancelled_is_not_woken(engine: Engine) -> None:
    child = new()
    parent = after(child)
    await submit(engine, child, parent)
    await engine.cancel([Target(parent.id)])
    assert await finish_next(engine) == child.id
    assert await state(engine, parent.id) is State.CANCELLED


async def test_children_that_end_at_once_on_several_engines(engine: Engine, store: Store) -> None:
    children = [new(n, queue="group") for n in range(60)]
    parent = after(*children)
    await submit(engine, *children, parent)
    hands = [await worker(each, queues=["group"]) for each in await store.engines(3)]
    claimed = [(hand, task) for hand in hands for task in await hand.claim(20)]
    assert len(claimed) == 60
    await guarded(asyncio.gather(*(hand.done(task, result=task.payload) for hand, task in claimed)))
    task = await record(engine, parent.id)
    assert (task.state, task.open_edges) == (State.PENDING, 0)
    [last] = await (await worker(engine)).claim(5)
    assert [edge.result for edge in last.results] == [child.payload for child in children]


async def test_children_that_fail_at_once_cancel_their_parent_once(engine: Engine, store: Store) -> None:
    await engine.put("outbox", "ended", b"{}")
    children = [new(n, queue="group") for n in range(12)]
    parent = after(*children)
    await submit(engine, *children, parent)
    hands = [await worker(each, queues=["group"]) for each in await store.engines(3)]
    claimed = [(hand, task) for hand in hands for task in await hand.claim(4)]
    await guarded(asyncio.gather(*(hand.done(task, ending=Ending.DEAD) for hand, task in claimed)))
    await settle(engine)
    assert await state(engine, parent.id) is State.CANCELLED
    told = [entry.subject for entry in await engine.outbox("ended", "", 100, await led(engine, "outbox"))]
    assert sorted(told) == sorted([parent.id, *(child.id for child in children)])
