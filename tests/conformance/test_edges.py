"""Edges: "this task waits for that one" falls exactly once, when the other ends, and keeps the outcome."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine, Filter, Retention, Target
from taskmill.task import Edge, EdgeResult, NewTask, OnFailure, State, Task, new_id
from tests.conformance.tools import accepted, ids_of, lose, new, outcome, record, refusal, state, states, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import led, make, settle

FAN = 2_500
"""More waiting tasks than any engine moves in one step."""


def after(*children: NewTask | str, on_failure: OnFailure = OnFailure.CANCEL, **fields: object) -> NewTask:
    """A task that waits for these."""
    return new(**{"edges": tuple(Edge(child if isinstance(child, str) else child.id, on_failure) for child in children), **fields})


async def finish_next(engine: Engine, ending: Ending = Ending.COMPLETED, **fields: object) -> str:
    """The next ready task runs and ends."""
    hand = await worker(engine)
    claimed = await hand.claim_one()
    await hand.done(claimed, ending=ending, **fields)
    return claimed.id


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


async def test_a_cancelled_child_cancels_its_parent(engine: Engine) -> None:
    child = new()
    parent = after(child)
    await submit(engine, child, parent)
    await engine.cancel([Target(child.id)])
    await settle(engine)
    assert await state(engine, parent.id) is State.CANCELLED


async def test_parent_in_the_same_batch(engine: Engine) -> None:
    parent = new()
    children = [new(n, parent=Edge(parent.id)) for n in range(3)]
    await submit(engine, children[0], parent, *children[1:])
    task = await record(engine, parent.id)
    assert (task.state, task.open_edges) == (State.WAITING, 3)
    hand = await worker(engine)
    claimed = await hand.claim(9)
    assert ids_of(claimed) == [child.id for child in children]
    await hand.done(*claimed)
    assert ids_of(await hand.claim(9)) == [parent.id]


async def test_a_group_in_batches_under_a_seal(engine: Engine) -> None:
    parent = new(sealed=True)
    await submit(engine, parent)
    task = await record(engine, parent.id)
    assert (task.state, task.sealed, task.open_edges) == (State.WAITING, True, 0)
    hand = await worker(engine)
    children = []
    for batch in range(3):
        part = [new((batch, n), parent=Edge(parent.id)) for n in range(4)]
        children += part
        await submit(engine, *part)
        await hand.done(*await hand.claim(9), result=b"1")
        assert await state(engine, parent.id) is State.WAITING
    last = new("last", parent=Edge(parent.id))
    answers = await engine.submit([last], unseal=[parent.id])
    assert accepted(answers[0]) == last.id
    task = await record(engine, parent.id)
    assert (task.state, task.sealed, task.open_edges) == (State.WAITING, False, 1)
    assert await finish_next(engine, result=b"2") == last.id
    claimed = await hand.claim_one()
    assert claimed.id == parent.id
    assert [(edge.task, edge.result) for edge in claimed.results] == [*((child.id, b"1") for child in children), (last.id, b"2")]


async def test_a_seal_broken_when_all_have_ended(engine: Engine) -> None:
    parent = new(sealed=True)
    await submit(engine, parent, new(parent=Edge(parent.id)))
    await finish_next(engine)
    assert await state(engine, parent.id) is State.WAITING
    assert await engine.submit([], unseal=[parent.id]) == ()
    assert await finish_next(engine) == parent.id
    assert await engine.submit([], unseal=[parent.id]) == ()
    assert await state(engine, parent.id) is State.COMPLETED


async def test_a_broken_seal_takes_no_more_edges(engine: Engine) -> None:
    plain, unsealed = new(), new(sealed=True)
    await submit(engine, plain, unsealed, new(parent=Edge(unsealed.id)))
    await engine.submit([], unseal=[unsealed.id])
    answers = await engine.submit([new(parent=Edge(plain.id)), new(parent=Edge(unsealed.id)), new(parent=Edge(new_id()))])
    assert [refusal(answer) for answer in answers] == ["no_seal", "no_seal", "unknown_edge"]
    assert (await record(engine, unsealed.id)).open_edges == 1


async def test_a_failure_under_the_seal_cancels_the_parent(engine: Engine) -> None:
    parent = new(sealed=True)
    await submit(engine, parent, new(parent=Edge(parent.id)))
    await finish_next(engine, Ending.DEAD)
    assert await state(engine, parent.id) is State.CANCELLED


async def test_a_sealed_parent_can_be_cancelled(engine: Engine) -> None:
    parent = new(sealed=True)
    await submit(engine, parent)
    await engine.cancel([Target(parent.id)])
    await engine.submit([], unseal=[parent.id])
    assert await state(engine, parent.id) is State.CANCELLED


async def test_the_edges_of_a_large_group_come_in_pages(engine: Engine) -> None:
    children = [new(n, queue="group") for n in range(1_200)]
    parent = after(*children)
    await submit(engine, *children, parent)
    hand = await worker(engine, queues=["group"])
    for each in range(12):
        claimed = await hand.claim(100)
        await engine.finish([outcome(task, result=task.payload) for task in claimed])
        assert await state(engine, parent.id) is (State.WAITING if each < 11 else State.PENDING)
    claimed_parent = await (await worker(engine)).claim_one()
    expected = [EdgeResult(child.id, OnFailure.CANCEL, State.COMPLETED, child.payload) for child in children]
    assert list(claimed_parent.results) == expected[:1_000]
    pages: list[EdgeResult] = []
    while page := await engine.edges(parent.id, after=len(pages), n=500):
        assert len(page) <= 500
        pages += page
    assert pages == expected


async def test_a_task_without_edges_has_none(engine: Engine) -> None:
    assert await engine.edges(await submit_one(engine)) == ()


async def waiting_crowd(engine: Engine, on_failure: OnFailure = OnFailure.CANCEL) -> tuple[str, list[str]]:
    """One task for which many wait."""
    child = await submit_one(engine, queue="child")
    crowd = await submit(engine, *(after(child, on_failure=on_failure) for _ in range(FAN)))
    return child, crowd


async def end_child(engine: Engine, ending: Ending) -> bool:
    hand = await worker(engine, queues=["child"])
    answer = await hand.finish(await hand.claim_one(), ending=ending)
    assert answer.refused == ()
    return answer.more


@pytest.mark.parametrize(("ending", "expected"), [(Ending.COMPLETED, State.PENDING), (Ending.DEAD, State.CANCELLED)])
async def test_a_large_fan_out_falls_in_slices_by_recovery(engine: Engine, ending: Ending, expected: State) -> None:
    child, crowd = await waiting_crowd(engine)
    more = await end_child(engine, ending)
    if not more:
        assert set(await states(engine, crowd)) == {expected}
    await settle(engine)
    assert set(await states(engine, crowd)) == {expected}
    [[edge]] = {await engine.edges(crowd[-1])}
    assert (edge.task, edge.outcome) == (child, State.COMPLETED if ending is Ending.COMPLETED else State.DEAD)


async def test_a_large_fan_out_falls_in_slices_by_claims(engine: Engine) -> None:
    _, crowd = await waiting_crowd(engine)
    await end_child(engine, Ending.COMPLETED)
    hand = await worker(engine)
    taken: list[str] = []
    while True:
        hand.request += 1
        batch = await hand.claim_again(500)
        taken += ids_of(batch)
        if not batch:
            break
    assert len(taken) == len(set(taken))
    assert set(taken) == set(crowd)


async def test_a_large_fan_out_falls_in_slices_by_repeated_finishes(engine: Engine) -> None:
    _, crowd = await waiting_crowd(engine)
    hand = await worker(engine, queues=["child"])
    end = [outcome(await hand.claim_one())]
    for _ in range(FAN):
        answer = await engine.finish(end)
        assert answer.refused == ()
        if not answer.more:
            break
    assert set(await states(engine, crowd)) == {State.PENDING}


async def test_pruning_in_the_middle_of_a_fan_out_loses_no_edge(engine: Engine, clock: ManualClock) -> None:
    _, crowd = await waiting_crowd(engine)
    await end_child(engine, Ending.COMPLETED)
    clock.advance("1h")
    await engine.prune(100, await led(engine), Retention(completed=0))
    await settle(engine)
    assert set(await states(engine, crowd)) == {State.PENDING}


async def test_requeue_in_the_middle_of_a_fan_out_lets_every_edge_fall(engine: Engine) -> None:
    child, crowd = await waiting_crowd(engine)
    await end_child(engine, Ending.COMPLETED)
    await engine.requeue([Target(child)])
    await settle(engine)
    assert set(await states(engine, crowd)) == {State.PENDING}


async def test_cancel_by_filter_ends_a_whole_graph(engine: Engine) -> None:
    children = await submit_many(engine, 20)
    parents = await submit(engine, *(after(child) for child in children))
    cursor = None
    while True:
        changes = await engine.cancel(Filter(), after=cursor, n=7)
        cursor = changes.cursor
        if cursor is None:
            break
    await settle(engine)
    assert set(await states(engine, [*children, *parents])) == {State.CANCELLED}
