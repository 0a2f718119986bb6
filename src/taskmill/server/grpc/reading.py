"""Messages as the records of the product; what cannot be one is refused with its field.

A batch is read field by field as the message lists them: most tasks have a type and a payload, and what a message does not hold costs nothing.
Names, ranges and keys are judged where every surface has them judged, by `resolve`; here is only what gRPC has of its own: enums, times, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from taskmill import codec, requests
from taskmill.clock import DAY, SECOND
from taskmill.cron import Misfire, Overlap
from taskmill.engine import Checkpoint, Durability, Ending, Filter, Outcome
from taskmill.errors import InvalidInput
from taskmill.operations import Limit, QueueSettings
from taskmill.options import choice
from taskmill.requests import Words
from taskmill.retry import Retry
from taskmill.schedule import Schedule, cron_of
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import (
    DEFAULT_MAX_CRASHES,
    DEFAULT_TIMEOUT,
    Edge,
    ErrorInfo,
    NewTask,
    OnFailure,
    OnLimit,
    Priority,
    Progress,
    State,
    TypeSettings,
    Unique,
    check_id,
    check_name,
    check_range,
)

__all__ = [
    "LONGEST_DELAY",
    "STATES",
    "WORDS",
    "durability",
    "duration",
    "filter_of",
    "json",
    "limit_numbers",
    "needed_id",
    "new_task",
    "outcome",
    "parsed",
    "queue_settings",
    "schedule_spec",
    "step",
    "type_settings",
    "wait_of",
]

WORDS = Words(
    state="filter.states",
    type="filter.types",
    queue="filter.queues",
    tenant="filter.tenant",
    tag="filter.tags",
    since="filter.created_from",
    until="filter.created_to",
    ids="which",
)
LONGEST_DELAY = 366 * DAY
_BEYOND = 1 << 62
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=Enum)
W = TypeVar("W", bound=StrEnum)


def parsed(kind: type[M], data: bytes) -> M:
    """A message from the wire."""
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise InvalidInput(
            f"the bytes are no {kind.DESCRIPTOR.name}", code="invalid_message", hint="encode it with stubs made from taskmill/v1/taskmill.proto"
        ) from None
    return message


def needed_id(text: str, field: str = "id") -> str:
    """An id that must be there. One that is no UUID is one that nobody knows: who looks for it is told so."""
    if not text:
        raise InvalidInput("it is empty", code="id_required", field=field, hint="the id of a task, as the submit answered it")
    return text


# Enums


def _by_number(kind: type[E], prefix: str, numbers: Mapping[str, int]) -> dict[int, E]:
    return {numbers[f"{prefix}_{member.name}"]: member for member in kind}


STATES: Mapping[int, State] = _by_number(State, "STATE", dict(pb.State.items()))
_PRIORITIES: Mapping[int, Priority] = _by_number(Priority, "PRIORITY", dict(pb.Priority.items()))
_DURABILITIES: Mapping[int, Durability] = _by_number(Durability, "DURABILITY", dict(pb.Durability.items()))
_ON_FAILURE: Mapping[int, OnFailure] = _by_number(OnFailure, "ON_FAILURE", dict(pb.OnFailure.items()))
_ON_LIMIT: Mapping[int, OnLimit] = _by_number(OnLimit, "ON_LIMIT", dict(pb.OnLimit.items()))


def _member(number: int, members: Mapping[int, E], field: str) -> E:
    found = members.get(number)
    if found is None:
        hint = "one of " + ", ".join(f"{value} ({member.name})" for value, member in members.items())
        raise InvalidInput(f"{number} is no value of this enum", code="unknown_enum", field=field, hint=hint)
    return found


def durability(number: int) -> Durability | None:
    return _member(number, _DURABILITIES, "durability") if number else None


# Times


def duration(value: Duration, field: str, maximum: int = _BEYOND) -> int:
    """In microseconds; not below zero."""
    micros = value.seconds * SECOND + value.nanos // 1_000
    if not 0 <= micros <= maximum or not -1_000_000_000 < value.nanos < 1_000_000_000:
        raise InvalidInput("it is out of range", code="invalid_duration", field=field, hint=f"from 0 to {min(maximum, LONGEST_DELAY) // SECOND} seconds")
    return micros


def _instant(value: Timestamp, field: str) -> int:
    if not 0 <= value.seconds <= 253_402_300_799 or not 0 <= value.nanos < 1_000_000_000:
        raise InvalidInput("it is out of range", code="invalid_time", field=field, hint="between the years 1970 and 9999")
    return value.seconds * SECOND + value.nanos // 1_000


# JSON


def json(data: bytes, field: str, limit: int = codec.MOST_PAYLOAD) -> bytes:
    """As it is stored; nothing is null."""
    return codec.stored(data, field=field, limit=limit) if data else b"null"


# New tasks


def new_task(message: pb.NewTask, make_id: Callable[[str], str]) -> NewTask:
    listed = message.ListFields()
    if len(listed) == 2 and listed[0][0] is _TYPE and listed[1][0] is _PAYLOAD:  # most are so, and cost half
        return NewTask(type=listed[0][1], payload=codec.stored(listed[1][1]), id=make_id("default"))
    fields: dict[str, Any] = {}
    for descriptor, value in listed:
        name, read = _READERS[descriptor]
        fields[name] = value if read is None else read(value, name)
    if "type" not in fields:
        raise InvalidInput("it is missing", code="type_required", field="type", hint="the name of the task's type")
    if "payload" not in fields:
        raise InvalidInput("it is required", code="required", field="payload", hint="JSON; null where there is nothing to say")
    if "id" not in fields:
        fields["id"] = make_id(fields.get("queue") or "default")
    return NewTask(**fields)


def _retry(message: pb.Retry, field: str) -> Retry:
    data: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        name = descriptor.name
        if name in {"base", "cap"}:
            data[name] = duration(value, f"{field}.{name}")
        elif name == "delays":
            data[name] = [duration(each, f"{field}.delays") for each in value]
        elif name == "rules":
            data[name] = [_rule(each, field) for each in value]
        else:
            data[name] = value
    return Retry.from_data(data)


def _rule(message: pb.RetryRule, field: str) -> dict[str, object]:
    rule: dict[str, object] = {"error": message.error, "action": message.action or "retry"}
    if message.HasField("after"):
        rule["after"] = duration(message.after, f"{field}.rules.after")
    return rule


def _unique(message: pb.Unique, _: str = "unique") -> Unique:
    return Unique(message.key, message.until or "ended", message.on_conflict or "keep")


def _edges(messages: Iterable[pb.Edge], _: str) -> tuple[Edge, ...]:
    return tuple(Edge(check_id(each.task, "after"), _on_failure(each.on_failure)) for each in messages)


def _parent(message: pb.Edge, field: str) -> Edge:
    return Edge(check_id(message.task, field), _on_failure(message.on_failure))


def _on_failure(number: int) -> OnFailure:
    return _member(number, _ON_FAILURE, "after.on_failure") if number else OnFailure.CANCEL


def _priority(number: int, field: str) -> int:
    return int(_member(number, _PRIORITIES, field))


def _on_limit(number: int, field: str) -> OnLimit:
    return _member(number, _ON_LIMIT, field)


def _texts(value: Mapping[str, str], _: str) -> dict[str, str]:
    return dict(value)


def _names(value: Iterable[str], _: str) -> tuple[str, ...]:
    return tuple(value)


_Reader = Callable[[Any, str], Any] | None

_OTHERWISE: Mapping[str, tuple[str, _Reader]] = {
    "payload": ("payload", json),
    "priority": ("priority", _priority),
    "run_at": ("run_at", _instant),
    "delay": ("delay", duration),
    "retry": ("retry", _retry),
    "timeout": ("timeout", duration),
    "expires_at": ("expires_at", _instant),
    "idempotency_window": ("idempotency_window", duration),
    "unique": ("unique", _unique),
    "headers": ("headers", _texts),
    "tags": ("tags", _texts),
    "limits": ("limits", _names),
    "on_limit": ("on_limit", _on_limit),
    "after": ("edges", _edges),
    "parent": ("parent", _parent),
}
_READERS: Mapping[FieldDescriptor, tuple[str, _Reader]] = {
    descriptor: _OTHERWISE.get(name, (name, None)) for name, descriptor in pb.NewTask.DESCRIPTOR.fields_by_name.items()
}
"""By field, what it is called here and how it is read; a text or a number is taken as it is."""
_TYPE, _PAYLOAD = (pb.NewTask.DESCRIPTOR.fields_by_name[name] for name in ("type", "payload"))


# Filters


def filter_of(message: pb.Filter) -> Filter:
    requests.check_values(message.states, WORDS.state)
    return requests.filter_of(
        state=[_member(number, STATES, WORDS.state) for number in message.states],
        type=message.types,
        queue=message.queues,
        tenant=message.tenant if message.HasField("tenant") else None,
        tags=dict(message.tags),
        since=_instant(message.created_from, WORDS.since) if message.HasField("created_from") else None,
        until=_instant(message.created_to, WORDS.until) if message.HasField("created_to") else None,
        words=WORDS,
    )


def wait_of(value: Duration) -> int:
    return requests.wait_of(duration(value, "wait") / SECOND)


# Workers


def type_settings(message: pb.TypeSettings) -> TypeSettings:
    return TypeSettings(
        queue=message.queue or "default",
        priority=_priority(message.priority, "settings.priority") if message.priority else Priority.NORMAL,
        retry=_retry(message.retry, "settings.retry") if message.HasField("retry") else None,
        timeout=duration(message.timeout, "settings.timeout") if message.HasField("timeout") else DEFAULT_TIMEOUT,
        max_crashes=message.max_crashes if message.HasField("max_crashes") else DEFAULT_MAX_CRASHES,
        limits=tuple(message.limits),
        on_limit=_on_limit(message.on_limit, "settings.on_limit") if message.on_limit else OnLimit.DELAY,
        unique=_unique(message.unique) if message.HasField("unique") else None,
        fair=message.fair or None,
        ordered=message.ordered or None,
    )


def queue_settings(message: pb.QueueSettings) -> QueueSettings:
    if len(message.priorities) not in (0, 4):
        raise InvalidInput(f"{len(message.priorities)} numbers", code="invalid_value", field="settings.priorities", hint="four: low, normal, high, critical")
    low, normal, high, critical = message.priorities or (0, 0, 0, 0)
    return QueueSettings(
        weights=dict(message.weights),
        priorities=(low, normal, high, critical) if message.priorities else None,
        fair=message.fair or None,
        partitions=message.partitions or 1,
    )


def limit_numbers(message: pb.LimitNumbers) -> Limit:
    return Limit(
        rate=message.rate if message.HasField("rate") else None,
        window=duration(message.window, "numbers.window") if message.HasField("window") else SECOND,
        cap=message.cap if message.HasField("cap") else None,
    )


_OF_SCHEDULES = frozenset({"type", "payload", "queue", "priority", "retry", "timeout", "max_crashes", "headers", "tags", "limits"})


def schedule_spec(message: pb.ScheduleSpec) -> Schedule:
    """A schedule, its tasks written as a task is."""
    fields: dict[str, Any] = {}
    for descriptor, value in message.task.ListFields():
        name, read = _READERS[descriptor]
        if name not in _OF_SCHEDULES:
            hint = f"it has {', '.join(sorted(_OF_SCHEDULES))}"
            raise InvalidInput("a schedule's task has no such field", code="unknown_field", field=f"spec.task.{descriptor.name}", hint=hint)
        fields[name] = value if read is None else read(value, name)
    cron: dict[str, object] = {"expression": message.cron, "timezone": message.timezone or "UTC"}
    if message.HasField("start"):
        cron["start"] = _instant(message.start, "spec.start")
    return Schedule(
        type=check_name(fields.pop("type", ""), "spec.task.type"),
        cron=cron_of(cron),
        overlap=_word(message.overlap, Overlap, Overlap.ALLOW, "spec.overlap"),
        misfire=_word(message.misfire, Misfire, Misfire.ONCE, "spec.misfire"),
        expires=duration(message.expires, "spec.expires") if message.HasField("expires") else None,
        tenant=message.tenant,
        **fields,
    )


def _word(text: str, kind: type[W], default: W, field: str) -> W:
    return kind(choice(text, kind, field)) if text else default


def outcome(message: pb.Outcome, worker: str, payload_limit: int) -> Outcome:
    """The end of an attempt; one that says none is no end."""
    task = check_id(needed_id(message.task, "outcomes.task"), "outcomes.task")
    started = duration(message.started_after, "outcomes.started_after", LONGEST_DELAY) if message.HasField("started_after") else 0

    def ended(ending: Ending, *, result: bytes | None = None, error: ErrorInfo | None = None, after: int = 0) -> Outcome:
        return Outcome(task=task, worker=worker, token=message.token, ending=ending, result=result, error=error, after=after, started_after=started)

    match message.WhichOneof("ending"):
        case "completed":
            return ended(Ending.COMPLETED, result=json(message.completed.result, "outcomes.completed.result", payload_limit))
        case "failed":
            failed = message.failed
            after = duration(failed.retry_after, "outcomes.failed.retry_after", LONGEST_DELAY)
            return ended(Ending.DEAD if failed.permanent else Ending.RETRY, error=_error(failed.error), after=0 if failed.permanent else after)
        case "snoozed":
            return ended(Ending.SNOOZED, after=duration(message.snoozed.delay, "outcomes.snoozed.delay", LONGEST_DELAY))
        case "released":
            return ended(Ending.RELEASED)
        case "cancelled":
            return ended(Ending.CANCELLED)
        case _:
            raise InvalidInput("it says no ending", code="ending_required", field="outcomes.ending", hint="completed, failed, snoozed, released or cancelled")


def _error(message: pb.Error) -> ErrorInfo:
    return ErrorInfo(message.code or "failed", message.message, message.traceback)


def step(message: pb.Step, worker: str, payload_limit: int) -> Checkpoint:
    task = check_id(needed_id(message.task, "steps.task"), "steps.task")
    progress = Progress(message.progress.value, message.progress.message) if message.HasField("progress") else None
    started = duration(message.started_after, "steps.started_after", LONGEST_DELAY) if message.HasField("started_after") else None
    if not message.name and progress is None and started is None:
        raise InvalidInput("it says nothing", code="name_required", field="steps.name", hint="the name of a step with its value, progress, or started_after")
    value = json(message.value, "steps.value", payload_limit)
    return Checkpoint(task=task, worker=worker, token=message.token, name=message.name or None, value=value, progress=progress, started_after=started)


def count(items: Any, field: str, most: int) -> int:
    """How many of a list that must not be empty, nor too long."""
    if not 1 <= len(items) <= most:
        code = "batch_too_large" if len(items) else "batch_empty"
        raise InvalidInput(f"{len(items)} in one request", code=code, field=field, hint=f"1 to {most:,}")
    return check_range(len(items), field, 1, most)
