"""What happened: one vocabulary for live events, metrics, traces and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from taskmill.task import State

__all__ = ["ENDED", "Event", "Kind", "of_state"]


class Kind(StrEnum):
    """Every kind of event."""

    SUBMITTED = "task.submitted"
    STARTED = "task.started"
    PROGRESS = "task.progress"
    COMPLETED = "task.completed"
    FAILED = "task.failed"
    RETRYING = "task.retrying"
    SNOOZED = "task.snoozed"
    WAITING = "task.waiting"
    RELEASED = "task.released"
    READY = "task.ready"
    DEAD = "task.dead"
    CANCELLED = "task.cancelled"
    DELETED = "task.deleted"
    REPLACED = "task.replaced"
    SIGNALLED = "task.signalled"
    CANCELLING = "task.cancelling"
    WORKER_JOINED = "worker.joined"
    WORKER_LEFT = "worker.left"
    WORKER_LOST = "worker.lost"
    SCHEDULE_FIRED = "schedule.fired"
    LEADER_CHANGED = "leader.changed"
    SETTING_CHANGED = "setting.changed"
    RESYNC = "resync"


ENDED = frozenset({Kind.COMPLETED, Kind.DEAD, Kind.CANCELLED})

_OF_STATE = {
    State.PENDING: Kind.READY,
    State.SCHEDULED: Kind.SNOOZED,
    State.RETRYING: Kind.RETRYING,
    State.RUNNING: Kind.STARTED,
    State.WAITING: Kind.WAITING,
    State.COMPLETED: Kind.COMPLETED,
    State.DEAD: Kind.DEAD,
    State.CANCELLED: Kind.CANCELLED,
}


def of_state(state: State) -> Kind:
    """The event of a task's arrival in a state."""
    return _OF_STATE[state]


class Event(Struct, frozen=True, kw_only=True):
    """One thing that happened to a task (or worker, schedule, …: `subject`); its `version` orders the events of a task without gaps."""

    kind: Kind
    subject: str
    version: int = 0
    at: int = 0
    data: Mapping[str, str | int | float | None] = MappingProxyType({})
