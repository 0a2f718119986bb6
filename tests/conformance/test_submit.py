"""submit: every task is stored once, by id and by key, or its refusal says why."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from taskmill.clock import HOUR, MINUTE, SECOND, ManualClock
from taskmill.engine import Durability, Ending, Engine, Status
from taskmill.errors import InvalidInput
from taskmill.retry import Retry
from taskmill.task import Edge, Gone, NewTask, OnFailure, Priority, State, TypeSettings, new_id
from tests.conformance.tools import (
    QUEUE,
    TYPE,
    Store,
    accepted,
    all_tasks,
    encode,
    ids_of,
    new,
    record,
    refusal,
    state,
    states,
    submit,
    submit_many,
    submit_one,
    worker,
)


async def test_a_new_task_is_stored_as_it_was_given(engine: Engine, clock: ManualClock, fresh: Status) -> None:
    given = new(
        {"user": 42},
        priority=Priority.HIGH,
        retry=Retry.fixed("9s", max_retries=7),
        timeout=90 * SECOND,
        max_crashes=5,
        expires_at=clock.now() + HOUR,
        idempotency_key="welcome-42",
        tenant="acme",
        headers={"traceparent": "00-1-2-01"},
        tags={"colour": "red"},
        fair_key="acme",
        order_key="user-42",
    )
    [answer] = await engine.submit([given])
    assert (answer.status, answer.id, answer.reserved, answer.error) == (fresh, given.id, False, None)
    assert answer.durability in set(Durability)
    task = await record(engine, given.id)
    kept = ("id", "type", "queue", "payload", "priority", "retry", "timeout", "max_crashes", "expires_at", "idempotency_key", "tenant", "fair_key", "order_key")
    assert {name: getattr(task, name) for name in kept} == {name: getattr(given, name) for name in kept}
    assert (dict(task.headers), dict(task.tags)) == (given.headers, given.tags)
    assert (task.state, task.version, task.executions, task.failures, task.crashes) == (State.PENDING, 1, 0, 0, 0)
    assert (task.created_at, task.run_at, task.started_at, task.finished_at) == (clock.now(), clock.now(), None, None)


async def test_what_the_caller_leaves_out_comes_from_the_stored_type(engine: Engine) -> None:
    settings = TypeSettings(
        queue="mail", priority=Priority.HIGH, retry=Retry.fixed("3s", max_retries=1), timeout=MINUTE, max_crashes=9, fair="tenant", ordered="{user}"
    )
    await worker(engine, settings={"mail.send": settings})
    task = await record(engine, await submit_one(engine, {"user": 7}, type="mail.send", queue=None, tenant="acme"))
    assert (task.queue, task.priority, task.retry, task.timeout, task.max_crashes) == ("mail", Priority.HIGH, settings.retry, MINUTE, 9)
    assert (task.fair_key, task.order_key) == ("acme", "7")


async def test_what_the_caller_gives_stands_over_the_type(engine: Engine) -> None:
    await worker(engine, settings={TYPE: TypeSettings(queue="mail", priority=Priority.HIGH, timeout=MINUTE)})
    task = await record(engine, await submit_one(engine, queue="other", priority=Priority.LOW, timeout=SECOND))
    assert (task.queue, task.priority, task.timeout) == ("other", Priority.LOW, SECOND)


async def test_an_unknown_type_needs_a_queue(engine: Engine) -> None:
    without, named = new(queue=None), new()
    answers = await engine.submit([without, named])
    assert refusal(answers[0]) == "unknown_type"
    assert answers[0].error is not None
    assert (answers[0].error.field, bool(answers[0].error.hint)) == ("type", True)
    assert accepted(answers[1]) == named.id
    assert [task.id for task in await all_tasks(engine)] == [named.id]


BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("invalid_name", "type", {"type": "Not A Name"}),
    ("invalid_name", "queue", {"queue": "../etc"}),
    ("invalid_id", "id", {"id": "17"}),
    ("out_of_range", "priority", {"priority": 4}),
    ("out_of_range", "delay", {"delay": -1}),
    ("out_of_range", "timeout", {"timeout": 0}),
    ("out_of_range", "max_crashes", {"max_crashes": -1}),
    ("invalid_key", "idempotency_key", {"idempotency_key": ""}),
    ("invalid_key", "tenant", {"tenant": "a\nb"}),
    ("invalid_key", "order_key", {"order_key": "\ud800"}),
    ("invalid_name", "tags", {"tags": {"No Name": "x"}}),
    ("invalid_header", "headers.x", {"headers": {"x": "a\r\nb"}}),
    ("unknown_limit", "limits", {"limits": ("nobody-defined-it",)}),
    ("unknown_edge", "edges", {"edges": (Edge(new_id()),)}),
    ("payload_too_large", "payload", {"payload": b'"' + b"x" * 2_000_000 + b'"'}),
]


@pytest.mark.parametrize(("code", "field", "fields"), BAD, ids=[f"{code}-{field}" for code, field, _ in BAD])
async def test_a_bad_task_is_refused_and_the_rest_of_its_batch_stored(engine: Engine, code: str, field: str, fields: dict[str, Any]) -> None:
    before, bad, after = new(1), new(**fields), new(3)
    answers = await engine.submit([before, bad, after])
    assert refusal(answers[1]) == code
    assert answers[1].error is not None
    assert answers[1].error.field == field
    assert [accepted(answers[0]), accepted(answers[2])] == [before.id, after.id]
    assert {task.id for task in await all_tasks(engine)} == {before.id, after.id}


async def test_a_key_from_the_payload_must_be_there(engine: Engine) -> None:
    await worker(engine, settings={TYPE: TypeSettings(ordered="{user}")})
    [answer] = await engine.submit([new({"name": "x"})])
    assert refusal(answer) == "missing_key"


async def test_nothing_submitted_nothing_answered(engine: Engine) -> None:
    assert await engine.submit([]) == ()


async def test_a_batch_beyond_the_bound_is_refused_whole(engine: Engine) -> None:
    with pytest.raises(InvalidInput) as refused:
        await engine.submit([NewTask(type=TYPE, queue=QUEUE) for _ in range(engine.features.max_batch + 1)])
    assert refused.value.code == "batch_too_large"
    assert await all_tasks(engine) == []


async def test_a_large_batch_is_stored_in_its_order(engine: Engine) -> None:
    ids = await submit_many(engine, 2_000)
    assert ids_of(await (await worker(engine)).claim_all()) == ids


async def test_a_delayed_task_is_scheduled_until_it_is_due_and_then_reads_as_pending(engine: Engine, clock: ManualClock) -> None:
    delayed, timed, past = await submit(engine, new(delay=10 * SECOND), new(run_at=clock.now() + 20 * SECOND), new(run_at=clock.now() - HOUR))
    assert await states(engine, [delayed, timed, past]) == [State.SCHEDULED, State.SCHEDULED, State.PENDING]
    assert (await record(engine, delayed)).run_at == clock.now() + 10 * SECOND
    clock.advance(10)
    assert await states(engine, [delayed, timed]) == [State.PENDING, State.SCHEDULED]
    clock.advance(10)
    assert await states(engine, [delayed, timed]) == [State.PENDING, State.PENDING]


# By id.


async def test_the_same_id_and_payload_is_a_duplicate(engine: Engine) -> None:
    id = await submit_one(engine, {"a": 1, "b": [1, 2]})
    [answer] = await engine.submit([new(id=id, payload=b'{ "b": [1, 2], "a": 1 }')])
    assert (answer.status, answer.id) == (Status.DUPLICATE, id)
    assert len(await all_tasks(engine)) == 1


async def test_the_same_id_and_another_payload_is_a_conflict(engine: Engine) -> None:
    id = await submit_one(engine, 1)
    [answer] = await engine.submit([new(2, id=id)])
    assert (answer.status, answer.id) == (Status.CONFLICT, id)
    assert answer.error is not None
    assert answer.error.code == "conflict"
    assert (await record(engine, id)).payload == encode(1)


async def test_a_duplicate_changes_nothing_whatever_state_the_task_is_in(engine: Engine) -> None:
    one = await worker(engine)
    given = new(1)
    await submit(engine, given)
    [task] = await one.claim()
    running = await record(engine, given.id)
    assert (await engine.submit([given]))[0].status is Status.DUPLICATE
    assert await record(engine, given.id) == running
    await one.done(task)
    ended = await record(engine, given.id)
    assert (await engine.submit([given]))[0].status is Status.DUPLICATE
    assert await record(engine, given.id) == ended
    assert await one.claim() == []


async def test_two_of_one_id_in_a_batch(engine: Engine, fresh: Status) -> None:
    first = new(1)
    answers = await engine.submit([first, new(1, id=first.id), new(2, id=first.id)])
    assert [answer.status for answer in answers] == [fresh, Status.DUPLICATE, Status.CONFLICT]
    assert {answer.id for answer in answers} == {first.id}
    assert len(await all_tasks(engine)) == 1


async def test_one_id_from_a_thousand_callers_at_once(store: Store, engine: Engine) -> None:
    engines = [engine, *await store.engines(3)]
    task = new(1)
    answers = await asyncio.gather(*(engines[n % 4].submit([task]) for n in range(1_000)))
    counted = Counter(answer.status for [answer] in answers)
    assert counted == ({Status.DUPLICATE: 1_000} if store.lost else {Status.CREATED: 1, Status.DUPLICATE: 999})
    assert [found.id for found in await all_tasks(engine)] == [task.id]


# Reserved: a log in front of the store will bring the task.


async def test_a_reserved_task_is_known_but_not_there(engine: Engine, fresh: Status) -> None:
    task = new(1, idempotency_key="k")
    [answer] = await engine.submit([task], reserved=True)
    assert (answer.status, answer.id) == (fresh, task.id)
    assert await engine.get([task.id]) == (Gone(task.id, None),)
    assert await all_tasks(engine) == []
    assert await (await worker(engine)).claim() == []


async def test_a_reserved_task_is_created_when_it_comes(engine: Engine) -> None:
    task = new(1, idempotency_key="k")
    await engine.submit([task], reserved=True)
    assert await submit(engine, task) == [task.id]
    assert (await record(engine, task.id)).payload == encode(1)
    assert ids_of(await (await worker(engine)).claim()) == [task.id]
    [repeated] = await engine.submit([task], reserved=True)
    assert (repeated.status, repeated.id) == (Status.DUPLICATE, task.id)


@pytest.mark.heard_only("the first answer for the id that comes at last")
async def test_a_reserved_task_that_comes_is_new(engine: Engine) -> None:
    task = new(1)
    await engine.submit([task], reserved=True)
    [answer] = await engine.submit([task])
    assert (answer.status, answer.reserved) == (Status.CREATED, False)


async def test_a_repeat_of_a_reservation_and_another_id_with_its_key(engine: Engine) -> None:
    task = new(1, idempotency_key="k")
    await engine.submit([task], reserved=True)
    for again in (task, new(1, idempotency_key="k")):
        [answer] = await engine.submit([again], reserved=True)
        assert (answer.status, answer.id, answer.reserved) == (Status.DUPLICATE, task.id, True)
    [answer] = await engine.submit([new(1, idempotency_key="k")])
    assert (answer.status, answer.id, answer.reserved) == (Status.DUPLICATE, task.id, True)
    [answer] = await engine.submit([new(2, idempotency_key="k")])
    assert (answer.status, answer.id) == (Status.CONFLICT, task.id)
    assert await all_tasks(engine) == []


# Edges are resolved in the submitting step.


async def test_edges_inside_a_batch_stand_in_any_order(engine: Engine) -> None:
    child, other = new("child"), new("other")
    parent = new("parent", edges=(Edge(child.id), Edge(other.id)))
    await submit(engine, child, parent, other)
    assert await states(engine, [child.id, parent.id, other.id]) == [State.PENDING, State.WAITING, State.PENDING]
    assert (await record(engine, parent.id)).open_edges == 2
    one = await worker(engine)
    claimed = await one.claim(10)
    assert ids_of(claimed) == [child.id, other.id]
    await one.done(*claimed)
    assert ids_of(await one.claim(10)) == [parent.id]


async def test_a_task_that_waits_for_ended_ones_is_ready_at_once(engine: Engine) -> None:
    one = await worker(engine)
    child = await submit_one(engine)
    await one.done(await one.claim_one(), result=encode("done"))
    parent = await submit_one(engine, edges=(Edge(child),))
    [claimed] = await one.claim()
    assert claimed.id == parent
    assert [(edge.task, edge.outcome, edge.result) for edge in claimed.results] == [(child, State.COMPLETED, encode("done"))]


@pytest.mark.parametrize(
    ("on_failure", "expected"),
    [(OnFailure.CANCEL, State.CANCELLED), (OnFailure.IGNORE, State.PENDING), (OnFailure.HOLD, State.WAITING)],
    ids=str,
)
async def test_a_task_that_waits_for_a_failed_one(engine: Engine, on_failure: OnFailure, expected: State) -> None:
    one = await worker(engine)
    child = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.DEAD)
    parent = await submit_one(engine, edges=(Edge(child, on_failure),))
    assert await state(engine, parent) is expected


async def test_an_edge_to_a_duplicate_goes_to_the_first_task(engine: Engine) -> None:
    first = await submit_one(engine, 1, idempotency_key="k")
    duplicate = new(1, idempotency_key="k")
    parent = new("parent", edges=(Edge(duplicate.id),))
    answers = await engine.submit([duplicate, parent])
    assert (answers[0].id, accepted(answers[1])) == (first, parent.id)
    assert [edge.task for edge in await engine.edges(parent.id)] == [first]
    one = await worker(engine)
    await one.done(await one.claim_one())
    assert ids_of(await one.claim()) == [parent.id]


async def test_a_sealed_parent_takes_children_until_its_seal_is_broken(engine: Engine) -> None:
    one = await worker(engine)
    parent = await submit_one(engine, "parent", sealed=True)
    assert await state(engine, parent) is State.WAITING
    children = await submit(engine, new(1, parent=Edge(parent)), new(2, parent=Edge(parent)))
    await one.done(*await one.claim(10))
    assert await state(engine, parent) is State.WAITING
    last = new(3, parent=Edge(parent))
    [answer] = await engine.submit([last], unseal=[parent])
    assert accepted(answer) == last.id
    await one.done(await one.claim_one())
    [claimed] = await one.claim(10)
    assert (claimed.id, {edge.task for edge in claimed.results}) == (parent, {*children, last.id})
    [late] = await engine.submit([new(4, parent=Edge(parent))])
    assert refusal(late) == "no_seal"


async def test_a_broken_seal_with_nothing_open_makes_ready(engine: Engine) -> None:
    parent = await submit_one(engine, sealed=True)
    await engine.submit([], unseal=[parent])
    assert await state(engine, parent) is State.PENDING


async def test_a_parent_of_the_same_batch_needs_no_seal(engine: Engine) -> None:
    one = await worker(engine)
    parent = new("parent")
    children = [new(n, parent=Edge(parent.id)) for n in range(2)]
    await submit(engine, children[0], parent, children[1])
    assert await state(engine, parent.id) is State.WAITING
    await one.done(*await one.claim(10))
    assert ids_of(await one.claim(10)) == [parent.id]


@pytest.mark.parametrize("ended", [False, True])
async def test_a_parent_that_was_there_before_takes_no_child_without_a_seal(engine: Engine, ended: bool) -> None:
    one = await worker(engine)
    parent, child = new("parent"), new("child")
    await submit(engine, parent)
    if ended:
        await one.done(await one.claim_one())
    before = await record(engine, parent.id)
    child = new("child", parent=Edge(parent.id))
    answers = await engine.submit([parent, child])
    assert answers[0].status is Status.DUPLICATE
    assert refusal(answers[1]) == "no_seal"
    assert await record(engine, parent.id) == before
    assert await engine.get([child.id]) == (None,)


async def test_the_parent_of_a_child_is_the_first_of_its_key(engine: Engine) -> None:
    first = await submit_one(engine, "parent", idempotency_key="k", sealed=True)
    duplicate = new("parent", idempotency_key="k", sealed=True)
    child = new("child", parent=Edge(duplicate.id))
    answers = await engine.submit([duplicate, child])
    assert (answers[0].id, accepted(answers[1])) == (first, child.id)
    assert [edge.task for edge in await engine.edges(first)] == [child.id]


async def test_tasks_that_wait_for_each_other_are_refused(engine: Engine) -> None:
    one, two = new_id(), new_id()
    alone = new("alone")
    answers = await engine.submit([new(id=one, edges=(Edge(two),)), new(id=two, edges=(Edge(one),)), alone])
    assert [refusal(answer) for answer in answers[:2]] == ["cycle", "cycle"]
    assert [task.id for task in await all_tasks(engine)] == [alone.id]


async def test_what_waits_for_a_refused_task_is_refused(engine: Engine) -> None:
    bad = new(queue="Not A Name")
    answers = await engine.submit([new("parent", edges=(Edge(bad.id),)), bad])
    assert [refusal(answer) for answer in answers] == ["unknown_edge", "invalid_name"]
    assert await all_tasks(engine) == []
