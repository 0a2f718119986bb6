"""Traces: from a submit through the headers of its task to the attempts of a real worker, in another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from taskmill import App, Context, tracing
from taskmill.errors import InvalidInput
from taskmill.operations import Operations
from taskmill.task import MOST_HEADERS, NewTask
from taskmill.testing import under_test
from tests.surfaces.tracing import WORKER, provided, written
from tests.surfaces.workers import Client, client, program

APP = (
    WORKER
    + """
from taskmill import App, Context, Retry

app = App("sqlite:///store.db")


@app.task(queue="mail", retry=Retry.fixed("50ms", max_retries=2))
async def flaky(ctx: Context) -> None:
    with trace.get_tracer("shop").start_as_current_span("smtp"):
        if ctx.attempt < 2:
            raise ValueError("the other side hung up")
    await ctx.submit(child)


@app.task(queue="mail")
def child() -> str:
    return format(trace.get_current_span().get_span_context().trace_id, "032x")


@app.task(isolated=True)
def apart() -> None:
    pass
"""
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(APP)
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def operations(tmp_path: Path) -> AsyncIterator[Operations]:
    async with client(f"sqlite:///{tmp_path / 'alone.db'}") as own:
        yield own.operations


def hex_trace(span: Any) -> str:
    return format(span.context.trace_id, "032x")


def hex_span(span: Any) -> str:
    return format(span.context.span_id, "016x")


def parent(span: Any) -> str:
    """As a header names it."""
    return f"00-{hex_trace(span)}-{hex_span(span)}-{span.context.trace_flags:02x}"


async def headers_of(operations: Operations, id: str) -> dict[str, str]:
    return dict((await operations.get(id)).headers)


def new(**fields: Any) -> NewTask:
    return NewTask(type="work", queue="mail", **fields)


# Between processes


async def test_a_trace_goes_from_the_submit_to_every_attempt_and_to_the_tasks_of_the_handler(url: str, tmp_path: Path) -> None:
    with provided() as spans, program("worker", "shop.py", folder=tmp_path) as worker:
        async with client(url) as own:
            await own.joined()
            id = await own.submit("flaky")
            await own.ended(id)
            await child_of(own)
            assert worker.end() == 0
    send = spans.one("send")
    found = written(tmp_path / "spans.jsonl")
    attempts = [span for span in found if span["name"] == "process mail" and span["attributes"]["taskmill.task.type"] == "flaky"]
    assert [span["attributes"]["taskmill.task.attempt"] for span in attempts] == [1, 2]
    for span in attempts:
        assert span["context"]["trace_id"] == f"0x{hex_trace(send)}"
        assert span["parent_id"] == f"0x{hex_span(send)}"
        assert [link["context"]["span_id"] for link in span["links"]] == [f"0x{hex_span(send)}"]
        assert span["kind"] == "SpanKind.CONSUMER"
        assert span["attributes"]["messaging.message.id"] == id
        assert span["events"] == [], "what went wrong is told by its code; the words are the handler's own"
    first, second = attempts
    assert (first["status"]["status_code"], first["attributes"]["error.type"], first["attributes"]["taskmill.task.ending"]) == ("ERROR", "ValueError", "retry")
    assert (second["status"]["status_code"], second["attributes"]["taskmill.task.ending"]) == ("UNSET", "completed")
    inner = [span for span in found if span["name"] == "smtp"]
    assert [span["parent_id"] for span in inner] == [span["context"]["span_id"] for span in attempts]
    [sent] = [span for span in found if span["name"] == "send mail"]
    assert sent["parent_id"] == second["context"]["span_id"]
    [own_child] = [span for span in found if span["attributes"].get("taskmill.task.type") == "child" and span["kind"] == "SpanKind.CONSUMER"]
    assert own_child["parent_id"] == sent["context"]["span_id"]


async def child_of(own: Client) -> None:
    page = await own.operations.list()
    [child] = [task for task in page.tasks if task.type == "child"]
    await own.ended(child.id)


async def test_an_attempt_in_a_process_of_its_own_is_recorded_there(url: str, tmp_path: Path) -> None:
    with program("worker", "shop.py", folder=tmp_path) as worker:
        async with client(url) as own:
            await own.joined()
            await own.run("apart")
            deadline = asyncio.get_running_loop().time() + 60
            while not written(tmp_path / "spans.jsonl"):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
        assert worker.end() == 0
    [span] = written(tmp_path / "spans.jsonl")
    assert (span["name"], span["parent_id"], span["links"]) == ("process default", None, [])


# The submit


async def test_a_send_span_has_the_names_of_the_conventions(operations: Operations) -> None:
    with provided() as spans:
        answer = await operations.submit(new())
    span = spans.one("send mail")
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "messaging.system": "taskmill", "messaging.operation.name": "send", "messaging.operation.type": "send", "messaging.destination.name": "mail",
        "messaging.message.id": answer.id, "taskmill.task.type": "work", "taskmill.submit.status": "created",
    }  # fmt: skip
    assert (await headers_of(operations, answer.id))["traceparent"] == parent(span)


async def test_without_a_provider_a_task_has_no_trace(operations: Operations) -> None:
    answer = await operations.submit(new(headers={"a": "b"}))
    assert await headers_of(operations, answer.id) == {"a": "b"}


async def test_many_tasks_carry_one_span(operations: Operations) -> None:
    with provided() as spans:
        answers = await operations.submit_many([new() for _ in range(3)])
    span = spans.one("send")
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3
    assert {(await headers_of(operations, answer.id))["traceparent"] for answer in answers} == {parent(span)}


async def test_the_span_around_a_submit_is_its_parent(operations: Operations) -> None:
    with provided() as spans, trace.get_tracer("shop").start_as_current_span("checkout"):
        await operations.submit(new())
        await operations.submit_many([new()])
    around = spans.one("checkout").context
    assert around is not None
    for name in ("send mail", "send"):
        found = spans.one(name).parent
        assert found is not None
        assert found.span_id == around.span_id


OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_trace_that_the_caller_names_goes_before_the_one_around(operations: Operations) -> None:
    with provided() as spans, trace.get_tracer("shop").start_as_current_span("checkout"):
        one = await operations.submit(new(headers={"traceparent": OTHER, "tracestate": "a=1", "mine": "x"}))
        [many] = await operations.submit_many([new(headers={"traceparent": OTHER})])
    span = spans.one("send mail")
    assert hex_trace(span) == OTHER.split("-")[1]
    assert await headers_of(operations, one.id) == {"traceparent": parent(span), "tracestate": "a=1", "mine": "x"}
    assert (await headers_of(operations, many.id))["traceparent"] == OTHER


async def test_what_is_not_sampled_stays_so(operations: Operations) -> None:
    with provided(ALWAYS_OFF) as spans:
        answer = await operations.submit(new())
    assert spans.names == []
    assert (await headers_of(operations, answer.id))["traceparent"][-1] in "02", "its sampled bit is not set"


async def test_a_task_with_as_many_headers_as_it_may_have_is_not_refused_for_a_trace(operations: Operations) -> None:
    headers = {f"name-{number}": "x" for number in range(MOST_HEADERS)}
    with provided():
        answer = await operations.submit(new(headers=headers))
    assert await headers_of(operations, answer.id) == headers


async def test_a_refused_submit_says_its_code_and_nothing_else(operations: Operations) -> None:
    with provided() as spans, pytest.raises(InvalidInput):
        await operations.submit(new(payload=b"null", tags={"secret\n": "x" * 10_000}))
    span = spans.one("send mail")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert "error.type" in span.attributes
    assert span.events == ()
    assert "secret" not in span.to_json()


async def test_a_wrong_traceparent_is_no_reason_to_refuse(operations: Operations) -> None:
    for wrong in ("", "nonsense", "00-zz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"):
        with provided():
            answer = await operations.submit(new(headers={"traceparent": wrong}))
        assert answer.id


# The attempt


async def test_who_submits_from_a_handler_goes_on_with_its_trace() -> None:
    app = App()

    @app.task
    async def first(ctx: Context) -> None:
        await ctx.submit(second)

    @app.task
    def second() -> None:
        assert trace.get_current_span().is_recording()

    with provided() as spans:
        async with under_test(app) as test:
            await first.submit()
            await test.drain()
    assert spans.names == ["process default"] * 2 + ["send default"] * 2
    assert len({hex_trace(span) for name in ("process default", "send default") for span in spans.named(name)}) == 1
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_sampler_that_fails_fails_no_task() -> None:
    class Broken(TraceIdRatioBased):
        def should_sample(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no")

    app = App()

    @app.task
    async def work() -> int:
        return 7

    async with under_test(app) as test:
        handle = await work.submit()
        with provided(Broken(1.0)):
            await test.drain()
        assert await handle.result() == 7


def test_a_program_that_has_not_the_library_never_asks_for_it() -> None:
    text = "import sys, taskmill, taskmill.worker.child; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
    assert tracing.tracer() is None
