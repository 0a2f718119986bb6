"""How a record lies in its string: an array that scripts read and write, and behind it the body, which is ours alone."""

from __future__ import annotations

from typing import Any

import msgspec

from taskmill.engines.rows import (
    CANCEL,
    RETRYING,
    SCHEDULED,
    SEALED,
    UNWIND,
    Meta,
    decode_error,
    decode_meta,
    decode_progress,
    decode_retry,
    state_name,
)
from taskmill.task import DEFAULT_DEDUPE_WINDOW, Task

__all__ = ["Body", "Header", "body_of", "task_from", "task_of"]


class Header(msgspec.Struct, array_like=True, frozen=True):
    """In the order of `F` in step.lua; False is nothing."""

    seq: int
    type: str
    queue: str
    tenant: str
    priority: int
    lane: int
    state: int
    ready_at: int
    version: int
    executions: int
    failures: int
    crashes: int
    flags: int
    open_edges: int
    created_at: int
    updated_at: int
    expires_at: int | bool
    finished_at: int | bool
    token: int | bool
    worker: str | bool
    request: int | bool
    claimed_at: int | bool
    started_at: int | bool
    must_end: str | bool
    phase: str | bool
    progress: str | bool
    awaits: str | bool
    opened: int | bool
    run_at: int
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


_header = msgspec.msgpack.Decoder(Header).decode
_body = msgspec.msgpack.Decoder(Body).decode


def split(raw: bytes) -> tuple[bytes, bytes]:
    """The array and what follows it."""
    end = _skip(raw, 0)
    return raw[:end], raw[end:]


def _skip(raw: bytes, at: int) -> int:
    """Where the value that begins here ends."""
    kind = raw[at]
    if kind <= 0x7F or kind >= 0xE0 or kind in (0xC0, 0xC2, 0xC3):
        return at + 1
    if 0xA0 <= kind <= 0xBF:
        return at + 1 + (kind & 0x1F)
    if kind in _FIXED:
        return at + 1 + _FIXED[kind]
    if kind in _SIZED:
        width = _SIZED[kind]
        return at + 1 + width + int.from_bytes(raw[at + 1 : at + 1 + width], "big")
    if 0x90 <= kind <= 0x9F:
        return _skip_all(raw, at + 1, kind & 0x0F)
    if kind in (0xDC, 0xDD):
        width = 2 if kind == 0xDC else 4
        return _skip_all(raw, at + 1 + width, int.from_bytes(raw[at + 1 : at + 1 + width], "big"))
    if 0x80 <= kind <= 0x8F:
        return _skip_all(raw, at + 1, 2 * (kind & 0x0F))
    raise ValueError(f"byte {kind:#x} begins no value of a record")


_FIXED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xCA: 4, 0xCB: 8}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


def _skip_all(raw: bytes, at: int, n: int) -> int:
    for _ in range(n):
        at = _skip(raw, at)
    return at


def parts(raw: bytes) -> tuple[Header, Body]:
    header, body = split(raw)
    return _header(header), _body(body)


def body_of(raw: bytes) -> Body:
    return _body(raw)


def task_of(id: str, raw: bytes, now: int) -> Task:
    return task_from(id, *parts(raw), now)


def task_from(id: str, h: Header, body: Body, now: int) -> Task:
    meta: Meta = decode_meta(body.meta)
    started_at = h.started_at or None
    if started_at is None and h.finished_at and h.token:
        started_at = h.claimed_at or None
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
        unwind=bool(h.flags & UNWIND),
        must_end=_text(h.must_end),
        phase=_text(h.phase),
        cancel_requested=bool(h.flags & CANCEL),
        limits=meta.limits,
        fair_key=meta.share,
        order_key=meta.order,
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
        updated_at=h.updated_at,
        started_at=started_at,
        finished_at=_number(h.finished_at),
    )


def _text(value: str | bool) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: int | bool) -> int | None:
    return None if value is False else int(value)
