"""Schedules: seen, put, paused, fired by hand. That they fire by themselves is maintenance's work."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from taskmill.clock import MINUTE
from taskmill.cron import Cron
from taskmill.engine import Engine, Item
from taskmill.errors import Conflict, InvalidInput, TaskmillError
from taskmill.operations import settings
from taskmill.operations.model import ScheduleInfo
from taskmill.operations.names import unknown
from taskmill.operations.pauses import Pause, pauses
from taskmill.operations.pauses import pause as put_pause
from taskmill.operations.pauses import resume as drop_pause
from taskmill.schedule import Schedule, tasks_for
from taskmill.task import NewTask, check_id, check_name, new_id

__all__ = ["delete", "find", "next_times", "pause", "put", "resume", "schedules", "task_now"]

MOST_FREQUENT = 100
"""Schedules with fire times less than a minute apart: each may cost its one leader a commit every second, and every commit waits for the disk."""
LOOK_AHEAD = 61
REMEDY = "code declares them with app.schedule, people put them"


class _Fired(Struct, frozen=True):
    """What firing leaves behind."""

    next_at: int | None = None
    last: str | None = None
    fired_at: int | None = None


async def schedules(engine: Engine) -> tuple[ScheduleInfo, ...]:
    items, fired, paused = await asyncio.gather(engine.items("schedule"), engine.items("fired"), pauses(engine, "schedule"))
    states = {item.name: msgspec.json.decode(item.value, type=_Fired) for item in fired}
    return tuple(_info(item, states.get(item.name, _Fired()), paused.get(item.name)) for item in sorted(items, key=lambda item: item.name))


def _info(item: Item, fired: _Fired, paused: Pause | None) -> ScheduleInfo:
    found, error = _decoded(item.value)
    return ScheduleInfo(
        name=item.name,
        schedule=found,
        version=item.version,
        operator=item.operator,
        paused=paused is not None,
        reason=paused.reason if paused else "",
        next_at=fired.next_at,
        last=fired.last,
        fired_at=fired.fired_at,
        error=error,
    )


def _decoded(value: bytes) -> tuple[Schedule | None, str | None]:
    """One that this program cannot read, of a newer one or put by hand, must not hide the others."""
    try:
        return Schedule.decode(value), None
    except TaskmillError as error:
        return None, str(error)


async def find(engine: Engine, name: str) -> ScheduleInfo:
    known = {info.name: info for info in await schedules(engine)}
    if name not in known:
        raise unknown("schedule", name, known, REMEDY)
    return known[name]


async def put(engine: Engine, name: str, schedule: Schedule, version: int | None, operator: bool | None) -> ScheduleInfo:
    check_name(name, "name")
    if _is_frequent(schedule.cron, engine.clock.now()):
        await _check_quota(engine, name)
    await settings.put(engine, "schedule", name, schedule.encode(), version, operator=operator)
    return await find(engine, name)


async def _check_quota(engine: Engine, name: str) -> None:
    now = engine.clock.now()
    others = [info for info in await schedules(engine) if info.name != name and info.schedule is not None and _is_frequent(info.schedule.cron, now)]
    if len(others) >= MOST_FREQUENT:
        raise InvalidInput(
            f"{len(others)} schedules already fire more often than once a minute",
            code="schedule_quota",
            field="cron",
            hint=f"at most {MOST_FREQUENT} may; let this one fire once a minute, or delete another",
        )


def _is_frequent(cron: Cron, now: int) -> bool:
    return any(later - time < MINUTE for time, later in pairwise(cron.next_times(now, LOOK_AHEAD)))


async def delete(engine: Engine, name: str, version: int | None) -> None:
    """Its pause goes with it, or the next of this name would be born paused."""
    await settings.drop(engine, "schedule", name, REMEDY, version)
    if all(item.name != name for item in await engine.items("schedule")):
        await drop_pause(engine, "schedule", name)


async def pause(engine: Engine, name: str, reason: str) -> bool:
    await find(engine, name)
    return await put_pause(engine, "schedule", name, reason)


async def resume(engine: Engine, name: str) -> bool:
    await find(engine, name)
    resumed = await drop_pause(engine, "schedule", name)
    left = (await pauses(engine, "schedule")).get(name)
    if left is not None:
        raise Conflict(
            f"the schedule {name!r} is paused as {left.reason or 'declared by code'}",
            code=left.reason or "declared",
            field="name",
            hint="its app no longer declares it: declare it again and start a worker, or put it under another name",
        )
    return resumed


async def task_now(engine: Engine, name: str, id: str | None) -> NewTask:
    """The task that a fire time of this moment would make, under an id that no fire time has."""
    [task] = tasks_for(name, await _readable(engine, name), [engine.clock.now()])
    return replace(task, id=new_id() if id is None else check_id(id), run_at=None)


async def next_times(engine: Engine, name: str, n: int) -> tuple[int, ...]:
    return tuple((await _readable(engine, name)).cron.next_times(engine.clock.now(), n))


async def _readable(engine: Engine, name: str) -> Schedule:
    info = await find(engine, name)
    if info.schedule is None:
        raise InvalidInput(
            f"the schedule {name!r} cannot be read: {info.error}", code="invalid_schedule", field="name", hint="put it again, as this program has it"
        )
    return info.schedule
