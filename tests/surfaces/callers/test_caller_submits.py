"""Submits: by type, by name, as calls, one and many; what they carry and what is refused; by an App and by a Client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from taskmill import App, Context, Retry, State, TaskType, Unique
from taskmill.clock import HOUR, MINUTE, SECOND, rfc3339
from taskmill.engine import Filter
from taskmill.errors import Conflict, InvalidInput, InvalidPayload, NotFound, RateLimited
from taskmill.task import Task, new_id
from tests.surfaces.callers.conftest import Caller


@pytest.fixture
async def app(store: str) -> AsyncIterator[App]:
    app = App(store)

    @app.task(queue="mail", retry=Retry.fixed("2s"), timeout="30s", rate_limit="100/m")
    async def send_welcome(ctx: Context, user_id: int) -> str:
        return f"sent to {user_id}"

    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    app.limit("gateway", cap=3)
    app.limit("per-user", cap=1)

    @app.task(rate_limit="1/h", on_limit="reject")
    def rare() -> None: ...

    await app.open()
    await app.engine.join(app.joining("w"))
    yield app
    await app.close()


@pytest.fixture(autouse=True)
async def closed(caller: Caller) -> AsyncIterator[None]:
    yield
    await caller.close()


def of(app: App, name: str) -> TaskType[..., Any, Any]:
    return app.types[name]


async def test_a_submit_is_what_the_call_says(app: App, caller: Caller) -> None:
    task = await (await caller.submit(of(app, "send_welcome").call(42))).task()
    assert (task.type, task.queue, task.payload, task.limits, task.timeout, task.retry) == (
        "send_welcome",
        "mail",
        b'{"user_id":42}',
        ("send_welcome",),
        30 * SECOND,
        Retry.fixed("2s"),
    )


async def test_the_record_is_the_same_whoever_looks(app: App, caller: Caller) -> None:
    options: dict[str, Any] = {
        "delay": "10m", "priority": "high", "tags": {"a": "b"}, "headers": {"x-request": "7 ü"}, "expires": "1h", "timeout": "1500us", "max_crashes": 2,
        "retry": Retry.exponential(max_retries=7).on(ValueError, "fail"), "idempotency_key": "once", "idempotency_window": "2h", "fair_key": "f",
        "order_key": "o", "unique": Unique("u", "started", "replace"), "limits": ("per-user:7", "gateway"),
    }  # fmt: skip
    handle = await caller.submit("add", {"a": [1.5, "text", None]}, **options)
    [stored] = await app.engine.get([handle.id])
    assert isinstance(stored, Task)
    assert await handle.task() == stored
    assert (stored.state, stored.priority, stored.tags, stored.timeout, stored.max_crashes) == (State.SCHEDULED, 2, {"a": "b"}, 1_500, 2)
    assert (stored.idempotency_key, stored.idempotency_window, stored.limits) == ("once", 2 * HOUR, ("gateway", "per-user:7"))
    assert stored.unique == Unique("u", "started", "replace")
    assert stored.run_at - stored.created_at == 10 * MINUTE
    assert stored.expires_at is not None
    assert HOUR - MINUTE < stored.expires_at - stored.created_at < HOUR + MINUTE


async def test_times_are_kept(app: App, caller: Caller) -> None:
    later = app.clock.now() + HOUR
    handle = await caller.submit("add", {"a": 1}, run_at=later, expires_at=rfc3339(later + HOUR), durability="fsync")
    task = await handle.task()
    assert (task.run_at, task.expires_at) == (later, later + HOUR)
    assert handle.submitted is not None
    assert handle.submitted.durability == "fsync"


async def test_one_key_gives_one_task(app: App, caller: Caller) -> None:
    add = of(app, "add").options(idempotency_key="one")
    first, second = await caller.submit(add.call(1)), await caller.submit(add.call(1))
    assert first == second
    assert [handle.submitted.status for handle in (first, second) if handle.submitted] == ["created", "duplicate"]
    with pytest.raises(Conflict) as caught:
        await caller.submit(add.call(2))
    assert caught.value.task_id == first.id


async def test_one_id_gives_one_task(app: App, caller: Caller) -> None:
    id = new_id()
    first, second = await caller.submit("add", {"a": 1}, id=id), await caller.submit("add", {"a": 1}, id=id)
    assert [(handle.id, handle.submitted.status) for handle in (first, second) if handle.submitted] == [(id, "created"), (id, "duplicate")]


async def test_a_task_waits_for_others(app: App, caller: Caller) -> None:
    first = await caller.submit(of(app, "add").call(1))
    second = await caller.submit(of(app, "add").options(after=first, on_failure="ignore").call(2))
    assert await second.status() is State.WAITING
    assert [(edge.task, edge.on_failure) for edge in await app.engine.edges(second.id)] == [(first.id, "ignore")]


async def test_many_in_order(app: App, caller: Caller) -> None:
    handles = await caller.submit_many(of(app, "add").call(i) for i in range(2_500))
    tasks = await app.engine.get([handle.id for handle in handles])
    assert [json.loads(task.payload)["a"] for task in tasks if task is not None and hasattr(task, "payload")] == list(range(2_500))
    assert await caller.submit_many([]) == []


async def test_many_that_wait_for_each_other(app: App, caller: Caller) -> None:
    ids = [new_id() for _ in range(1_200)]
    add = of(app, "add")
    calls = [add.options(id=id, after=ids[place - 1] if place else None).call(place) for place, id in enumerate(ids)]
    handles = await caller.submit_many(calls)
    assert [handle.id for handle in handles] == ids
    assert await handles[-1].status() is State.WAITING


async def test_one_refused_among_many_is_told_and_the_others_stand(app: App, caller: Caller) -> None:
    add = of(app, "add")
    calls = [add.call(1), add.options(after=[new_id()]).call(2), add.call(3)]
    with pytest.raises(NotFound) as caught:
        await caller.submit_many(calls)
    assert (caught.value.code, caught.value.field) == ("unknown_edge", "edges")
    assert await app.operations.count(Filter(types=frozenset({"add"}))) == 2


async def test_by_name(app: App, caller: Caller) -> None:
    handle = await caller.submit("add", {"a": 3}, delay="1m")
    assert (await handle.task()).payload == b'{"a":3}'
    foreign = await caller.submit("of_another_program", [1, 2], queue="elsewhere")
    assert (await foreign.task()).queue == "elsewhere"
    assert (await (await caller.submit(of(app, "add"), {"a": 3})).task()).payload == b'{"a":3}'
    assert (await (await caller.submit(of(app, "add").call(4))).task()).payload == b'{"a":4}'


async def test_what_cannot_be_submitted(app: App, caller: Caller) -> None:
    submit: Any = caller.submit
    with pytest.raises(InvalidInput) as unknown:
        await caller.submit("of_nobody", {})
    assert (unknown.value.code, unknown.value.field) == ("unknown_type", "type")
    with pytest.raises(InvalidInput) as misspelt:
        await submit("add", {}, dealy=3)
    assert misspelt.value.hint == "did you mean delay?"
    with pytest.raises(InvalidPayload) as wrong:
        await caller.submit(of(app, "add"), {"a": "text"})
    assert wrong.value.field == "a"
    with pytest.raises(InvalidInput, match="is no task"):
        await submit(print, {})
    with pytest.raises(InvalidInput, match="is not a name"):
        await caller.submit("No Type", {})
    with pytest.raises(InvalidInput) as long:
        await caller.submit("add", {"a": 1}, idempotency_key="x" * 300)
    assert (long.value.code, long.value.field) == ("invalid_key", "idempotency_key")


async def test_a_payload_that_is_too_large(caller: Caller) -> None:
    with pytest.raises(InvalidInput) as large:
        await caller.submit("add", "x" * 300_000)
    assert (large.value.code, large.value.field) == ("payload_too_large", "payload")


async def test_a_limit_that_rejects(app: App, caller: Caller) -> None:
    await caller.submit(of(app, "rare").call())
    with pytest.raises(RateLimited) as caught:
        await caller.submit(of(app, "rare").call())
    assert caught.value.code == "rate_limited"


async def test_a_unique_task_stands_in_the_way(caller: Caller) -> None:
    first = await caller.submit("add", {"a": 1}, unique="only")
    second = await caller.submit("add", {"a": 2}, unique="only")
    assert second.id == first.id
    assert second.submitted is not None
    assert second.submitted.status == "duplicate"


def test_without_a_loop_a_submit_names_the_door(app: App, caller: Caller) -> None:
    verbs: dict[str, Any] = {
        f"{caller.word}.sync.submit()": lambda: caller.submit("add", {"a": 1}),
        f"{caller.word}.sync.submit_many()": lambda: caller.submit_many([of(app, "add").call(1)]),
        "handle.sync.result()": lambda: caller.handle(new_id()).result(),
        "handle.sync.status()": lambda: caller.handle(new_id()).status(),
    }
    for blocking, verb in verbs.items():
        with pytest.raises(InvalidInput) as caught:
            verb()
        assert caught.value.code == "no_loop"
        assert caught.value.hint == f"from plain functions call {blocking}"
