"""Records as JSON: one place that says what a task, a queue, a schedule and a worker look like, on the command line and over HTTP.

Times are RFC 3339 and durations as people write them (`"90s"`); payloads, results and checkpoints are the JSON values they are. The token of a lease is a text
of digits: on a Redis Cluster it is larger than 2^53, and whoever reads JSON numbers as doubles would silently have another one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskmill import codec
from taskmill.clock import format_duration, rfc3339
from taskmill.engine import Finding, Submitted, WorkerInfo
from taskmill.events import Event
from taskmill.operations import LimitInfo, QueueInfo, ScheduleInfo, TypeInfo
from taskmill.task import Attempt, EdgeResult, Priority, State, Task

__all__ = [
    "DURATIONS",
    "JSON",
    "TIMES",
    "TOKENS",
    "attempt_data",
    "edge_data",
    "event_data",
    "finding_data",
    "limit_data",
    "priority_word",
    "queue_data",
    "schedule_data",
    "submitted_data",
    "task_data",
    "type_data",
    "worker_data",
]

TIMES = ("run_at", "created_at", "updated_at", "started_at", "ended_at", "finished_at", "expires_at", "joined_at", "next_at", "fired_at")
DURATIONS = ("timeout", "idempotency_window", "lease", "silent", "oldest", "expires", "window")
JSON = ("payload", "result")
TOKENS = ("token",)


def _data(record: msgspec.Struct, *, raw: bool = False) -> dict[str, object]:
    """A record with its times, durations and JSON as people read them; `raw`: its JSON as the bytes it is, for an encoder."""
    found: dict[str, object] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if value is not None:
            value = msgspec.Raw(value) if raw and name in JSON else _readable(name, value)
        found[name] = value
    return found


def _readable(name: str, value: object) -> object:
    if isinstance(value, bytes):
        return codec.decode(value) if name in JSON else value.decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool):
        return rfc3339(value) if name in TIMES else format_duration(value) if name in DURATIONS else str(value) if name in TOKENS else value
    if isinstance(value, (msgspec.Struct, Mapping, tuple, frozenset)):
        return msgspec.to_builtins(dict(value) if isinstance(value, Mapping) else value)
    return value


def priority_word(priority: int) -> str:
    return Priority(priority).name.lower()


def task_data(task: Task, *, raw: bool = False) -> dict[str, object]:
    gone = task.state is State.COMPLETED and task.result is None
    return {**_data(task, raw=raw), "priority": priority_word(task.priority), "retry": task.retry.to_data(), "result_expired": gone}


def attempt_data(attempt: Attempt) -> dict[str, object]:
    return _data(attempt)


def edge_data(edge: EdgeResult, *, raw: bool = True) -> dict[str, object]:
    return _data(edge, raw=raw)


def submitted_data(answer: Submitted) -> dict[str, object]:
    found: dict[str, object] = {"id": answer.id, "status": answer.status.value, "durability": answer.durability.value}
    if answer.error is not None:
        found["error"] = {"code": answer.error.code, "message": answer.error.message}
    return found


def queue_data(queue: QueueInfo) -> dict[str, object]:
    return {**_data(queue), "counts": {state.value: queue.counts.get(state, 0) for state in State}}


def schedule_data(info: ScheduleInfo) -> dict[str, object]:
    return {**_data(info), "schedule": info.schedule.to_data() if info.schedule else None}


def type_data(info: TypeInfo) -> dict[str, object]:
    of_type = info.settings
    retry = of_type.retry.to_data() if of_type.retry else None
    return {**_data(info), "settings": {**_data(of_type), "priority": priority_word(of_type.priority), "retry": retry}}


def limit_data(info: LimitInfo) -> dict[str, object]:
    return {**_data(info), "limit": {name: value for name, value in _data(info.limit).items() if value is not None}}


def worker_data(worker: WorkerInfo) -> dict[str, object]:
    return _data(worker)


def finding_data(finding: Finding) -> dict[str, object]:
    return _data(finding)


def event_data(event: Event) -> dict[str, object]:
    return {"kind": event.kind.value, "subject": event.subject, "version": event.version, "at": rfc3339(event.at), "data": dict(event.data)}
