"""Tasks on their way: a new one as the JSON that a server takes, a record from the JSON that it gives (`views` writes it)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from taskmill.client.problems import expected
from taskmill.clock import DAY, HOUR, MILLISECOND, MINUTE, SECOND, duration, format_duration, instant, rfc3339
from taskmill.engine import Durability, Filter, WorkerInfo
from taskmill.errors import Forbidden, InvalidInput
from taskmill.operations import Limit, LimitInfo, QueueInfo, QueueSettings, ScheduleInfo, TypeInfo
from taskmill.retry import Retry
from taskmill.schedule import Schedule
from taskmill.task import Attempt, EdgeResult, ErrorInfo, NewTask, OnFailure, OnLimit, Progress, State, Task, TypeSettings, Unique
from taskmill.views import DURATIONS, JSON, TIMES, TOKENS, priority_word

__all__ = [
    "Hidden",
    "attempt_of",
    "edge_of",
    "given_fields",
    "limit_of",
    "limit_text",
    "query_of",
    "queue_of",
    "schedule_of",
    "shown",
    "task_body",
    "task_of",
    "type_of",
    "worker_of",
]

S = TypeVar("S", bound=msgspec.Struct)
Fields = Mapping[str, Raw]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Hidden(bytes):
    """Instead of a payload or a result that the key may not read."""

    def __repr__(self) -> str:
        return "<hidden>"


def shown(data: bytes) -> bytes:
    """JSON that the key may read."""
    if isinstance(data, Hidden):
        raise Forbidden("this key may not read payloads and results", hint="it needs the scope read-payload; `taskmill key list` shows what each key has")
    return data


# To the server


_WRITERS: Mapping[str, Callable[[Any], object]] = {
    "queue": str,
    "priority": priority_word,
    "run_at": rfc3339,
    "delay": format_duration,
    "retry": Retry.to_data,
    "timeout": format_duration,
    "max_crashes": int,
    "expires_at": rfc3339,
    "idempotency_key": str,
    "idempotency_window": format_duration,
    "unique": msgspec.to_builtins,
    "limits": list,
    "on_limit": str,
    "fair_key": str,
    "order_key": str,
    "tags": dict,
    "headers": dict,
}


def task_body(type: str, payload: bytes, id: str, fields: Mapping[str, Any], *, durability: Durability | None = None, expires: int | None = None) -> bytes:
    """A task as one item of a batch; `fields` are those of a new task. `expires` goes as the time that it is, so that only the server's clock counts."""
    body: dict[str, Any] = {"type": type, "payload": Raw(payload), "id": id}
    for name, value in fields.items():
        write = _WRITERS.get(name)
        if write is None:
            body |= _special(name, value)
        elif value is not None:
            body[name] = write(value)
    if durability is not None:
        body["durability"] = durability.value
    if expires is not None:
        body["expires"] = format_duration(expires)
    return _encode(body)


def given_fields(new: NewTask) -> dict[str, Any]:
    """What a new task says beside its type, its payload and its id."""
    return {name: value for name, left_out in _LEFT_OUT.items() if (value := getattr(new, name)) != left_out}


_LEFT_OUT = {name: getattr(NewTask(type="any"), name) for name in NewTask.__struct_fields__ if name not in {"type", "payload", "id"}}


def _special(name: str, value: Any) -> dict[str, Any]:
    """What is not said to a server under its own name, or not at all."""
    if name == "edges" and value:
        meanings = {edge.on_failure for edge in value}
        if len(meanings) > 1:
            raise InvalidInput("a server takes one on_failure for all that a task waits for", field="edges", hint="give them all the same")
        return {"after": [edge.task for edge in value], "on_failure": meanings.pop().value}
    if name == "tenant" and value:
        hint = "leave it out, and use a key of that tenant"
        raise InvalidInput("the tenant of a task is that of the API key", code="tenant_of_key", field="tenant", hint=hint)
    if name == "parent" and value is not None:
        return {"parent": {"task": value.task, "on_failure": value.on_failure.value}}
    return {"sealed": True} if name == "sealed" and value else {}


def query_of(which: Filter) -> list[tuple[str, str]]:
    """A filter as parameters of a URL."""
    found = [(name, value) for name, values in (("state", which.states), ("type", which.types), ("queue", which.queues)) for value in sorted(values)]
    if which.tenant is not None:
        found.append(("tenant", which.tenant))
    found += [("tag", f"{name}={value}") for name, value in which.tags.items()]
    found += [(name, rfc3339(at)) for name, at in (("since", which.created_from), ("until", which.created_to)) if at is not None]
    return found


_UNITS = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND))


def limit_text(limit: Limit) -> str | None:
    """Its rate, as people write it: "100/1m"."""
    if limit.rate is None:
        return None
    for unit, micros in _UNITS:
        if limit.window > 0 and limit.window % micros == 0:
            return f"{limit.rate}/{limit.window // micros}{unit}"
    raise InvalidInput("the window is no whole number of milliseconds", code="invalid_rate", field="window", hint="at least one millisecond")


# From the server


def _read(fields: Fields, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields that this kind of record has; of those that a server does not have (an older one), the defaults hold."""
    found: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        if name not in fields:
            if name in JSON:
                found[name] = Hidden(b"null")
            continue
        raw = fields[name]
        if name in JSON:
            found[name] = bytes(raw)
            continue
        value = _decode(raw)
        if value is not None and name in TIMES:
            value = instant(value, field=name)
        elif value is not None and name in DURATIONS:
            value = duration(value, field=name)
        elif value is not None and name in TOKENS:
            value = int(value)
        found[name] = value
    return found


def _struct(value: object, kind: type[S]) -> S | None:
    return None if value is None else msgspec.convert(value, kind)


@expected
def task_of(fields: Fields) -> Task:
    found = _read(fields, Task)
    returned = found["state"] == State.COMPLETED.value and bytes(fields.get("result_expired", b"")) != b"true"
    if found["result"] == b"null" and not isinstance(found["result"], Hidden) and not returned:
        found["result"] = None
    found["priority"] = _PRIORITIES[found["priority"]]
    found["state"] = State(found["state"])
    found["retry"] = Retry.from_data(found["retry"])
    found["limits"] = tuple(found["limits"])
    found["unique"] = _struct(found["unique"], Unique)
    found["error"] = _struct(found["error"], ErrorInfo)
    found["progress"] = _struct(found["progress"], Progress)
    return Task(**found)


_PRIORITIES = {priority_word(number): number for number in range(4)}


@expected
def attempt_of(fields: Fields) -> Attempt:
    found = _read(fields, Attempt)
    return Attempt(**{**found, "error": _struct(found["error"], ErrorInfo)})


@expected
def edge_of(fields: Fields) -> EdgeResult:
    found = _read(fields, EdgeResult)
    outcome, result = found["outcome"], found["result"]
    return EdgeResult(
        found["task"], OnFailure(found["on_failure"]), None if outcome is None else State(outcome), None if result == b"null" and outcome is None else result
    )


# The whole store


def _inner(fields: Fields, name: str) -> Fields:
    return msgspec.json.decode(fields[name], type=dict[str, Raw])


@expected
def queue_of(fields: Fields) -> QueueInfo:
    found = _read(fields, QueueInfo)
    settings = msgspec.convert(found.get("settings") or {}, QueueSettings)
    return QueueInfo(**{**found, "counts": {State(name): tasks for name, tasks in found["counts"].items() if tasks}, "settings": settings})


@expected
def type_of(fields: Fields) -> TypeInfo:
    found = _read(_inner(fields, "settings"), TypeSettings)
    found["priority"] = _PRIORITIES[found["priority"]]
    found["retry"] = None if found["retry"] is None else Retry.from_data(found["retry"])
    found["limits"] = tuple(found["limits"])
    found["on_limit"] = OnLimit(found["on_limit"])
    found["unique"] = _struct(found["unique"], Unique)
    return TypeInfo(**{**_read(fields, TypeInfo), "settings": TypeSettings(**found)})


@expected
def schedule_of(fields: Fields) -> ScheduleInfo:
    """One that only the server can read, which may be newer, is shown without what it is."""
    found = _read(fields, ScheduleInfo)
    try:
        found["schedule"] = None if found["schedule"] is None else Schedule.from_data(found["schedule"])
    except InvalidInput as error:
        found["schedule"], found["error"] = None, str(error)
    return ScheduleInfo(**found)


@expected
def worker_of(fields: Fields) -> WorkerInfo:
    found = _read(fields, WorkerInfo)
    return WorkerInfo(**{**found, "queues": tuple(found["queues"]), "types": tuple(found["types"])})


@expected
def limit_of(fields: Fields) -> LimitInfo:
    return LimitInfo(**{**_read(fields, LimitInfo), "limit": Limit(**_read(_inner(fields, "limit"), Limit))})
