"""Large groups: seals, pages of edges, and one task that very many wait for."""

from __future__ import annotations

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Filter, Retention, Target
from taskmill.task import Edge, EdgeResult, OnFailure, State, new_id
from tests.conformance.tools import accepted, ids_of, new, outcome, record, refusal, state, states, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import after, finish_next, led, settle

FAN = 2_500
"""More waiting tasks than any engine moves in one step."""


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


async def test_no_requeue_while_edges_fall(engine: Engine) -> None:
    """Edges fall with the end that decided them: until the last has, the task cannot come to another."""
    child = await submit_one(engine)
    parents = await submit_many(engine, FAN, edges=(Edge(child),))
    hand = await worker(engine)
    finished = await hand.finish(await hand.claim_one())
    version = (await record(engine, child)).version
    [early] = (await engine.requeue([Target(child, version)])).tasks
    assert early.done or (finished.more and early.code == "edges_falling")  # done all the same: somebody else let the last of them fall meanwhile
    while (await engine.recover_lost()).more:
        pass
    [late] = (await engine.requeue([Target(child, version)])).tasks
    assert late.done
    assert {(await engine.edges(parent))[0].outcome for parent in parents[::100]} == {State.COMPLETED}
