"""Tasks on their way to a server and back: nothing is lost, and what a server does not take is said here."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from taskmill import Retry
from taskmill.client.problems import Problem, error_of, refusal
from taskmill.client.records import Hidden, given_fields, task_body, task_of
from taskmill.clock import SystemClock, rfc3339
from taskmill.engine import Durability
from taskmill.errors import (
    AnswerLost,
    Conflict,
    Expired,
    Forbidden,
    InvalidInput,
    NotFound,
    RateLimited,
    StaleVersion,
    StoreError,
    TaskmillError,
    Unauthenticated,
)
from taskmill.server.problem import problem_of
from taskmill.server.rest.tasks import TaskBody
from taskmill.server.rest.tasks import task_of as new_task_of
from taskmill.task import Edge, ErrorInfo, NewTask, OnFailure, OnLimit, Progress, State, Task, Unique, new_id
from taskmill.views import task_data

FULL = NewTask(
    type="note", payload=b'{"a":[1,2.5,null]}', queue="q", priority=0, delay=0, retry=Retry.list(["1s", "1500us"]), timeout=1_234_567, max_crashes=0,
    expires_at=1_900_000_000_000_001, idempotency_key="k ü", idempotency_window=3_600_000_000, unique=Unique("u", "started", "replace"),
    headers={"a": "b"}, tags={"c": "d"}, limits=(), on_limit=OnLimit.REJECT, fair_key="f", order_key="o", edges=(Edge(new_id(), OnFailure.HOLD),),
)  # fmt: skip


def sent(new: NewTask) -> NewTask:
    body = msgspec.json.decode(task_body(new.type, new.payload, new.id, given_fields(new)), type=TaskBody)
    found, _ = new_task_of(body, lambda queue: new_id(), payload_limit=262_144)
    return found


@pytest.mark.parametrize(
    "new",
    [
        NewTask(type="note"),
        FULL,
        NewTask(type="note", run_at=1_900_000_000_123_456, limits=("a", "b:c")),
        NewTask(type="note", sealed=True),
        NewTask(type="note", parent=Edge(new_id())),
    ],
)
def test_a_server_reads_the_task_that_was_sent(new: NewTask) -> None:
    assert sent(new) == new


def test_durability_and_expiry_go_beside_it() -> None:
    body = msgspec.json.decode(task_body("note", b"1", new_id(), {}, durability=Durability.LOCAL, expires=90_000_000), type=TaskBody)
    assert (body.durability, body.expires) == ("local", "90s")


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewTask(type="note", tenant="acme"), "tenant"),
        (NewTask(type="note", edges=(Edge(new_id()), Edge(new_id(), OnFailure.HOLD))), "edges"),
    ],
)
def test_what_a_server_does_not_take(new: NewTask, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        sent(new)
    assert caught.value.field == field


RECORD = Task(
    id=new_id(), type="note", queue="q", payload=b'{"a":1}', priority=3, state=State.DEAD, version=7, run_at=1_900_000_000_000_000, executions=2, failures=1,
    crashes=1, limits=("a", "b:c"), order_key="o", retry=Retry.fixed("2s").on("ValueError", "fail"), timeout=1_500, expires_at=1_900_000_000_000_001,
    idempotency_key="k", unique=Unique("u"), tenant="acme", headers={"h": "1"}, tags={"t": "2"}, result=b"[1]", error=ErrorInfo("ValueError", "no", "…"),
    progress=Progress(0.5, "half"), worker="w", token=9, created_at=1_800_000_000_000_000, updated_at=1_800_000_000_000_001,
    started_at=1_800_000_000_000_002, finished_at=1_800_000_000_000_003,
)  # fmt: skip


def fields(task: Task) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(msgspec.json.encode(task_data(task, raw=True)), type=dict[str, msgspec.Raw])


def test_a_record_comes_back_as_it_was() -> None:
    assert task_of(fields(RECORD)) == RECORD


def test_a_token_that_no_double_holds_is_a_text_on_its_way() -> None:
    task = replace(RECORD, token=(1 << 62) + 1)
    assert bytes(fields(task)["token"]) == b'"4611686018427387905"'
    assert task_of(fields(task)) == task
    assert bytes(fields(replace(RECORD, token=None))["token"]) == b"null"
    assert task_of(fields(replace(RECORD, token=None))).token is None


def test_a_record_of_an_older_or_newer_server_is_read() -> None:
    found = fields(RECORD)
    del found["phase"]
    del found["sealed"]
    found["colour"] = msgspec.Raw(b'"red"')
    assert task_of(found) == RECORD


def test_what_may_not_be_read_is_hidden() -> None:
    found = fields(RECORD)
    for name in ("payload", "result", "headers"):
        del found[name]
    task = task_of(found)
    assert isinstance(task.payload, Hidden)
    assert repr(task.result) == "<hidden>"
    assert task.headers == {}


# Errors

ERRORS: list[TaskmillError] = [
    InvalidInput("no", code="invalid_name", field="queue", hint="mend it"),
    NotFound("no", field="id", task_id="1"),
    NotFound("no", code="unknown_edge", field="edges"),
    Conflict("no", task_id="1"),
    StaleVersion("no"),
    Expired("gone"),
    RateLimited("later", code="request_quota"),
    Unauthenticated("who?"),
    Forbidden("no", code="tenant_key"),
    StoreError("away"),
    AnswerLost("perhaps"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_an_error_comes_back_as_it_was(error: TaskmillError) -> None:
    if isinstance(error, (Conflict, Expired)):
        error.state = "completed"
    data = msgspec.json.encode(problem_of(error))
    for back in (error_of(msgspec.json.decode(data, type=Problem)), refusal(error.status, data, "3", "http://here")):
        assert type(back) is type(error)
        assert (back.message, back.code, back.field, back.hint, back.task_id) == (error.message, error.code, error.field, error.hint, error.task_id)
        assert getattr(back, "state", None) == getattr(error, "state", None)


def test_when_to_come_again() -> None:
    error = refusal(429, msgspec.json.encode(problem_of(RateLimited("later"))), "3", "http://here")
    assert isinstance(error, RateLimited)
    assert error.retry_after == 3_000_000


def test_when_to_come_again_in_a_batch() -> None:
    problem = Problem(status=429, code="rate_limited", title="later", retry_at=rfc3339(SystemClock().now() + 60_000_000))
    error = error_of(problem)
    assert isinstance(error, RateLimited)
    assert error.retry_after is not None
    assert 50_000_000 < error.retry_after <= 60_000_000


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b"{}", b'{"code": 3}'])
def test_an_answer_of_something_else(data: bytes) -> None:
    error = refusal(502, data, None, "http://here/there")
    assert isinstance(error, StoreError)
    assert (error.code, error.message) == ("unexpected_answer", "http://here/there answered 502")
