"""What operations answer beside the engine's own records: tallies and the state of queues, types, limits and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from taskmill.clock import SECOND
from taskmill.engines.settings import QueueSettings
from taskmill.schedule import Schedule
from taskmill.task import State, TypeSettings

__all__ = ["Limit", "LimitInfo", "QueueInfo", "QueueSettings", "ScheduleInfo", "Tally", "TypeInfo"]


class Tally(Struct, frozen=True, kw_only=True):
    """What a step on many tasks came to. `requested`: running ones whose worker was told; `refused`: how many by which code. Dry: only `matched`."""

    matched: int = 0
    done: int = 0
    requested: int = 0
    refused: Mapping[str, int] = MappingProxyType({})


class QueueInfo(Struct, frozen=True, kw_only=True):
    """A queue. `oldest`: for how long its first ready task has waited; `no_worker`: ready tasks of types that no registered worker has."""

    name: str
    paused: bool
    reason: str = ""
    counts: Mapping[State, int] = MappingProxyType({})
    oldest: int | None = None
    no_worker: int = 0
    workers: int = 0
    """Live ones that claim from it."""
    settings: QueueSettings = QueueSettings()
    """How it shares itself out, as a person has put it; the defaults where `version` is 0."""
    version: int = 0
    operator: bool = True


class TypeInfo(Struct, frozen=True, kw_only=True):
    """A type as the store knows it. `workers`: live ones that have it; `operator`: a person's settings stand over those of the code."""

    name: str
    settings: TypeSettings
    version: int
    operator: bool
    paused: bool
    reason: str = ""
    workers: int = 0


class Limit(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """At most `rate` starts in any interval of `window`, at most `cap` running at once; each may be left out, not both."""

    rate: int | None = None
    window: int = SECOND
    cap: int | None = None


class LimitInfo(Struct, frozen=True, kw_only=True):
    """A limit in force; `operator`: put by a person, over what the code declares."""

    name: str
    limit: Limit
    version: int
    operator: bool


class ScheduleInfo(Struct, frozen=True, kw_only=True):
    """A schedule and where it stands. `schedule` is None when this program cannot read what was put; `error` then says why."""

    name: str
    schedule: Schedule | None
    version: int
    operator: bool
    paused: bool
    reason: str = ""
    next_at: int | None = None
    last: str | None = None
    """The task of its last firing."""
    fired_at: int | None = None
    error: str | None = None
