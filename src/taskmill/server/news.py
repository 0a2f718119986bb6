"""Live events as clients get them: what there is, what each says, and how it is written.

    {"type": "task.completed", "timestamp": "2026-01-31T09:00:00.150000Z", "id": "0197d82cba37-17",
     "data": {"task_id": "…", "type": "email", "queue": "mail", "sequence": 3, "attempt": 1, "duration_ms": 150}}

`id` is its place in the stream of one server process: who comes back with it hears what followed. `sequence` is the version of the task: the events of a task
have each number once, in order, or a `resync` stands between them. Payloads, results and the texts of errors are in no event; what a handler says of its
progress is for those who may read payloads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill.clock import SECOND, rfc3339
from taskmill.events import Event, Kind

__all__ = ["TYPES", "Form", "Meaning", "News", "how_many", "message", "news_of", "of_depth", "of_metrics", "of_worker", "resync"]


class Meaning(msgspec.Struct, frozen=True):
    """A type of event: what it says, and the members of its data. `whole`: it is for callers without a tenant."""

    text: str
    fields: tuple[str, ...]
    whole: bool = True


_TASK = ("task_id", "type", "queue", "tenant", "sequence")


def _task(text: str, *fields: str) -> Meaning:
    return Meaning(text, (*_TASK, *fields), whole=False)


TYPES: Mapping[str, Meaning] = MappingProxyType(
    {
        "task.submitted": _task("It is stored."),
        "task.started": _task("A worker claimed it.", "worker", "attempt"),
        "task.progress": _task("Its handler said how far it is, or kept a checkpoint.", "value", "message", "checkpoint"),
        "task.completed": _task("It ended well.", "attempt", "duration_ms"),
        "task.failed": _task(
            "An attempt ended in an error. What became of the task follows under the same sequence: retrying, dead, or ready after a crash.",
            "attempt",
            "error",
            "duration_ms",
        ),
        "task.retrying": _task("It waits for its next attempt.", "attempt", "error", "duration_ms"),
        "task.dead": _task("It ended badly: no attempt is left, or it was refused.", "attempt", "error", "duration_ms"),
        "task.cancelled": _task("It was cancelled, or its time was over.", "attempt", "error", "duration_ms"),
        "task.cancelling": _task("It runs, and its worker is told to cancel it."),
        "task.snoozed": _task("It waits for its time.", "attempt", "duration_ms"),
        "task.waiting": _task("It waits for other tasks or for a signal."),
        "task.ready": _task("It can be claimed: again, or for the first time.", "attempt", "error", "duration_ms"),
        "task.signalled": _task("A signal has come.", "name", "number"),
        "task.replaced": _task("A later submit with its unique key gave it another payload."),
        "task.deleted": _task("Its record was removed."),
        "worker.joined": Meaning("A worker has registered.", ("worker_id",)),
        "worker.left": Meaning("A worker has gone.", ("worker_id",)),
        "worker.lost": Meaning("A worker was not heard of any more; what it held is given to others.", ("worker_id",)),
        "worker.paused": Meaning("An operator told a worker to claim nothing more.", ("worker_id", "command")),
        "worker.resumed": Meaning("What an operator told a worker was taken back.", ("worker_id",)),
        "queue.depth": Meaning(
            "Every five seconds, for each queue: how many tasks it holds, those that wait for a worker (`depth`) first.",
            ("queue", "depth", "scheduled", "retrying", "waiting", "running", "dead", "oldest_ms"),
        ),
        "schedule.fired": Meaning("A schedule made its task.", ("schedule", "version")),
        "leader.changed": Meaning("A role has a new holder.", ("role", "holder", "term")),
        "setting.changed": Meaning("A setting was put or dropped: a pause, a limit, a schedule.", ("kind", "name")),
        "system.metrics": Meaning(
            "Every five seconds: tasks by state, workers that live, and this server process.", ("tasks", "workers", "listeners", "rss_bytes")
        ),
        "resync": Meaning("Something was missed here. Read anew what you keep, and go on from this event.", ("reason",), whole=False),
    }
)
"""Every type there is."""

_PRIVATE = frozenset({"message"})
"""Members that come from a handler: for callers with the scope read-payload."""


class Form(Enum):
    """How an event is written for a connection."""

    JSON = "json"
    """The document itself."""
    FRAME = "frame"
    """A whole WebSocket message. Those of a server carry no mask, so one is right for every client."""
    LINES = "lines"
    """An event of a server-sent stream, with its number."""


class News:
    """One event on its way to clients; written once in each form, for however many."""

    __slots__ = ("_data", "_number", "_timestamp", "_written", "queue", "task", "task_type", "tenant", "type")

    def __init__(self, type: str, at: int, data: dict[str, Any], *, tenant: str | None = None, task: str | None = None, task_type: str | None = None) -> None:
        self.type = type
        self.tenant = tenant
        """Whose task it is about, "" for nobody's in particular; None: it is not about a task."""
        self.task = task
        self.task_type = task_type
        self.queue: str | None = data.get("queue")
        self._timestamp = at
        self._data = data
        self._number = ""
        self._written: dict[tuple[Form, bool], bytes] = {}

    def numbered(self, number: str) -> News:
        """Its place in the stream of one server."""
        self._number = number
        return self

    def written(self, form: Form, payload: bool) -> bytes:
        """`payload`: for a caller that may read payloads."""
        whole = payload or _PRIVATE.isdisjoint(self._data)
        found = self._written.get((form, whole))
        if found is None:
            data = self._data if whole else {name: value for name, value in self._data.items() if name not in _PRIVATE}
            found = self._written[form, whole] = _written(self.type, self._timestamp, data, form, self._number)
        return found


_encode = msgspec.json.Encoder().encode


class _Document(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str
    timestamp: str
    id: str = ""
    data: dict[str, Any]


def _written(type: str, at: int, data: dict[str, Any], form: Form, number: str) -> bytes:
    return _in_form(_encode(_Document(type=type, timestamp=_time(at), id=number, data=data)), form, number)


@functools.lru_cache(maxsize=8)
def _second(at: int) -> str:
    return rfc3339(at)[:-1]


def _time(at: int) -> str:
    """RFC 3339, always with microseconds; most events share their second with the one before."""
    micros = at % SECOND
    return f"{_second(at - micros)}.{micros:06d}Z"


def _in_form(document: bytes, form: Form, number: str) -> bytes:
    if form is Form.JSON:
        return document
    if form is Form.LINES:
        return b"id: %b\ndata: %b\n\n" % (number.encode(), document) if number else b"data: %b\n\n" % document
    length = len(document)
    if length < 126:
        return bytes((0x81, length)) + document
    if length < 65_536:
        return b"\x81\x7e" + length.to_bytes(2, "big") + document
    return b"\x81\x7f" + length.to_bytes(8, "big") + document


def message(type: str, at: int, data: dict[str, Any], form: Form, number: str = "") -> bytes:
    """What a server says to one client alone: pong, subscribed, error, closed."""
    return _written(type, at, data, form, number)


# What the store tells

_OF_TASK = frozenset(kind for kind in Kind if kind.startswith("task."))
_FAILURES = frozenset({Kind.RETRYING, Kind.DEAD, Kind.READY})
_PLAIN = {
    Kind.WORKER_JOINED: ("worker_id", None),
    Kind.WORKER_LEFT: ("worker_id", None),
    Kind.WORKER_LOST: ("worker_id", None),
    Kind.SCHEDULE_FIRED: ("schedule", "version"),
    Kind.LEADER_CHANGED: ("role", "term"),
}
"""How the subject of an event is called, and its number."""


def news_of(event: Event) -> Iterator[News]:
    """What clients are told of something that happened in the store."""
    if event.kind in _OF_TASK:
        yield from _news_of_task(event)
    elif event.kind is Kind.SETTING_CHANGED:
        kind, _, name = event.subject.partition("/")
        if how_many(event):  # who may call is nobody else's business
            yield News(event.kind.value, event.at, {"kind": kind, "name": name})
    elif event.kind in _PLAIN:
        named, numbered = _PLAIN[event.kind]
        data = {named: event.subject, **event.data}
        if numbered is not None:
            data[numbered] = event.version
        yield News(event.kind.value, event.at, data)


def how_many(event: Event) -> int:
    """How many news that are, without putting them into words."""
    if event.kind in _OF_TASK:
        return 2 if _is_failure(event) else 1
    if event.kind is Kind.SETTING_CHANGED:
        return 0 if event.subject.startswith("key/") else 1
    return 1 if event.kind in _PLAIN else 0


def _is_failure(event: Event) -> bool:
    return event.kind in _FAILURES and "attempt" in event.data and (event.kind is Kind.RETRYING or "error" in event.data)


def _news_of_task(event: Event) -> Iterator[News]:
    told = dict(event.data)
    task_type, tenant = str(told.pop("type", "")), str(told.get("tenant", ""))
    duration = told.pop("duration", None)
    if duration is not None:
        told["duration_ms"] = int(duration) // 1_000
    data = {"task_id": event.subject, "type": task_type, "queue": told.pop("queue", ""), "sequence": event.version, **told}
    if _is_failure(event):
        yield News(Kind.FAILED.value, event.at, data, tenant=tenant, task=event.subject, task_type=task_type)
    yield News(event.kind.value, event.at, data, tenant=tenant, task=event.subject, task_type=task_type)


# What this server tells


def resync(reason: str, at: int) -> News:
    return News("resync", at, {"reason": reason})


def of_worker(id: str, command: str | None, at: int) -> News:
    return News("worker.resumed", at, {"worker_id": id}) if command is None else News("worker.paused", at, {"worker_id": id, "command": command})


def of_depth(queue: str, counts: Mapping[str, int], oldest: int | None, at: int) -> News:
    states = {state: counts.get(state, 0) for state in ("scheduled", "retrying", "waiting", "running", "dead")}
    data: dict[str, Any] = {"queue": queue, "depth": counts.get("pending", 0), **states}
    if oldest is not None:
        data["oldest_ms"] = max(0, at - oldest) // 1_000
    return News("queue.depth", at, data)


def of_metrics(data: dict[str, Any], at: int) -> News:
    return News("system.metrics", at, data)
