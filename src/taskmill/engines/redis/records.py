"""How a record lies in its string: an array that scripts read and write, and behind it the body, which is ours alone."""

from __future__ import annotations

from typing import Any

import msgspec

from taskmill.engines.rows import (
    CANCEL,
    COMPLETED,
    PENDING,
    RETRYING,
    RUNNING,
    SCHEDULED,
    SEALED,
    SUSPECT,
    UNWIND,
    Meta,
    decode_error,
    decode_meta,
    decode_progress,
    decode_retry,
    shown_lane,
    state_name,
)
from taskmill.task import DEFAULT_DEDUPE_WINDOW, Task

__all__ = ["AT", "Body", "Header", "Held", "body_of", "claimed", "completed", "entered", "parts", "pieces", "task_from", "under_lease"]


class Header(msgspec.Struct, array_like=True, frozen=True):
    """In the order of `F` in step.lua; False is nothing."""

    seq: int | bool
    type: str
    queue: str
    tenant: str
    priority: int
    lane: int
    state: int
    ready_at: int | bool
    version: int
    executions: int
    failures: int
    crashes: int
    flags: int
    open_edges: int
    created_at: int | bool
    updated_at: int | bool
    expires_at: int | bool
    finished_at: int | bool
    token: int | str | bool
    """A text, where it is one of another store and larger than the numbers of a script."""
    worker: str | bool
    request: int | bool
    claimed_at: int | bool
    started_at: int | bool
    must_end: str | bool
    phase: str | bool
    progress: str | bool
    awaits: str | bool
    opened: int | bool
    run_at: int | bool
    max_crashes: int
    unique: str | bool
    window: int | bool
    result: str | bool
    error: str | bool
    size: int
    home: list[Any] | bool


class Body(msgspec.Struct, array_like=True, frozen=True):
    """What never changes, but for a replaced payload."""

    payload: bytes
    retry: str | None
    timeout: int
    meta: str | None


AT = 36
"""Where the array begins: behind the time of writing, the number of the task and its own length."""
TIMES = ("updated_at", "finished_at", "created_at", "ready_at", "run_at")

_encode = msgspec.msgpack.Encoder().encode
_header = msgspec.msgpack.Decoder(Header).decode
_body = msgspec.msgpack.Decoder(Body).decode


def parts(raw: bytes) -> tuple[Header, Body]:
    """What lies in a string; see step.lua."""
    return pieces(raw)[:2]


def pieces(raw: bytes) -> tuple[Header, Body, bytes]:
    """The same, and the body as it is stored."""
    end = AT + int(raw[28:AT], 16)
    header = _header(raw[AT:end])
    if header.updated_at is True:
        at = int(raw[:16], 16)
        given = {name: at for name in TIMES if getattr(header, name) is True}
        header = msgspec.structs.replace(header, seq=int(raw[16:28], 16) if header.seq is True else header.seq, **given)
    rest = raw[end:]
    return header, _body(rest), rest


def entered(type: str, queue: str, tenant: str, priority: int, max_crashes: int, size: int) -> bytes:
    """The array of a new task that nothing sets apart, with its length; its times and its number are the store's to say."""
    array = _encode(
        (
            True, type, queue, tenant, priority, 0, PENDING, True, 1, 0, 0, 0, 0, 0, True, True, False, False, False, False, False, False, False, False,
            False, False, False, False, True, max_crashes, False, False, False, False, size, False,
        )
    )  # fmt: skip
    return b"%08x%b" % (len(array), array)


def under_lease(h: Header, lease: str) -> Header:
    """The record of a task whose claim has written its lease only."""
    token, request, at, worker = lease.split("\t", 3)
    return claimed(h, int(token, 16), worker, int(at), int(request))


def claimed(h: Header, token: int, worker: str, at: int, request: int) -> Header:
    return Header(
        h.seq, h.type, h.queue, h.tenant, h.priority, h.lane, RUNNING, h.ready_at, h.version + 1, h.executions + 1, h.failures, h.crashes, h.flags,
        h.open_edges, h.created_at, at, h.expires_at, h.finished_at, token, worker, request, at, False, h.must_end, h.phase, h.progress, h.awaits, h.opened,
        h.run_at, h.max_crashes, h.unique, h.window, h.result, h.error, h.size, h.home,
    )  # fmt: skip


class Held(msgspec.Struct, frozen=True, gc=False):
    """A task that was claimed without its record being written, as it is under its lease."""

    header: Header
    rest: bytes
    """The body, as it is stored."""
    tail: str
    """The end of its lease, behind the token."""


def completed(one: Held, started_after: int | None, result: str | bool) -> bytes:
    """The record behind its time, as it is when the task has completed; that time is the store's to say."""
    h = one.header
    started = False if started_after is None else h.claimed_at + started_after
    array = _encode(
        (
            h.seq, h.type, h.queue, h.tenant, h.priority, 0, COMPLETED, h.ready_at, h.version + 1, h.executions, h.failures, h.crashes, h.flags, h.open_edges,
            h.created_at, True, h.expires_at, True, h.token, h.worker, False, h.claimed_at, started, h.must_end, h.phase, h.progress, False, h.opened, h.run_at,
            h.max_crashes, h.unique, h.window, result, False, h.size, h.home,
        )
    )  # fmt: skip
    return b"%012x%08x%b%b" % (h.seq, len(array), array, one.rest)


def body_of(raw: bytes) -> Body:
    return _body(raw)


def task_from(id: str, h: Header, body: Body, now: int) -> Task:
    meta: Meta = decode_meta(body.meta)
    started_at = h.started_at or None
    if started_at is None and h.finished_at and h.token:
        started_at = h.claimed_at or None
    share, limits, order = shown_lane(meta)
    return Task(
        id=id,
        type=h.type,
        queue=h.queue,
        payload=body.payload,
        priority=h.priority,
        state=state_name(h.state, h.ready_at, now),
        version=h.version,
        run_at=h.ready_at if h.state in (SCHEDULED, RETRYING) else h.run_at,
        executions=h.executions,
        failures=h.failures,
        crashes=h.crashes,
        suspect=bool(h.flags & SUSPECT),
        unwind=bool(h.flags & UNWIND),
        must_end=_text(h.must_end),
        phase=_text(h.phase),
        cancel_requested=bool(h.flags & CANCEL),
        limits=limits,
        fair_key=share,
        order_key=order,
        retry=decode_retry(body.retry),
        timeout=body.timeout,
        max_crashes=h.max_crashes,
        expires_at=_number(h.expires_at),
        idempotency_key=meta.key,
        idempotency_window=meta.window or DEFAULT_DEDUPE_WINDOW,
        unique=meta.unique,
        tenant=h.tenant,
        headers=meta.headers,
        tags=meta.tags,
        open_edges=h.open_edges,
        sealed=bool(h.flags & SEALED),
        result=h.result.encode() if isinstance(h.result, str) else None,
        error=decode_error(_text(h.error)),
        progress=decode_progress(_text(h.progress)),
        worker=_text(h.worker),
        token=_number(h.token),
        created_at=h.created_at,
        updated_at=int(h.updated_at),
        started_at=started_at,
        finished_at=_number(h.finished_at),
    )


def _text(value: str | bool) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: int | str | bool) -> int | None:
    return None if value is False else int(value)
