"""records: all that restore takes, of live tasks too; what one store gives, another takes as it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from taskmill.clock import DAY, HOUR, MINUTE, ManualClock
from taskmill.engine import Ending, Engine, Record, Target
from taskmill.errors import InvalidInput
from taskmill.task import Edge, OnFailure, OnLimit, Progress, State, Unique, new_id
from tests.conformance.tools import encode, ids_of, new, record, state, step, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import ENDED, after, finish_next, make, settle

RICH: dict[str, object] = {
    "payload": {"n": 1},
    "priority": 3,
    "timeout": MINUTE,
    "max_crashes": 5,
    "tenant": "acme",
    "headers": {"traceparent": "00-1"},
    "tags": {"run": "7"},
    "order_key": "k",
    "fair_key": "x",
    "limits": ("per-user:1",),
    "idempotency_key": "key",
    "idempotency_window": 9 * DAY,
    "unique": Unique("u"),
}


async def found(engine: Engine, *ids: str) -> list[Record]:
    """The records of tasks that are there."""
    records = await engine.records(ids)
    assert [each.task.id for each in records if each is not None] == list(ids)
    return [each for each in records if each is not None]


def without_lease(one: Record) -> Record:
    return replace(one, task=replace(one.task, worker=None, token=None))


async def moved(engine: Engine, second: Engine, *ids: str) -> list[Record]:
    """The records before and after a move are equal, but for leases."""
    before = await found(engine, *ids)
    await second.restore(before)
    assert list(map(without_lease, await found(second, *ids))) == list(map(without_lease, before))
    return before


# What it answers.


async def test_in_the_order_asked_and_none_for_what_is_not_there(engine: Engine) -> None:
    one, two = await submit_one(engine, 1), await submit_one(engine, 2, queue="other")
    gone = await make(engine, State.COMPLETED)
    await engine.delete([Target(gone.id)])
    reserved = new()
    await engine.submit([reserved], reserved=True)
    records = await engine.records([two, new_id(), one, gone.id, reserved.id])
    assert [each and each.task.id for each in records] == [two, None, one, None, None]
    assert await engine.records([]) == ()


@pytest.mark.parametrize("now", list(State))
async def test_the_task_is_the_one_that_get_shows(engine: Engine, now: State) -> None:
    made = await make(engine, now, tags={"a": "b"})
    [whole] = await found(engine, made.id)
    assert whole.task == await record(engine, made.id)
    assert whole.attempts == await engine.attempts(made.id)
    assert whole.edges == await engine.edges(made.id)


async def test_steps_and_signals_of_a_task_that_is_not_claimed(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, "one", 1), step(made.claimed, "two", [2])]) == ()
    for number, name in enumerate(("go", "stop")):
        await engine.signal(made.id, name, encode(number), f"signal-{number}")
    for running in (True, False):
        [whole] = await found(engine, made.id)
        assert dict(whole.checkpoints) == {"one": b"1", "two": b"[2]"}
        assert [(each.number, each.name, each.data, each.id) for each in whole.signals] == [(1, "go", b"0", "signal-0"), (2, "stop", b"1", "signal-1")]
        if running:
            await made.holder.done(made.claimed, ending=Ending.RETRY, after=HOUR)


async def test_all_edges_and_not_the_first_page(engine: Engine) -> None:
    parent = new(sealed=True)
    await submit(engine, parent)
    children: list[str] = []
    for _ in range(3):
        children += await submit(engine, *(new(parent=Edge(parent.id), delay=HOUR) for _ in range(500)))
    [whole] = await found(engine, parent.id)
    assert [edge.task for edge in whole.edges] == children


async def test_at_most_a_thousand(engine: Engine) -> None:
    ids = await submit_many(engine, 1_000)
    assert [each.task.id for each in await found(engine, *ids)] == ids
    with pytest.raises(InvalidInput) as refused:
        await engine.records([*ids, new_id()])
    assert refused.value.field == "ids"


# From one store into another.


@pytest.mark.parametrize("now", [*ENDED, State.PENDING, State.SCHEDULED, State.RETRYING])
async def test_a_task_is_the_same_in_another_store(engine: Engine, second_engine: Engine, now: State) -> None:
    for each in (engine, second_engine):
        await each.put("limit", "per-user", encode({"cap": 2}))
    made = await make(engine, now, **RICH)
    await moved(engine, second_engine, made.id)


@pytest.mark.parametrize("now", [*ENDED, State.RETRYING])
async def test_what_it_did_is_the_same_in_another_store(engine: Engine, second_engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, State.RUNNING, max_crashes=9)
    assert made.claimed
    claimed = made.claimed
    await engine.signal(made.id, "go", b"1", "signal-1")
    for ending in (Ending.RETRY, Ending.CRASHED, Ending.SNOOZED):
        assert await engine.checkpoint([step(claimed, str(ending), 1, phase="running"), step(claimed, progress=Progress(0.5, "half"))]) == ()
        clock.advance(1)
        await made.holder.done(claimed, ending=ending)
        claimed = await made.holder.claim_one()
    ending = Ending.RETRY if now is State.RETRYING else Ending(now.value)
    await made.holder.done(claimed, ending=ending, **({"after": HOUR} if ending is Ending.RETRY else {}))
    [whole] = await moved(engine, second_engine, made.id)
    assert [attempt.number for attempt in whole.attempts] == [1, 2, 3, 4]


async def test_a_running_one_waits_in_another_store(engine: Engine, second_engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert await engine.checkpoint([step(made.claimed, "one", 1)]) == ()
    before = await found(engine, made.id)
    await second_engine.restore(before)
    [there] = await found(second_engine, made.id)
    assert (there.task.state, there.task.executions, dict(there.checkpoints)) == (State.PENDING, 1, {"one": b"1"})
    again = await (await worker(second_engine, queues=made.holder.queues)).claim_one()
    assert (again.id, again.attempt, dict(again.checkpoints)) == (made.id, 2, {"one": b"1"})


@pytest.mark.parametrize("backwards", [False, True])
async def test_a_graph_goes_on_in_another_store(engine: Engine, second_engine: Engine, *, backwards: bool) -> None:
    done, dead = await make(engine, State.COMPLETED, queue="done"), await make(engine, State.DEAD, queue="dead")
    left = new("left")
    top = new("top", edges=(Edge(done.id), Edge(dead.id, OnFailure.IGNORE), Edge(left.id)))
    end = after(top)
    ids = await submit(engine, left, top, end)
    ids = [*ids, done.id, dead.id]
    await moved(engine, second_engine, *(reversed(ids) if backwards else ids))
    assert await finish_next(second_engine, result=b'"done"') == left.id
    await settle(second_engine)
    [claimed] = await (await worker(second_engine)).claim(5)
    assert claimed.id == top.id
    assert [(edge.task, edge.outcome) for edge in claimed.results] == [(done.id, State.COMPLETED), (dead.id, State.DEAD), (left.id, State.COMPLETED)]


async def test_a_seal_holds_in_another_store(engine: Engine, second_engine: Engine) -> None:
    parent = new(sealed=True)
    child = new("child", parent=Edge(parent.id))
    await submit(engine, parent)
    await submit(engine, child)
    await moved(engine, second_engine, parent.id, child.id)
    assert await finish_next(second_engine) == child.id
    await settle(second_engine)
    assert await state(second_engine, parent.id) is State.WAITING
    await second_engine.submit([], unseal=[parent.id])
    assert ids_of(await (await worker(second_engine)).claim(5)) == [parent.id]


async def test_a_rejected_one_is_rejected_in_another_store(engine: Engine, second_engine: Engine) -> None:
    await engine.put("limit", "shut", encode({"cap": 0}))
    task = new(1, limits=("shut",), on_limit=OnLimit.REJECT, idempotency_key="k")
    await engine.submit([task])
    await moved(engine, second_engine, task.id)
    assert await submit_one(second_engine, 2, idempotency_key="k") != task.id


@pytest.mark.parametrize("now", list(State))
async def test_every_state_comes_to_an_end_in_another_store(engine: Engine, second_engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now)
    await second_engine.restore(await found(engine, made.id))
    hand = await worker(second_engine, queues=made.holder.queues)
    clock.advance("2h")
    await hand.done(*await hand.claim(5))
    assert await state(second_engine, made.id) is (now if now in ENDED else State.COMPLETED)


async def test_a_thousand_at_once(engine: Engine, second_engine: Engine) -> None:
    for each in (engine, second_engine):
        await each.put("limit", "two", encode({"cap": 2}))
    kinds: Sequence[dict[str, object]] = ({}, {"limits": ("two",)}, {"order_key": "k"}, {"delay": HOUR}, {"idempotency_key": "key"}, {"sealed": True})
    tasks = [new(n, **{**kind, **({"idempotency_key": f"key-{n}"} if "idempotency_key" in kind else {})}) for n in range(150) for kind in kinds]
    ids = await submit(engine, *tasks)
    await moved(engine, second_engine, *ids)
