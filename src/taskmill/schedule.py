"""A schedule: when it fires, what it makes, and the ids that let each fire time make one task.

It is stored as a setting of kind `schedule`, as JSON that code declares and operators put alike:

    {"type": "report", "cron": {"expression": "0 9 * * MON-FRI", "timezone": "Europe/Paris"}, "payload": {"region": 7}, "overlap": "skip"}

`"cron": "0 9 * * *"` is short for one in UTC. What a schedule leaves out (queue, priority, retry, …) its tasks get from their type.

The id of a task is made from the schedule's name and the fire time and from nothing else. So whoever fires a time again (a repeated
step, a leader that lost its place, a clock that was set back, an edited payload) meets the task that is already there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill import codec
from taskmill.clock import rfc3339
from taskmill.cron import Cron, Misfire, Overlap
from taskmill.errors import InvalidInput
from taskmill.retry import Retry
from taskmill.task import NewTask, TypeSettings, check_name, check_range, resolve

__all__ = ["FIRE_TIME", "SCHEDULE", "Schedule", "task_id", "tasks_for"]

SCHEDULE = "taskmill-schedule"
"""The header with the name of the schedule that made a task."""
FIRE_TIME = "taskmill-fire-time"
"""The header with the time that it was made for, in RFC 3339; the attempt may start later."""

_IDS = uuid.UUID("6f7d7a6e-2f0b-5c1e-9a57-1d4b6f0c8e21")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_ANY_TYPE = TypeSettings()
_LONGEST = 100 * 366 * 86_400_000_000


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cron entry that makes tasks of one type; refused when no task of it could be stored."""

    type: str
    cron: Cron
    payload: bytes = b"null"
    """JSON, as a task's."""
    overlap: Overlap = Overlap.ALLOW
    misfire: Misfire = Misfire.ONCE
    queue: str | None = None
    priority: int | None = None
    retry: Retry | None = None
    timeout: int | None = None
    max_crashes: int | None = None
    expires: int | None = None
    """The deadline of its tasks, this long after their fire time, in microseconds: a task that does not run then is cancelled."""
    tenant: str = ""
    headers: Mapping[str, str] = _NOTHING
    tags: Mapping[str, str] = _NOTHING
    limits: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        codec.parse(self.payload)
        if self.expires is not None:
            check_range(self.expires, "expires", 1_000, _LONGEST)
        resolve(_task("any", self, 0), _ANY_TYPE)

    def encode(self) -> bytes:
        """The value of the setting; equal schedules give equal bytes."""
        return msgspec.json.encode(self.to_data())

    def to_data(self) -> dict[str, object]:
        """Plain JSON values, defaults left out, the payload as the value it is."""
        found: dict[str, object] = {"type": self.type, "cron": self.cron.to_data()}
        for name, default in _OPTIONAL.items():
            value = getattr(self, name)
            if value != default:
                found[name] = codec.decode(value) if name == "payload" else msgspec.to_builtins(dict(value) if isinstance(value, Mapping) else value)
        return found

    @classmethod
    def decode(cls, value: bytes | str) -> Schedule:
        """What `encode` wrote, or an operator put; refused with the field that is wrong."""
        return cls.from_data(codec.parse(value, field="schedule"))

    @classmethod
    def from_data(cls, data: object) -> Schedule:
        """A schedule from plain JSON values, as an API receives them."""
        if not isinstance(data, dict):
            raise _bad("it is not an object")
        fields: dict[str, Any] = dict(data)
        if "cron" in fields:
            fields["cron"] = cron_of(fields["cron"])
        if "payload" in fields:
            fields["payload"] = codec.encode(fields["payload"])
        try:
            return msgspec.convert(fields, cls, builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, InvalidInput):
                raise error.__cause__ from None
            raise _bad(str(error)) from None


_OPTIONAL = {field.name: field.default for field in msgspec.structs.fields(Schedule) if not field.required}


def cron_of(data: object) -> Cron:
    """A cron entry as a schedule's JSON holds it: an object, or the expression alone."""
    return Cron.parse(data) if isinstance(data, str) else data if isinstance(data, Cron) else Cron.from_data(data)


def tasks_for(name: str, schedule: Schedule, times: Iterable[int]) -> list[NewTask]:
    """The tasks of these fire times, in order."""
    check_name(name, "schedule")
    return [_task(name, schedule, time) for time in times]


def task_id(name: str, time: int) -> str:
    """The id of the one task of a schedule and a fire time."""
    return str(uuid.uuid5(_IDS, f"{name} {time}"))


def _task(name: str, schedule: Schedule, time: int) -> NewTask:
    return NewTask(
        type=schedule.type,
        payload=schedule.payload,
        id=task_id(name, time),
        queue=schedule.queue,
        priority=schedule.priority,
        run_at=time,
        retry=schedule.retry,
        timeout=schedule.timeout,
        max_crashes=schedule.max_crashes,
        expires_at=None if schedule.expires is None else time + schedule.expires,
        tenant=schedule.tenant,
        headers={**schedule.headers, SCHEDULE: name, FIRE_TIME: rfc3339(time)},
        tags=schedule.tags,
        limits=schedule.limits,
    )


def _bad(message: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_schedule", field="schedule", hint='an object with "type" and "cron", and what its tasks shall have')
