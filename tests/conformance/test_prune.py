"""prune: what ended longer ago than its retention and owes nothing is removed; never a live task."""

from __future__ import annotations

import pytest

from taskmill.clock import DAY, HOUR, ManualClock
from taskmill.engine import Engine, Retention, Status, Target
from taskmill.errors import StaleTerm
from taskmill.task import Edge, Gone, State, Task, new_id
from tests.conformance.tools import Store, accepted, new, record, states, submit, submit_many, worker
from tests.conformance.tools_b import ALIVE, ENDED, deposed, led, make

NOTHING_KEPT = Retention(completed=0, dead=0, cancelled=0)


async def prune_all(engine: Engine, retention: Retention = NOTHING_KEPT) -> None:
    for _ in range(100):
        if not (await engine.prune(10, await led(engine), retention)).more:
            return
    raise AssertionError("prune always says that there is more")


@pytest.mark.parametrize("now", ENDED)
async def test_an_ended_task_goes_when_its_time_is_over(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now, idempotency_window=30 * DAY)
    retention = Retention(completed=DAY, dead=DAY, cancelled=DAY)
    clock.advance("23h")
    await prune_all(engine, retention)
    assert isinstance((await engine.get([made.id]))[0], Task)
    clock.advance("61m")
    await prune_all(engine, retention)
    assert await engine.get([made.id]) == (Gone(made.id, now),)


async def test_the_default_is_two_weeks(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED)
    clock.advance("13d")
    await engine.prune(10, await led(engine))
    assert isinstance((await engine.get([made.id]))[0], Task)
    clock.advance("2d")
    await engine.prune(10, await led(engine))
    assert await engine.get([made.id]) == (None,)


async def test_each_state_has_its_own_time(engine: Engine, clock: ManualClock) -> None:
    ids = [(await make(engine, now, idempotency_window=30 * DAY)).id for now in (State.COMPLETED, State.DEAD, State.CANCELLED)]
    retention = Retention(completed=HOUR, dead=3 * HOUR, cancelled=2 * HOUR)
    kept = []
    for _ in range(3):
        clock.advance("61m")
        await prune_all(engine, retention)
        kept.append([isinstance(task, Task) for task in await engine.get(ids)])
    assert kept == [[False, True, True], [False, True, False], [False, False, False]]


@pytest.mark.parametrize("now", ALIVE)
async def test_a_live_task_is_never_touched(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now)
    before = await record(engine, made.id)
    clock.advance("59m")
    await prune_all(engine)
    assert await record(engine, made.id) == before
    clock.advance("400d")
    await prune_all(engine)
    after = await record(engine, made.id)
    assert (after.version, after.executions) == (before.version, before.executions)


async def test_a_parent_that_waits_and_one_under_a_seal_are_live(engine: Engine, clock: ManualClock) -> None:
    child, parent, sealed = new(), new(), new(sealed=True)
    parent = new(edges=(Edge(child.id),))
    await submit(engine, child, parent, sealed)
    clock.advance("400d")
    await prune_all(engine)
    assert await states(engine, [child.id, parent.id, sealed.id]) == [State.PENDING, State.WAITING, State.WAITING]


async def test_a_requeued_task_is_live_again(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.DEAD)
    clock.advance("20d")
    await engine.requeue([Target(made.id)])
    await prune_all(engine)
    assert await states(engine, [made.id]) == [State.PENDING]


async def test_in_bounded_batches(engine: Engine, clock: ManualClock) -> None:
    ids = await submit_many(engine, 23)
    hand = await worker(engine)
    await hand.done(*await hand.claim(23))
    clock.advance("1h")
    rounds = 0
    while True:
        moved = await engine.prune(5, await led(engine), NOTHING_KEPT)
        rounds += 1
        assert moved.moved <= 5
        left = sum(isinstance(task, Task) for task in await engine.get(ids))
        assert moved.more or left == 0
        if not moved.more:
            break
        assert rounds < 10
    assert rounds >= 2


async def test_a_key_outlives_its_task(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED, queue="line", idempotency_key="k")
    clock.advance("1h")
    await prune_all(engine)
    clock.advance("70h")
    await prune_all(engine)
    same, other = new(queue="line", idempotency_key="k"), new("other", queue="line", idempotency_key="k")
    answers = await engine.submit([same, other])
    assert [(answer.status, answer.id) for answer in answers] == [(Status.DUPLICATE, made.id), (Status.CONFLICT, made.id)]
    assert await engine.get([made.id, same.id]) == (Gone(made.id, State.COMPLETED), None)
    clock.advance("1h")
    await prune_all(engine)
    [answer] = await engine.submit([same])
    assert accepted(answer) == same.id
    assert await engine.get([made.id]) == (None,)


async def test_an_id_outlives_its_task(engine: Engine, clock: ManualClock) -> None:
    id = new_id()
    await make(engine, State.COMPLETED, id=id, queue="line")
    clock.advance("1h")
    await prune_all(engine)
    [answer] = await engine.submit([new(id=id, queue="line")])
    assert (answer.status, answer.id) == (Status.DUPLICATE, id)
    clock.advance("72h")
    await prune_all(engine)
    await submit(engine, new(id=id, queue="line"))
    assert (await record(engine, id)).state is State.PENDING


async def test_the_key_of_a_live_task_is_known_for_as_long_as_it_lives(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING, queue="line", idempotency_key="k", idempotency_window=HOUR)
    clock.advance("30d")
    await prune_all(engine)
    [answer] = await engine.submit([new(queue="line", idempotency_key="k")])
    assert (answer.status, answer.id) == (Status.DUPLICATE, made.id)


async def test_what_is_owed_is_delivered_first(engine: Engine, clock: ManualClock) -> None:
    await engine.put("outbox", "ended", b"{}")
    ids = [(await make(engine, now)).id for now in ENDED]
    clock.advance("1h")
    await prune_all(engine)
    assert await states(engine, ids) == list(ENDED)
    term = await led(engine, "outbox")
    entries = await engine.outbox("ended", "", 10, term)
    await engine.outbox("ended", entries[1].cursor, 10, term)
    await prune_all(engine)
    assert [id for id, task in zip(ids, await engine.get(ids), strict=True) if isinstance(task, Task)] == [entries[2].subject]
    await engine.outbox("ended", entries[2].cursor, 10, term)
    await prune_all(engine)
    assert not any(isinstance(task, Task) for task in await engine.get(ids))


async def test_edge_results_are_kept(engine: Engine, clock: ManualClock) -> None:
    child, other = new(), new()
    parent = new(edges=(Edge(child.id), Edge(other.id)))
    await submit(engine, child, other, parent)
    hand = await worker(engine)
    claimed = await hand.claim_one()
    await hand.done(claimed, result=b'"kept"')
    clock.advance("100d")
    await prune_all(engine)
    assert await engine.get([child.id]) == (None,)
    assert [(edge.task, edge.outcome, edge.result) for edge in await engine.edges(parent.id)] == [
        (child.id, State.COMPLETED, b'"kept"'),
        (other.id, None, None),
    ]


async def test_nothing_to_remove(engine: Engine) -> None:
    moved = await engine.prune(10, await led(engine), NOTHING_KEPT)
    assert (moved.moved, moved.more) == (0, False)


async def test_a_deposed_leader_removes_nothing(engine: Engine, store: Store, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED)
    clock.advance("1h")
    old = await deposed(engine, clock)
    with pytest.raises(StaleTerm):
        await (await store.engine()).prune(10, old, NOTHING_KEPT)
    assert await states(engine, [made.id]) == [State.COMPLETED]
