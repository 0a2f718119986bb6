"""Declaring: what a decorator makes of a function and its options, and what it refuses."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from taskmill import App, Context, Priority, Retry, Tasks, TaskType, Unique
from taskmill.clock import DAY, HOUR, MINUTE, SECOND
from taskmill.errors import AppError, InvalidInput
from taskmill.task import Edge, OnFailure, OnLimit, TypeSettings, new_id


@pytest.fixture
def app() -> App:
    return App("sqlite://:memory:")


def refused(make: Any, *args: Any, **kwargs: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        make(*args, **kwargs)
    return caught.value


def plain(user_id: int = 0) -> int:
    return user_id


# The type


def test_bare_and_with_options(app: App) -> None:
    @app.task
    async def first(a: int) -> None: ...

    @app.task(queue="mail")
    def second(ctx: Context, a: int) -> None: ...

    assert list(app.types) == ["first", "second"]
    assert (first.name, first.mode, first.settings) == ("first", "async", TypeSettings())
    assert (second.mode, second.settings.queue, second.binding.wants_context) == ("sync", "mail", True)


def test_a_type_looks_like_its_function(app: App) -> None:
    @app.task
    def documented() -> None:
        """What it does."""

    assert documented.__doc__ == "What it does."
    assert documented.__name__ == "documented"
    assert documented.__module__ == __name__


def test_a_direct_call_is_the_function(app: App) -> None:
    assert app.task(plain)(7) == 7


async def test_a_direct_call_gets_an_inline_context(app: App) -> None:
    @app.task
    async def counted(ctx: Context, a: int) -> tuple[str, int, int, dict[str, Any]]:
        await ctx.progress(0.5)
        await ctx.checkpoint("half", a)
        return ctx.type, ctx.attempt, a, dict(ctx.checkpoints)

    assert await counted(3) == ("counted", 1, 3, {"half": 3})


async def test_a_direct_call_needs_no_app() -> None:
    tasks = Tasks()

    @tasks.task
    async def alone(ctx: Context) -> int:
        return ctx.attempt

    assert await alone() == 1


def test_every_setting(app: App) -> None:
    app.limit("gateway", rate="3/s", cap=2)
    every = app.task(
        name="every",
        queue="mail",
        priority="high",
        retry=Retry.fixed("2s"),
        timeout="30s",
        max_crashes=1,
        rate_limit="100/m",
        concurrency=5,
        limits=("gateway", "per-user:{user_id}"),
        on_limit="reject",
        unique="user-{user_id}",
        fair="tenant",
        ordered="{user_id}",
    )(plain)
    assert every.settings == TypeSettings(
        queue="mail",
        priority=Priority.HIGH,
        retry=Retry.fixed("2s"),
        timeout=30 * SECOND,
        max_crashes=1,
        limits=("gateway", "per-user:{user_id}", "every"),
        on_limit=OnLimit.REJECT,
        unique=Unique("user-{user_id}"),
        fair="tenant",
        ordered="{user_id}",
    )
    assert app.limits == {"gateway": b'{"rate":3,"window":1000000,"cap":2}', "every": b'{"rate":100,"window":60000000,"cap":5}'}


def test_ordered_alone_is_the_whole_type(app: App) -> None:
    assert app.task(ordered=True)(plain).settings.ordered == "plain"
    assert app.task(name="other", ordered=False)(plain).settings.ordered is None


def test_isolated(app: App) -> None:
    assert app.task(isolated=True)(plain).mode == "isolated"


def test_an_object_with_an_async_call(app: App) -> None:
    class Handler:
        async def __call__(self, a: int) -> None: ...

    assert app.task(name="object")(Handler()).mode == "async"


def test_none_is_not_given(app: App) -> None:
    assert app.task(name=None, queue=None, timeout=None)(plain).declared == frozenset()


@pytest.mark.parametrize(
    ("text", "rate", "window"),
    [("3/s", 3, SECOND), ("100/m", 100, MINUTE), ("7/h", 7, HOUR), ("1/d", 1, DAY), ("10/5s", 10, 5 * SECOND), (" 2 / 250ms ", 2, 250_000)],
)
def test_rates(app: App, text: str, rate: int, window: int) -> None:
    app.limit("gateway", rate=text)
    assert app.limits["gateway"] == b'{"rate":%d,"window":%d}' % (rate, window)


@pytest.mark.parametrize("text", ["", "100", "100/", "/m", "0/s", "1.5/s", "-1/s", "10/0s", "1/400d", "many/s", "100/w", 5])
def test_what_is_no_rate(app: App, text: Any) -> None:
    error = refused(app.limit, "gateway", rate=text)
    assert (error.code, error.field) == ("invalid_rate", "rate")
    assert app.limits == {}


def test_a_limit_that_limits_nothing(app: App) -> None:
    assert refused(app.limit, "gateway").message == "it limits nothing"


# Refused


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("quue", "mail", "quue: @app.task() has no such option (did you mean queue?)"),
        ("retries", 5, "retries: @app.task() has no such option (did you mean retry?)"),
        ("rate", "1/s", "rate: @app.task() has no such option (did you mean rate_limit?)"),
        ("priority", "urgent", "priority: 'urgent' is not known (one of critical, high, normal, low)"),
        ("priority", "hgih", "priority: 'hgih' is not known (did you mean high?)"),
        ("retry", 5, "retry: 5 is no retry policy (for example Retry.exponential(max_retries=5))"),
        ("on_limit", "drop", "on_limit: 'drop' is not known (one of delay, reject)"),
    ],
    ids=["quue", "retries", "rate", "urgent", "hgih", "retry", "on_limit"],
)
def test_an_option_that_cannot_be(app: App, option: str, value: object, text: str) -> None:
    def declare() -> None:
        options: Any = {option: value}
        app.task(**options)(plain)

    assert str(refused(declare)) == text
    assert app.types == {}


@pytest.mark.parametrize(
    ("option", "value"),
    [("queue", "No Queue"), ("timeout", "soon"), ("timeout", 0), ("max_crashes", -1), ("limits", "Big Limit"), ("unique", 3), ("concurrency", -1)],
)
def test_a_value_that_cannot_be(app: App, option: str, value: object) -> None:
    def declare() -> None:
        options: Any = {option: value}
        app.task(**options)(plain)

    assert (refused(declare).field or "").startswith(option)


def test_a_name_that_is_taken(app: App) -> None:
    app.task(plain)
    error = refused(app.task, plain)
    assert (error.code, error.field) == ("name_taken", "plain")
    assert "name=" in (error.hint or "")


@pytest.mark.parametrize("function", [lambda: None, type("Mixed", (), {"__call__": lambda self: None})()], ids=["lambda", "object"])
def test_a_name_that_is_no_type(app: App, function: Any) -> None:
    error = refused(app.task, function)
    assert error.code == "invalid_name"
    assert "name=" in (error.hint or "")


def test_what_is_no_function(app: App) -> None:
    def yields() -> Iterator[int]:
        yield 1

    async def streams() -> AsyncIterator[int]:
        yield 1

    assert refused(app.task, "mail").hint == '@app.task(name="mail")'
    assert "no function" in refused(app.task, 5).message
    assert "no function" in refused(app.task, int).message
    assert "does not yield" in refused(app.task, yields).message
    assert "does not yield" in refused(app.task, streams).message
    assert "already" in refused(app.task, app.task(plain)).message


def test_a_partial_needs_a_name(app: App) -> None:
    assert app.task(name="named")(functools.partial(plain, 3))() == 3


# Options of a submit


def fields(**options: Any) -> dict[str, Any]:
    declared: TaskType[..., Any, Any] = App("sqlite://:memory:").task(plain)
    return dict(declared.options(**options).call(1).fields)


def test_every_option_of_a_submit() -> None:
    one, two = new_id(), new_id()
    assert fields(
        delay="10m",
        priority="high",
        queue="other",
        retry=Retry.fixed(),
        timeout=5,
        expires_at="2026-01-31T09:00:00Z",
        idempotency_key="key",
        idempotency_window="1h",
        unique="one",
        tenant="acme",
        tags={"kind": "test"},
        headers={"traceparent": "00"},
        after=[one, two],
        on_failure="ignore",
        limits="gateway",
        on_limit="reject",
        fair_key="acme",
        order_key="acme",
        id=one,
    ) == {
        "delay": 10 * MINUTE,
        "priority": 2,
        "queue": "other",
        "retry": Retry.fixed(),
        "timeout": 5 * SECOND,
        "expires_at": 1_769_850_000 * SECOND,
        "idempotency_key": "key",
        "idempotency_window": HOUR,
        "unique": Unique("one"),
        "tenant": "acme",
        "tags": {"kind": "test"},
        "headers": {"traceparent": "00"},
        "edges": (Edge(one, OnFailure.IGNORE), Edge(two, OnFailure.IGNORE)),
        "limits": ("gateway",),
        "on_limit": OnLimit.REJECT,
        "fair_key": "acme",
        "order_key": "acme",
        "id": one,
    }


def test_only_the_queue_is_said_without_options() -> None:
    assert fields() == {"queue": "default"}


def test_expiry_counts_from_the_submit(app: App) -> None:
    call = app.task(plain).options(expires="1m").call(1)
    assert call.new(now=5 * SECOND).expires_at == 5 * SECOND + MINUTE


def test_a_fresh_id_each_unless_fixed(app: App) -> None:
    declared = app.task(plain)
    free, fixed = declared.call(1), declared.options(id=new_id()).call(1)
    assert free.new().id != free.new().id
    assert fixed.new().id == fixed.new("another").id == fixed.fields["id"]


@pytest.mark.parametrize(
    ("options", "field", "hint"),
    [
        ({"dealy": 5}, "dealy", "did you mean delay?"),
        ({"delay": 5, "run_at": "2026-01-31T09:00:00Z"}, "delay", "give one of them"),
        ({"expires": 5, "expires_at": "2026-01-31T09:00:00Z"}, "expires", "give one of them"),
        ({"run_at": "2026-01-31T09:00:00"}, "run_at", None),
        ({"after": ["nobody"]}, "after", None),
        ({"after": [5]}, "after", None),
        ({"tags": ["a"]}, "tags", None),
        ({"tags": {"a": 1}}, "tags.a", None),
        ({"durability": "paper"}, "durability", None),
        ({"id": "1"}, "id", None),
        ({"on_failure": "panic", "after": []}, "on_failure", None),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be(options: dict[str, Any], field: str, hint: str | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        fields(**options)
    assert caught.value.field == field
    assert hint is None or caught.value.hint == hint


# Schedules


def test_a_schedule_declares_its_function_too(app: App) -> None:
    @app.schedule("0 9 * * MON-FRI", timezone="Europe/Paris", overlap="skip", queue="reports")
    def morning_report() -> None: ...

    schedule = app.schedules["morning_report"]
    assert app.types["morning_report"] is morning_report
    assert (schedule.type, schedule.cron.timezone, schedule.overlap, schedule.queue, schedule.payload) == (
        "morning_report",
        "Europe/Paris",
        "skip",
        "reports",
        b"{}",
    )


def test_several_schedules_of_one_task(app: App) -> None:
    @app.schedule("@hourly", arguments={"user_id": 1}, misfire="skip", tenant="acme", tags={"a": "b"}, expires="5m", start="2026-01-31T09:00:00Z")
    @app.schedule("@daily", name="daily", arguments={"user_id": 2})
    @app.task
    def report(user_id: int) -> None: ...

    assert list(app.types) == ["report"]
    assert {name: schedule.payload for name, schedule in app.schedules.items()} == {"daily": b'{"user_id":2}', "report": b'{"user_id":1}'}
    hourly = app.schedules["report"]
    assert (hourly.misfire, hourly.tenant, hourly.tags, hourly.expires, hourly.cron.start) == ("skip", "acme", {"a": "b"}, 5 * MINUTE, 1_769_850_000 * SECOND)


@pytest.mark.parametrize(
    ("expression", "options", "field"),
    [
        ("* * *", {}, None),
        ("@daily", {"timezone": "Mars/Olympus"}, None),
        ("@daily", {"overlap": "never"}, "overlap"),
        ("@daily", {"misfire": "never"}, "misfire"),
        ("@daily", {"overlpa": "skip"}, "overlpa"),
        ("@daily", {"arguments": {"nobody": 1}}, "nobody"),
        ("@daily", {"start": "tomorrow"}, "start"),
    ],
    ids=["expression", "zone", "overlap", "misfire", "unknown", "arguments", "start"],
)
def test_a_schedule_that_cannot_be(app: App, expression: str, options: Any, field: str | None) -> None:
    error = refused(lambda: app.schedule(expression, **options)(plain))
    assert field is None or error.field == field
    assert app.schedules == {}


def test_a_schedule_needs_all_arguments(app: App) -> None:
    def needs(a: int) -> None: ...

    assert refused(app.schedule("@daily"), needs).field == "a"


def test_a_second_schedule_needs_a_name(app: App) -> None:
    task = app.schedule("@daily")(plain)
    error = refused(app.schedule("@hourly"), task)
    assert (error.code, error.field) == ("name_taken", "plain")


def test_options_of_a_task_belong_to_the_task(app: App) -> None:
    error = refused(app.schedule("@daily", queue="mail"), app.task(plain))
    assert (error.field, error.hint) == ("queue", "move it to @app.task()")


# Tasks without the app


def test_included_tasks_belong_to_the_app(app: App) -> None:
    tasks = Tasks()
    early = tasks.task(plain)
    with pytest.raises(AppError, match="belong to no app"):
        _ = early.app
    app.include(tasks)

    @tasks.schedule("@daily", rate_limit="1/s")
    def late() -> None: ...

    assert early.app is late.app is app
    assert list(app.types) == ["plain", "late"]
    assert list(app.schedules) == list(app.limits) == ["late"]


def test_tasks_inside_of_tasks(app: App) -> None:
    outer, inner = Tasks(), Tasks()
    declared = inner.task(plain)
    outer.include(inner)
    app.include(outer)
    assert declared.app is app
    assert refused(inner.task, plain).code == "name_taken"
    assert refused(app.include, inner).code == "included_twice"


def test_names_of_included_tasks_are_taken(app: App) -> None:
    tasks = Tasks()
    tasks.task(plain)
    app.task(plain)
    assert refused(app.include, tasks).code == "name_taken"


def test_an_app_is_not_included(app: App) -> None:
    assert refused(app.include, App("sqlite://:memory:")).code == "included_twice"
    assert refused(app.include, app).code == "included_twice"
