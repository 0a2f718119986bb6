"""The schemas of answers, by the names that routes give them.

Those of records are made from the records themselves, by the rules of `taskmill.views`: times are RFC 3339, durations as people write them, tokens texts,
payloads and results the JSON they are. So a field that is added to a record is in the document without a word here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, get_args

import msgspec

from taskmill.engine import Durability, Features, Finding, Status, WorkerInfo
from taskmill.operations import ROLES, Limit, LimitInfo, QueueInfo, QueueSettings, ScheduleInfo, Tally, TypeInfo
from taskmill.server.access import Scope
from taskmill.task import Attempt, EdgeResult, ErrorInfo, Priority, Progress, State, Task, TypeSettings, Unique
from taskmill.views import DURATIONS, JSON, TIMES, TOKENS

__all__ = ["STRUCTS", "TEXTS", "answers"]

Schema = dict[str, Any]
SchemaOf = Callable[[Any], Schema]

STRUCTS = (ErrorInfo, Progress, Unique, Features, Finding)
"""Records that are shown as they are, wherever they stand."""
TEXTS = {"Text": "text/plain", "Html": "text/html", "EventStream": "text/event-stream"}
"""Answers that are no JSON, and what they are."""

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_STARTED: Schema = {**_TIME, "description": "When its handler began; of one that never began, when it was claimed."}
_DURATION: Schema = {"type": "string", "description": 'As people write it: "90s".'}
_ID: Schema = {"type": "string", "format": "uuid"}
_PRIORITY: Schema = {"enum": [priority.name.lower() for priority in Priority]}
_TOKEN: Schema = {"type": "string", "pattern": "^[0-9]{1,19}$", "description": "Digits, possibly more than a double can hold."}
_RESULT_EXPIRED: Schema = {"type": "boolean", "description": "It completed, and its result is no longer kept (the setting result_retention)."}
_POLICY: Schema = {"type": "object", "description": "A retry policy; times in microseconds."}


def answers(schema_of: SchemaOf) -> dict[str, Schema]:
    """Every named answer; `schema_of` knows the schema of a type."""
    return {**_of_tasks(schema_of), **_of_the_store(schema_of), **_of_workers(), **_OTHERS}


def _of_tasks(schema_of: SchemaOf) -> dict[str, Schema]:
    accepted = {"id": _ID, "status": {"enum": [status.value for status in Status]}, "durability": {"enum": [level.value for level in Durability]}}
    error: Schema = {"type": "object", "description": "Why it was refused.", "required": ["code"], "properties": {"code": _TEXT}}
    return {
        "Submitted": _object(accepted, error=error),
        "Batch": _object({"accepted": _NUMBER, "refused": _NUMBER, "answers": _list(_ref("BatchAnswer"))}),
        "BatchAnswer": _object({}, **accepted, error=_ref("Problem")),
        "Task": _record(schema_of, Task, optional=("payload", "result", "headers"), id=_ID, priority=_PRIORITY, retry=_POLICY, result_expired=_RESULT_EXPIRED),
        "Tasks": _object({"tasks": _list(_ref("Task")), "cursor": _or_null(_TEXT)}),
        "Attempt": _record(schema_of, Attempt, started_at=_STARTED),
        "Attempts": _object({"attempts": _list(_ref("Attempt"))}),
        "Edge": _record(schema_of, EdgeResult, optional=("result",), task=_ID),
        "Edges": _object({"edges": _list(_ref("Edge"))}),
        "Unsealed": _object({"id": _ID, "sealed": _FLAG}),
        "Number": _object({"count": _NUMBER}),
        "Changed": _object({"id": _ID, "state": {"enum": [*(state.value for state in State), None]}, "version": _or_null(_NUMBER), "requested": _FLAG}),
        "Tally": _extended(_record(schema_of, Tally), dry_run=_FLAG),
        "Signalled": _object({"number": _NUMBER}),
    }


def _of_the_store(schema_of: SchemaOf) -> dict[str, Schema]:
    counts = _object({state.value: _NUMBER for state in State})
    leading = {"holder": _TEXT, "term": {**_NUMBER, "description": "The number of its term: higher than that of any before."}}
    settings = _record(schema_of, TypeSettings, priority=_PRIORITY, retry=_or_null(_POLICY))
    limit = _record(schema_of, Limit)
    schedule = _record(schema_of, ScheduleInfo, schedule=_or_null(_ref("ScheduleBody")))
    return {
        "QueueSettings": _record(schema_of, QueueSettings, optional=QueueSettings.__struct_fields__, priorities=_or_null({**_list(_NUMBER), "maxItems": 4})),
        "Queue": _record(schema_of, QueueInfo, counts=counts, settings=_ref("QueueSettings")),
        "Queues": _object({"queues": _list(_ref("Queue"))}),
        "TypeSettings": settings,
        "Type": _record(schema_of, TypeInfo, settings=_ref("TypeSettings")),
        "Types": _object({"types": _list(_ref("Type"))}),
        "Paused": _object({"name": _TEXT, "paused": _FLAG, "changed": _FLAG}),
        "ScheduleState": schedule,
        "Schedules": _object({"schedules": _list(_ref("ScheduleState"))}),
        "Schedule": _extended(schedule, next=_list(_TIME)),
        "Worker": _record(schema_of, WorkerInfo),
        "Workers": _object({"workers": _list(_ref("Worker"))}),
        "Told": _object({"id": _TEXT, "command": {"enum": ["pause", "quiet", "stop", None]}}),
        "Limit": _record(schema_of, LimitInfo, limit={"type": "object", "properties": limit["properties"]}),
        "Limits": _object({"limits": _list(_ref("Limit"))}),
        "Leading": _object(leading),
        "Leader": _object({"roles": _ref("LeaderRoles")}),
        "LeaderRoles": _object({role: _or_null(_ref("Leading")) for role in ROLES}),
        "Engine": _object({"engine": _TEXT, "version": _TEXT, "durability": _TEXT, "features": schema_of(Features), "findings": _list(schema_of(Finding))}),
        "Scale": _object({"value": _NUMBER}),
    }


def _of_workers() -> dict[str, Schema]:
    """Of the worker protocol, in which durations are numbers of seconds and tokens texts."""
    seconds: Schema = {"type": "number", "minimum": 0, "description": "Seconds."}
    anything: Schema = {"description": "Any JSON value."}
    texts: Schema = {"type": "object", "additionalProperties": _TEXT}
    claimed = _object(
        {
            **dict.fromkeys(("type", "queue", "tenant"), _TEXT),
            **dict.fromkeys(("attempt", "failures", "crashes"), _NUMBER),
            **dict.fromkeys(("created_at", "claimed_at", "deadline"), _TIME),
            **{name: _or_null(_TEXT) for name in ("must_end", "phase")},
            "id": _ID,
            "payload": anything,
            "token": _TOKEN,
            "priority": _PRIORITY,
            "timeout": seconds,
            "headers": texts,
            "checkpoints": {"type": "object", "additionalProperties": anything},
            "signals": _list(_ref("ReceivedSignal")),
            "results": _list(_ref("AwaitedResult")),
            "unwind": _FLAG,
        }
    )
    answer = _object({"task": _or_null(_TEXT), "token": _or_null(_TEXT), "applied": _FLAG}, error=_ref("Problem"), state=_TEXT)
    return {
        "ReceivedSignal": _object({"number": _NUMBER, "name": _TEXT, "data": anything, "at": _TIME}),
        "AwaitedResult": _object({"task": _ID, "outcome": _or_null(_TEXT), "result": anything}),
        "AppliedAnswer": answer,
        "Joined": _object({"worker": _TEXT, "lease": seconds, "beat_every": seconds}),
        "ClaimedTask": claimed,
        "ClaimedTasks": _object({"request": _NUMBER, "tasks": _list(_ref("ClaimedTask")), "next_at": _or_null(_TIME), "more": _FLAG}),
        "Beat": _object({"known": _FLAG, "lost": _list(_TOKEN), "cancelled": _list(_ID), "commands": _list(_TEXT)}),
        "Applied": _object({"applied": _NUMBER, "refused": _NUMBER, "answers": _list(_ref("AppliedAnswer"))}),
        "Left": _object({"left": _FLAG}),
    }


# What they are put together from


def _object(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": {**required, **optional}}
    return {**found, "required": list(required)} if required else found


def _extended(schema: Schema, **more: Schema) -> Schema:
    return {**schema, "properties": {**schema["properties"], **more}, "required": [*schema["required"], *more]}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _record(schema_of: SchemaOf, kind: type[msgspec.Struct], *, optional: Iterable[str] = (), **own: Schema) -> Schema:
    """A record as `views` shows it: every field is there, but for those that a caller may not see."""
    properties = {field.name: own.get(field.name) or _field(schema_of, field.name, field.type) for field in msgspec.structs.fields(kind)} | own
    return {"type": "object", "properties": properties, "required": [name for name in properties if name not in set(optional)]}


def _field(schema_of: SchemaOf, name: str, kind: Any) -> Schema:
    if name in JSON:
        return {"description": "Any JSON value."}
    if name in TIMES or name in DURATIONS or name in TOKENS:
        shown = _TIME if name in TIMES else _DURATION if name in DURATIONS else _TOKEN
        return _or_null(shown) if NoneType in get_args(kind) else shown
    return schema_of(kind)


_SCOPES: Schema = _list({"enum": [scope.value for scope in Scope]})
_QUOTAS: Mapping[str, Schema] = {"tenant": _or_null(_TEXT), "rate": _or_null(_NUMBER), "depth": _or_null(_NUMBER)}
_KEY = _object({"id": _TEXT, "name": _TEXT, "scopes": _SCOPES, **_QUOTAS, "created_at": _TIME})

_OTHERS: dict[str, Schema] = {
    "Key": _KEY,
    "Keys": _object({"keys": _list(_ref("Key"))}),
    "NewKey": _extended(_KEY, token={"type": "string", "description": "Shown here and never again."}),
    "Me": _object({"key": _or_null(_TEXT), "scopes": _SCOPES, **_QUOTAS}),
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG}, reasons=_list(_TEXT)),
    "Started": _object({"started": _FLAG}),
    "OpenApi": {"type": "object", "description": "This document."},
}
