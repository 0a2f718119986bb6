"""The task: its states, its record, and how a new one gets its settings.

                 run_at later            due                claim              ok
    submit ──▶ scheduled ─────────▶ pending ─────────▶ running ─────────▶ completed
       └───────────────────────────────▲                  │ ├── error, retries left ──▶ retrying ──due──▶ pending
                                       │                  │ ├── error, none left ──▶ dead ──requeue──▶ pending
                                       │                  │ ├── snooze ──▶ scheduled    ├── waits ──▶ waiting ──▶ pending
                                       └─ lost, released ─┘ └── cancelled (also from scheduled, pending, retrying, waiting)

Everything here is pure. An engine stores these records and makes the arrows atomic; it decides nothing that is not written here.
Times and durations are integers of microseconds (see `clock`); payloads, results and other JSON are encoded bytes (see `codec`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from operator import attrgetter
from random import Random
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from taskmill import codec
from taskmill.clock import HOUR, SECOND
from taskmill.errors import InvalidInput
from taskmill.retry import Retry

__all__ = [
    "LIVE",
    "TERMINAL",
    "Attempt",
    "Edge",
    "EdgeResult",
    "ErrorInfo",
    "Gone",
    "NewTask",
    "OnFailure",
    "OnLimit",
    "Priority",
    "Progress",
    "Resolved",
    "Signal",
    "State",
    "Task",
    "TypeSettings",
    "Unique",
    "check_name",
    "new_id",
    "resolve",
]

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

DEFAULT_TIMEOUT = HOUR
LONGEST_TIMEOUT = 7 * 24 * HOUR
DEFAULT_MAX_CRASHES = 3
DEFAULT_DEDUPE_WINDOW = 72 * HOUR
MOST_EDGES = 10_000
MOST_TAGS = 100
MOST_HEADERS = 100
MOST_LIMITS = 8
MOST_BATCH = 10_000
MOST_BATCH_EDGES = 20_000
"""Edges of all tasks of one batch: what one step links."""
MOST_HEADER_BYTES = 16 * 1024
MOST_STEPS = 1_000
MOST_STEP_BYTES = 4_000_000
MOST_SIGNALS = 10_000
MOST_SIGNAL_BYTES = 4_000_000
"""Checkpoints and signals that one task can have: a claim brings them all."""
KEY_LENGTH = 256
MOST_CRASHES = 1_000
SHORTEST_TIMEOUT = 1_000
SHORTEST_DEDUPE_WINDOW = SECOND
SHORTEST_REMOTE_LEASE = 2 * SECOND
LONGEST_REMOTE_LEASE = 24 * HOUR
LONGEST_DEDUPE_WINDOW = 366 * 24 * HOUR
SHARE_LENGTH = 128

_NOTHING: Mapping[str, str] = MappingProxyType({})


def new_id() -> str:
    """A UUIDv7: its order is the order of creation to the sub-millisecond, and it needs no store."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    digits = f"{millis << 80 | _VERSION_7 | rest * 4096 // 1_000_000 << 64 | _chance.getrandbits(62):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_VERSION_7 = 7 << 76 | 2 << 62
_chance = Random(os.urandom(32))  # a tenth of what asking the system for each id costs
os.register_at_fork(after_in_child=lambda: _chance.seed(os.urandom(32)))


class State(StrEnum):
    """Where a task is in its life."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.COMPLETED, State.DEAD, State.CANCELLED})
LIVE = frozenset(State) - TERMINAL


class Priority(IntEnum):
    """Strictly obeyed inside a queue, unless the queue sets weights."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


class OnFailure(StrEnum):
    """What the failure of a task means to one that waits for it."""

    CANCEL = "cancel"
    IGNORE = "ignore"
    HOLD = "hold"


class OnLimit(StrEnum):
    """What a task does at a closed limit: wait in its lane, or be rejected when it is submitted."""

    DELAY = "delay"
    REJECT = "reject"


class Unique(Struct, frozen=True, forbid_unknown_fields=True):
    """Only one live task (per tenant and type) holds this key, until it has started or ended."""

    key: str
    until: str = "ended"
    on_conflict: str = "keep"


class Edge(Struct, frozen=True):
    """The task that names this edge waits for `task`."""

    task: str
    on_failure: OnFailure = OnFailure.CANCEL


class EdgeResult(Struct, frozen=True):
    """What a task that was waited for came to; `outcome` is None while its edge is open."""

    task: str
    on_failure: OnFailure
    outcome: State | None
    result: bytes | None


class Signal(Struct, frozen=True):
    """A named value sent to a task; `number` counts the signals of that task."""

    number: int
    name: str
    data: bytes
    id: str
    at: int


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed or a task ended: a stable code, the message, and the traceback (capped)."""

    code: str
    message: str = ""
    traceback: str = ""


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a running task says it is."""

    value: float
    message: str = ""


class Attempt(Struct, frozen=True, kw_only=True):
    """One execution. `outcome` says how it ended: completed, failed, dead, snoozed, waiting, cancelled, released, crashed."""

    number: int
    worker: str
    token: int
    started_at: int
    ended_at: int | None
    outcome: str | None
    error: ErrorInfo | None = None


class Gone(Struct, frozen=True):
    """What is remembered of a task whose record was pruned or deleted, or is only reserved (`state` None)."""

    id: str
    state: State | None


class NewTask(Struct, frozen=True, kw_only=True, gc=False):
    """What a caller submits. What is None is filled in from the stored type, then from the defaults."""

    type: str
    payload: bytes = b"null"
    id: str = field(default_factory=new_id)
    queue: str | None = None
    priority: int | None = None
    run_at: int | None = None
    delay: int | None = None
    retry: Retry | None = None
    timeout: int | None = None
    max_crashes: int | None = None
    expires_at: int | None = None
    idempotency_key: str | None = None
    idempotency_window: int | None = None
    unique: Unique | None = None
    tenant: str = ""
    headers: Mapping[str, str] = _NOTHING
    tags: Mapping[str, str] = _NOTHING
    limits: tuple[str, ...] | None = None
    more_limits: bool = False
    """`limits` are added to those of the type; otherwise they stand in their place."""
    on_limit: OnLimit | None = None
    fair_key: str | None = None
    order_key: str | None = None
    edges: tuple[Edge, ...] = ()
    parent: Edge | None = None
    """The task that waits for this one: it stands in the same batch, or waits under a seal that is not broken yet."""
    sealed: bool = False
    """Waits, whatever its edges do, until a submit breaks its seal: more tasks to wait for are still to come."""


class TypeSettings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a type's tasks get unless they say otherwise; written to the store as data when a worker joins."""

    queue: str = "default"
    priority: int = Priority.NORMAL
    retry: Retry | None = None
    timeout: int = DEFAULT_TIMEOUT
    max_crashes: int = DEFAULT_MAX_CRASHES
    limits: tuple[str, ...] = ()
    """Names of limits, each `name` or `name:key`; a key in braces is a field of the payload: `per-user:{user_id}`."""
    on_limit: OnLimit = OnLimit.DELAY
    unique: Unique | None = None
    fair: str | None = None
    """What shares take turns by: `tenant`, or a field of the payload in braces."""
    ordered: str | None = None
    """Tasks with the same value run one at a time in submission order: a text, or a field of the payload in braces."""


class Resolved(Struct, frozen=True, gc=False):
    """A new task with every setting known; what an engine stores. Its limits, share and order key are `scoped`: they belong to its tenant."""

    new: NewTask
    queue: str
    priority: int
    retry: Retry
    timeout: int
    max_crashes: int
    limits: tuple[str, ...]
    on_limit: OnLimit
    share: str
    order_key: str | None
    unique: Unique | None
    idempotency_window: int


class Task(Struct, frozen=True, kw_only=True):
    """The whole record, as inspection shows it."""

    id: str
    type: str
    queue: str
    payload: bytes
    priority: int
    state: State
    version: int
    run_at: int
    executions: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    unwind: bool = False
    must_end: str | None = None
    phase: str | None = None
    cancel_requested: bool = False
    limits: tuple[str, ...] = ()
    fair_key: str = ""
    order_key: str | None = None
    retry: Retry = Retry()
    timeout: int = DEFAULT_TIMEOUT
    max_crashes: int = DEFAULT_MAX_CRASHES
    expires_at: int | None = None
    idempotency_key: str | None = None
    idempotency_window: int = DEFAULT_DEDUPE_WINDOW
    unique: Unique | None = None
    tenant: str = ""
    headers: Mapping[str, str] = _NOTHING
    tags: Mapping[str, str] = _NOTHING
    open_edges: int = 0
    sealed: bool = False
    result: bytes | None = None
    error: ErrorInfo | None = None
    progress: Progress | None = None
    worker: str | None = None
    token: int | None = None
    created_at: int
    updated_at: int
    started_at: int | None = None
    finished_at: int | None = None


def check_name(value: object, field: str) -> str:
    """A type, queue, limit, step or schedule: the same rule everywhere, so every engine can use it in a key."""
    if isinstance(value, str) and (value in _right_names or _is_name(value)):
        return value
    raise InvalidInput(
        f"{_shown(value)} is not a name",
        code="invalid_name",
        field=field,
        hint="lower-case letters, digits, '_', '.', '-'; starts with a letter or digit; at most 128",
    )


_right_names: set[str] = set()
"""Every task of a batch names the same few types and queues."""


def _is_name(text: str) -> bool:
    right = NAME.fullmatch(text) is not None
    if right and len(_right_names) < 10_000:
        _right_names.add(text)
    return right


def check_id(value: object, field: str = "id") -> str:
    if not isinstance(value, str) or not UUID.fullmatch(value):
        raise InvalidInput(f"{_shown(value)} is not an id", code="invalid_id", field=field, hint="a UUID in lower case with hyphens")
    return value


def check_key(value: object, field: str, *, length: int = KEY_LENGTH) -> str:
    """A caller's own text used as a key: visible characters, bounded, not empty."""
    if not isinstance(value, str) or not 0 < len(value) <= length or not value.isprintable() or not _encodes(value):
        raise InvalidInput(f"{_shown(value)} is not a key", code="invalid_key", field=field, hint=f"1 to {length} printable characters")
    return value


def _shown(value: object) -> str:
    """A value for a message: bounded, whatever it is (Python refuses to write out a very long number)."""
    return "such a number" if isinstance(value, int) and value.bit_length() > 200 else f"{value!r:.80}"


class Rules(Struct, frozen=True):
    """What the settings of a program say of every task that it submits."""

    payload_limit: int = codec.PAYLOAD_LIMIT
    dedupe_window: int = DEFAULT_DEDUPE_WINDOW


RULES = Rules()
STORED = Rules(payload_limit=codec.MOST_PAYLOAD)
"""For a task that is stored already: the program that submitted it may have had a larger limit."""


def resolve(new: NewTask, settings: TypeSettings | None, rules: Rules = RULES) -> Resolved:
    """Check a new task and fill in what it leaves out. `settings` is its stored type, None for one the store does not know."""
    if settings is None:
        if new.queue is None:
            raise InvalidInput(
                f"no worker has registered the type {new.type!r:.80}",
                code="unknown_type",
                field="type",
                hint="start a worker that has it, or name the queue yourself",
            )
        settings = _DEFAULTS
    _check(new, rules.payload_limit)
    if rules.dedupe_window != DEFAULT_DEDUPE_WINDOW and new.idempotency_window is None:
        new = replace(new, idempotency_window=rules.dedupe_window)
    order_key = new.order_key
    if order_key is None and settings.ordered is not None:
        order_key = _from_payload(settings.ordered, new, "ordered")
    return Resolved(
        new,
        settings.queue if new.queue is None else new.queue,
        settings.priority if new.priority is None else new.priority,
        new.retry or settings.retry or _RETRY,
        settings.timeout if new.timeout is None else new.timeout,
        settings.max_crashes if new.max_crashes is None else new.max_crashes,
        _limits_of(new, settings) if new.limits or settings.limits else (),
        settings.on_limit if new.on_limit is None else new.on_limit,
        "" if settings.fair is None and not new.fair_key else _share_of(new, settings),
        order_key and scoped(new.tenant, order_key),
        new.unique or (_unique_of(settings.unique, new) if settings.unique else None),
        DEFAULT_DEDUPE_WINDOW if new.idempotency_window is None else new.idempotency_window,
    )


_RETRY = Retry()
_DEFAULTS = TypeSettings()


def _check(new: NewTask, payload_limit: int) -> None:
    """Refuse what no engine may store. The order is that of the record, so the first wrong field is the one named."""
    check_name(new.type, "type")
    if len(new.payload) > payload_limit:
        codec.sized(new.payload, limit=payload_limit)
    check_id(new.id)
    if new.queue is not None:
        check_name(new.queue, "queue")
    if new.priority is not None:
        check_range(new.priority, "priority", 0, 3)
    _check_times(new)
    if new.timeout is not None:
        check_range(new.timeout, "timeout", SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
    if new.max_crashes is not None:
        check_range(new.max_crashes, "max_crashes", 0, MOST_CRASHES)
    _check_keys(new)
    if new.edges or new.parent is not None:
        _check_edges(new)
    if new.tags or new.headers:
        _check_texts(new)


def check_range(value: object, field: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(f"{_shown(value)} is out of range", code="out_of_range", field=field, hint=f"a whole number from {low} to {high}")
    return int(value)


def _check_times(new: NewTask) -> None:
    if new.run_at is not None:
        check_range(new.run_at, "run_at", 0, 253_402_300_799_999_999)
        if new.delay is not None:
            raise InvalidInput("both run_at and delay are given", field="delay", hint="give one of them")
    if new.delay is not None:
        check_range(new.delay, "delay", 0, 100 * 366 * 24 * HOUR)
    if new.expires_at is not None:
        check_range(new.expires_at, "expires_at", 0, 253_402_300_799_999_999)
    if new.idempotency_window is not None:
        check_range(new.idempotency_window, "idempotency_window", SHORTEST_DEDUPE_WINDOW, LONGEST_DEDUPE_WINDOW)


def _check_keys(new: NewTask) -> None:
    if new.idempotency_key is not None:
        check_key(new.idempotency_key, "idempotency_key")
    if new.tenant:
        check_key(new.tenant, "tenant", length=SHARE_LENGTH)
    if new.fair_key:
        check_key(new.fair_key, "fair_key", length=SHARE_LENGTH)
    if new.order_key is not None:
        check_key(new.order_key, "order_key")
    if new.unique is not None:
        _check_unique(new.unique)
    if new.limits:
        _check_limits(new.limits)


def _check_limits(limits: Sequence[str]) -> None:
    if len(limits) > MOST_LIMITS:
        raise InvalidInput(f"{len(limits)} limits are too many", field="limits", hint=f"at most {MOST_LIMITS}")
    for limit in limits:
        check_limit(limit)


def _check_unique(unique: Unique) -> None:
    check_key(unique.key, "unique.key")
    if unique.until not in {"started", "ended"}:
        raise InvalidInput(f"{_shown(unique.until)} is not known", field="unique.until", hint='"started" or "ended"')
    if unique.on_conflict not in {"keep", "replace"}:
        raise InvalidInput(f"{_shown(unique.on_conflict)} is not known", field="unique.on_conflict", hint='"keep" or "replace"')


def check_limit(name: str) -> tuple[str, str]:
    """A limit's name in two parts: which definition, and whose count (`""` when there is one for all)."""
    definition, colon, key = name.partition(":")
    check_name(definition, "limits")
    if colon:
        check_key(key, "limits")
    return definition, key


def _check_edges(new: NewTask) -> None:
    if len(new.edges) > MOST_EDGES:
        raise InvalidInput(
            f"{len(new.edges)} edges are too many",
            field="edges",
            hint=f"at most {MOST_EDGES}; submit it with sealed=True, the others with parent= its id, then unseal it",
        )
    for edge in new.edges:
        check_id(edge.task, "edges")
        if edge.task == new.id:
            raise _waits_for_itself("edges")
    if new.parent is not None:
        check_id(new.parent.task, "parent")
        if new.parent.task == new.id:
            raise _waits_for_itself("parent")


def _waits_for_itself(field: str) -> InvalidInput:
    return InvalidInput("a task cannot wait for itself", code="cycle", field=field, hint="name another task")


def _check_texts(new: NewTask) -> None:
    if len(new.tags) > MOST_TAGS:
        raise InvalidInput(f"{len(new.tags)} tags are too many", field="tags", hint=f"at most {MOST_TAGS}")
    for name, value in new.tags.items():
        check_name(name, "tags")
        check_key(value, f"tags.{name}")
    if len(new.headers) > MOST_HEADERS:
        raise InvalidInput(f"{len(new.headers)} headers are too many", field="headers", hint=f"at most {MOST_HEADERS}")
    _check_headers(new)


def _check_headers(new: NewTask) -> None:
    for name, value in new.headers.items():
        check_key(name, "headers", length=128)
        if len(value) > 4096 or not _encodes(value) or any(c in value for c in "\r\n\0"):
            raise InvalidInput("is not a header value", code="invalid_header", field=f"headers.{name}", hint="one line of at most 4096 characters")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in new.headers.items())
    if size > MOST_HEADER_BYTES:
        raise InvalidInput(f"{size} bytes of headers are too many", code="headers_too_large", field="headers", hint=f"at most {MOST_HEADER_BYTES} in all")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_FIELD = re.compile(r"\{([^{}]+)\}")


SCOPE = "\x1f"
"""Stands between a tenant and its key in what is stored. No tenant and no key can hold it, so no tenant can write the key of another."""


def scoped(tenant: str, key: str) -> str:
    """A key as the store has it: two tenants with the same key are two keys."""
    return f"{tenant}{SCOPE}{key}" if tenant else key


def unscoped(key: str) -> str:
    """A stored key as its caller gave it."""
    return key.rpartition(SCOPE)[2]


def scoped_limit(tenant: str, limit: str) -> str:
    """`per-user:42` of a tenant. A limit without a key is one for all tenants."""
    definition, colon, key = limit.partition(":")
    return f"{definition}:{scoped(tenant, key)}" if colon else limit


def unscoped_limit(limit: str) -> str:
    definition, colon, key = limit.partition(":")
    return f"{definition}:{unscoped(key)}" if colon else limit


def scoped_share(tenant: str, share: str) -> str:
    """A share of a tenant; the one that has its name is the one that `fair="tenant"` gives it."""
    return share if share in {"", tenant} else scoped(tenant, share)


def definition_of(limit: str) -> str:
    """Which definition a stored limit counts by."""
    return limit.partition(":")[0]


def _limits_of(new: NewTask, settings: TypeSettings) -> tuple[str, ...]:
    limits = settings.limits if new.limits is None else (*settings.limits, *new.limits) if new.more_limits else new.limits
    if len(limits) > MOST_LIMITS:
        _check_limits(limits)
    return tuple(sorted({_limit_of(limit, new) for limit in limits}))


def _share_of(new: NewTask, settings: TypeSettings) -> str:
    """Its share in turns. Where a type shares by tenant, nothing that a caller says moves a task into another share."""
    if settings.fair == "tenant":
        if new.fair_key is not None and new.fair_key != new.tenant:
            raise InvalidInput(f"the type {new.type!r:.80} shares by tenant", code="share_by_tenant", field="fair_key", hint="leave fair_key out")
        return new.tenant
    if new.fair_key is not None:
        return scoped_share(new.tenant, new.fair_key)
    return "" if settings.fair is None else scoped_share(new.tenant, _from_payload(settings.fair, new, "fair", SHARE_LENGTH))


def _limit_of(template: str, new: NewTask) -> str:
    limit = _from_payload(template, new, "limits")
    check_limit(limit)
    return scoped_limit(new.tenant, limit)


def _from_payload(template: str, new: NewTask, setting: str, length: int = KEY_LENGTH) -> str:
    """`per-user:{user_id}` with the payload's own value; every client's submit gets the same."""
    if "{" not in template:
        return template
    payload = _decoded(new.payload)

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "tenant":
            return new.tenant
        found = payload.get(name) if isinstance(payload, dict) else None
        if isinstance(found, bool) or not isinstance(found, (str, int)) or found == "":
            raise InvalidInput(
                f"the payload has no text or whole number {name!r}, which {setting} of type {new.type!r} needs",
                code="missing_key",
                field=f"payload.{name}",
                hint="add it to the payload",
            )
        return str(found)

    return check_key(_FIELD.sub(value, template), setting, length=length)


def _decoded(payload: bytes) -> object:
    try:
        return codec.decode(payload)
    except (ValueError, RecursionError):
        return codec.parse(payload)  # slower, but it says what is wrong and where


def _unique_of(unique: Unique, new: NewTask) -> Unique:
    return Unique(_from_payload(unique.key, new, "unique"), unique.until, unique.on_conflict)


def check_settings(settings: TypeSettings, type_name: str) -> TypeSettings:
    """Refuse a type whose settings no task could have."""
    check_name(type_name, "type")
    check_name(settings.queue, "queue")
    check_range(settings.priority, "priority", 0, 3)
    check_range(settings.timeout, "timeout", SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
    check_range(settings.max_crashes, "max_crashes", 0, MOST_CRASHES)
    _check_limits(settings.limits)
    for limit in settings.limits:
        check_braces(limit, "limits")
    if settings.unique is not None:
        _check_unique(settings.unique)
        check_braces(settings.unique.key, "unique.key")
    if settings.fair is not None:
        check_braces(check_key(settings.fair, "fair", length=SHARE_LENGTH), "fair")
    if settings.ordered is not None:
        check_braces(check_key(settings.ordered, "ordered"), "ordered")
    return settings


def check_braces(template: str, field: str) -> None:
    """A brace that belongs to no field of the payload would stand in the key of every task: one for all, where one for each was meant."""
    if not {"{", "}"}.isdisjoint(_FIELD.sub("", template)):
        raise InvalidInput(f"{template!r:.80} has a brace without a field", field=field, hint="write {field} for a field of the payload")


_edges = attrgetter("edges")


def sequence_of(tasks: Sequence[NewTask]) -> Sequence[NewTask]:
    """A batch: bounded, so that one step of a store stays bounded."""
    if len(tasks) > MOST_BATCH:
        raise InvalidInput(f"{len(tasks)} tasks in one batch are too many", code="batch_too_large", field="tasks", hint=f"at most {MOST_BATCH}")
    edges = sum(map(len, map(_edges, tasks)))
    if edges > MOST_BATCH_EDGES:
        hint = f"at most {MOST_BATCH_EDGES} in all; submit fewer at once"
        raise InvalidInput(f"{edges} edges in one batch are too many", code="batch_too_large", field="edges", hint=hint)
    return tasks
