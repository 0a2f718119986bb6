"""Traces: a `send` span for a submit, a `process` span for each attempt, joined through the task's headers (W3C `traceparent`, `tracestate`).

    submit ── send ──▶ headers of the task ──▶ process (attempt 1), process (attempt 2) … each a child of `send` and linked to it
    submit_many ── one send ──▶ all its tasks carry it

Spans are made when the program has set up a tracer provider of OpenTelemetry, and then by that provider alone; nothing here imports the library, sets
it up or asks for it. A program that never imported it pays for one look into a dictionary. Names and attributes are those of the semantic
conventions for messaging. Payloads, results, error messages and headers are never told: only ids, names, numbers and codes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from taskmill.engine import Claimed, Outcome, Submitted
from taskmill.errors import TaskmillError
from taskmill.task import MOST_HEADERS, NewTask
from taskmill.version import __version__

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["Processing", "Sending", "flush", "process", "send", "trace_id", "tracer"]

log = logging.getLogger("taskmill")

PARENT, STATE = "traceparent", "tracestate"
PATIENCE = 2.0
"""Seconds that spans have to leave a process that ends."""


def tracer() -> Tracer | None:
    """Ours, of the provider that the program has set up; None without one."""
    return None if "opentelemetry.trace" not in sys.modules else _tracer()


def _tracer() -> Tracer | None:
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else _of(provider)


@lru_cache(maxsize=1)
def _of(provider: TracerProvider) -> Tracer:
    """Kept, because it costs more than a span; there is one provider in a program."""
    return provider.get_tracer("taskmill", __version__)


def trace_id(headers: Mapping[str, str]) -> str | None:
    """Of the span that is current here; else of the one that a task's headers name."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import trace

        here = trace.get_current_span().get_span_context()
        if here.is_valid:
            return trace.format_trace_id(here.trace_id)
    parts = headers.get(PARENT, "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None


async def flush(seconds: float = PATIENCE) -> None:
    """Let what was recorded leave this process, which is about to end without a word. Whoever takes it may be away, and is not waited for any longer."""
    if tracer() is None:
        return
    from opentelemetry import trace

    finish = getattr(trace.get_tracer_provider(), "force_flush", None)
    if finish is not None:
        with suppress(Exception):  # exporters are somebody else's code, and speak to somebody else's server
            async with asyncio.timeout(seconds):
                await asyncio.to_thread(finish, int(seconds * 1_000))


# Sending


class Sending:
    """A `send` span; the tasks that pass through `carried` carry it."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._headers = _injected(span)
        self._trace = format(span.get_span_context().trace_id, "032x")

    def carried(self, new: NewTask) -> NewTask:
        """The task with this span in its headers; one that belongs to another trace already, or has no room for more, stays as it is."""
        given = new.headers
        if PARENT in given and given[PARENT].split("-")[1:2] != [self._trace]:
            return new
        headers = {name: value for name, value in given.items() if name not in (PARENT, STATE)} | self._headers
        return new if len(headers) > MOST_HEADERS else msgspec.structs.replace(new, headers=headers)

    def told(self, answer: Submitted) -> None:
        self._span.set_attribute("messaging.message.id", answer.id)
        self._span.set_attribute("taskmill.submit.status", answer.status.value)

    def counted(self, tasks: int) -> None:
        self._span.set_attribute("messaging.batch.message_count", tasks)


@contextmanager
def send(tracer: Tracer, new: NewTask | None = None, queue: str | None = None) -> Iterator[Sending]:
    """The span of a submit of one task, or (None) of many."""
    from opentelemetry.trace import SpanKind

    attributes: dict[str, Any] = _operation("send")
    if new is not None:
        attributes["taskmill.task.type"] = new.type
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    parent = None if new is None else _parent(new.headers)
    span = tracer.start_span("send" if queue is None else f"send {queue}", parent, SpanKind.PRODUCER, attributes)
    try:
        yield Sending(span)
    except BaseException as error:
        _fail(span, error.code if isinstance(error, TaskmillError) else type(error).__name__)
        raise
    finally:
        span.end()


def _parent(headers: Mapping[str, str]) -> Context | None:
    """What the headers name, if that is another trace than the one of here: somebody said so. Of the same trace, the span of here is nearer."""
    if PARENT not in headers:
        return None
    from opentelemetry import trace

    named = _extracted(headers)
    there, here = trace.get_current_span(named).get_span_context(), trace.get_current_span().get_span_context()
    return None if not there.is_valid or (here.is_valid and here.trace_id == there.trace_id) else named


# Processing


class Processing:
    """A `process` span, current until it ends: spans that the handler makes, and tasks that it submits, are its children."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span, token: Token[Context]) -> None:
        self._span = span
        self._token = token

    def end(self, outcome: Outcome) -> None:
        from opentelemetry import context

        context.detach(self._token)
        try:
            self._span.set_attribute("taskmill.task.ending", outcome.ending.value)
            if outcome.error is not None:
                _fail(self._span, outcome.error.code)
            self._span.end()
        except Exception:  # processors of spans are somebody else's code, and no task is to fail for them
            log.debug("a span could not be ended", exc_info=True)


def process(claimed: Claimed) -> Processing | None:
    """The span of an attempt that begins now; None without a provider."""
    try:
        found = tracer()
        return None if found is None else _process(found, claimed)
    except Exception:  # so are samplers
        log.debug("a span could not be begun", exc_info=True)
        return None


def _process(tracer: Tracer, claimed: Claimed) -> Processing:
    from opentelemetry import context, trace

    sent = _extracted(claimed.headers)
    creation = trace.get_current_span(sent).get_span_context()
    attributes: dict[str, Any] = _operation("process") | {
        "messaging.destination.name": claimed.queue,
        "messaging.message.id": claimed.id,
        "messaging.client.id": claimed.worker,
        "taskmill.task.type": claimed.type,
        "taskmill.task.attempt": claimed.attempt,
    }
    if claimed.tenant:
        attributes["taskmill.tenant"] = claimed.tenant
    links = [trace.Link(creation)] if creation.is_valid else []
    span = tracer.start_span(f"process {claimed.queue}", sent, trace.SpanKind.CONSUMER, attributes, links)
    return Processing(span, context.attach(trace.set_span_in_context(span)))


# What both use


def _operation(name: str) -> dict[str, Any]:
    return {"messaging.system": "taskmill", "messaging.operation.name": name, "messaging.operation.type": name}


def _fail(span: Span, code: str) -> None:
    """Its code only: a message may have somebody's data in it."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR))


def _injected(span: Span) -> dict[str, str]:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(span))
    return headers


def _extracted(headers: Mapping[str, str]) -> Context:
    """An empty context where the headers name nothing: an attempt without a sender begins a trace of its own."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(headers, Context())
