"""How records lie in rows: numbers for states and flags, JSON for what is rare."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from taskmill.engine import Record
from taskmill.retry import Retry
from taskmill.task import ErrorInfo, OnFailure, OnLimit, Progress, Resolved, State, Task, Unique, scoped, scoped_limit, scoped_share, unscoped, unscoped_limit

__all__ = ["FAR", "Meta", "decode_error", "decode_meta", "encode_error", "encode_meta", "facts", "restored_flags", "restored_meta", "state_name"]

PENDING: Final = 0
SCHEDULED: Final = 1
RETRYING: Final = 2
RUNNING: Final = 3
WAITING: Final = 4
COMPLETED: Final = 5
DEAD: Final = 6
CANCELLED: Final = 7
STATES: Final = (State.PENDING, State.SCHEDULED, State.RETRYING, State.RUNNING, State.WAITING, State.COMPLETED, State.DEAD, State.CANCELLED)
NUMBERS: Final = {state: number for number, state in enumerate(STATES)}

ON_FAILURE: Final = (OnFailure.CANCEL, OnFailure.IGNORE, OnFailure.HOLD)
ON_FAILURE_NUMBERS: Final = {value: number for number, value in enumerate(ON_FAILURE)}

# What a task has beside its row. A task with none of these ends in one plain update.
ORDERED: Final = 1
CANCEL: Final = 2
UNIQUE_STARTED: Final = 4
UNIQUE_ENDED: Final = 8
EDGES: Final = 16
WAITED: Final = 32
SEALED: Final = 64
AWAITS: Final = 128
UNWIND: Final = 256
CHECKPOINTS: Final = 512
SIGNALS: Final = 1024
SUSPECT: Final = 2048
REJECTED: Final = 4096
"""Over its limit when it was submitted: it never ran, and a repeat of its submit answers `rejected` again."""

FAR: Final = 1 << 62
"""A time that never comes."""


class Meta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What few tasks have and nothing but inspection and the handler reads."""

    headers: Mapping[str, str] = MappingProxyType({})
    tags: Mapping[str, str] = MappingProxyType({})
    key: str | None = None
    window: int = 0
    unique: Unique | None = None
    limits: tuple[str, ...] = ()
    share: str = ""
    order: str | None = None
    own: bool = False
    """Its limits or its share are the caller's own, so a change of its type leaves them alone."""
    reject: bool = False
    """Its rates count when it is submitted (`on_limit="reject"`): after that it is under the caps alone."""


NO_META: Final = Meta()
_meta_decoder = msgspec.json.Decoder(Meta)
_error_decoder = msgspec.json.Decoder(ErrorInfo)
_progress_decoder = msgspec.json.Decoder(Progress)


def encode_meta(resolved: Resolved) -> str | None:
    new = resolved.new
    own = new.limits is not None or new.fair_key is not None or new.on_limit is not None
    named = new.headers or new.tags or new.idempotency_key or new.idempotency_window
    if not (own or named or resolved.unique or resolved.limits or resolved.share or resolved.order_key):
        return None
    meta = Meta(  # what is empty must be the default itself to be left out: msgspec compares by identity
        headers=dict(new.headers) if new.headers else NO_META.headers,
        tags=dict(new.tags) if new.tags else NO_META.tags,
        key=new.idempotency_key,
        window=new.idempotency_window or 0,
        unique=resolved.unique,
        limits=resolved.limits,
        share=resolved.share,
        order=resolved.order_key,
        own=own,
        reject=bool(resolved.limits) and resolved.on_limit is OnLimit.REJECT,
    )
    return msgspec.json.encode(meta).decode()


def decode_meta(text: str | None) -> Meta:
    return NO_META if text is None else _meta_decoder.decode(text)


def handlers_meta(text: str | None) -> Meta:
    """What of it a handler is given: headers and key. Most tasks that have any of it have neither, and then it is not read."""
    return _meta_decoder.decode(text) if text is not None and ('"headers"' in text or '"key"' in text) else NO_META


def encode_error(error: ErrorInfo | None) -> str | None:
    return None if error is None else msgspec.json.encode(error).decode()


def decode_error(text: str | None) -> ErrorInfo | None:
    return None if text is None else _error_decoder.decode(text)


def encode_progress(progress: Progress) -> str:
    return msgspec.json.encode(progress).decode()


def decode_progress(text: str | None) -> Progress | None:
    return None if text is None else _progress_decoder.decode(text)


DEFAULT_RETRY: Final = Retry()


@functools.lru_cache(maxsize=1024)
def encode_retry(retry: Retry) -> str | None:
    return None if retry == DEFAULT_RETRY else retry.encode()


def decode_retry(text: str | None) -> Retry:
    return DEFAULT_RETRY if text is None else Retry.decode(text)


@functools.lru_cache(maxsize=4096)
def decode_names(text: str) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(text, type=list[str]))


@functools.lru_cache(maxsize=4096)
def encode_names(names: tuple[str, ...]) -> str:
    return msgspec.json.encode(names).decode()


def state_name(state: int, ready_at: int, now: int) -> State:
    """A due task reads as pending without anybody having touched it."""
    if state in (SCHEDULED, RETRYING, WAITING) and ready_at <= now:
        return State.PENDING
    return STATES[state]


def facts(type: str, queue: str, tenant: str) -> dict[str, Any]:
    """What every event of a task says of it: whoever may not see the task is known by this alone."""
    return {"type": type, "queue": queue, "tenant": tenant} if tenant else {"type": type, "queue": queue}


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def restored_flags(record: Record) -> int:
    """What a whole record has beside its row."""
    task = record.task
    flags = 0
    for present, flag in (
        (task.order_key is not None, ORDERED),
        (task.sealed, SEALED),
        (task.suspect, SUSPECT),
        (task.state is State.DEAD and task.executions == 0 and task.error is not None and task.error.code == "rate_limited", REJECTED),
        (task.unwind, UNWIND),
        (bool(record.checkpoints), CHECKPOINTS),
        (bool(record.signals), SIGNALS),
        (bool(record.edges), EDGES),
        (task.unique is not None and task.unique.until == "started", UNIQUE_STARTED),
        (task.unique is not None and task.unique.until == "ended", UNIQUE_ENDED),
    ):
        if present:
            flags |= flag
    return flags


def restored_lane(task: Task) -> tuple[str, tuple[str, ...], str | None]:
    """Share, limits and order key of a whole record, as the store has them."""
    share = scoped_share(task.tenant, task.fair_key)
    return share, tuple(scoped_limit(task.tenant, limit) for limit in task.limits), task.order_key and scoped(task.tenant, task.order_key)


def shown_lane(meta: Meta) -> tuple[str, tuple[str, ...], str | None]:
    """The same, as the caller gave them."""
    return unscoped(meta.share), tuple(map(unscoped_limit, meta.limits)), meta.order and unscoped(meta.order)


def restored_meta(task: Task) -> str:
    share, limits, order = restored_lane(task)
    meta = Meta(
        headers=dict(task.headers), tags=dict(task.tags), key=task.idempotency_key, window=task.idempotency_window, unique=task.unique,
        limits=limits, share=share, order=order,
    )  # fmt: skip
    return json_text(meta)
