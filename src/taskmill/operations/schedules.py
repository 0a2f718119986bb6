"""Schedules: seen, put, paused, fired by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmill.engine import Engine
from taskmill.operations.model import ScheduleInfo
from taskmill.task import NewTask

if TYPE_CHECKING:
    from taskmill.schedule import Schedule

__all__ = ["delete", "next_times", "pause", "put", "resume", "schedule", "schedules", "task_now"]


async def schedules(engine: Engine) -> tuple[ScheduleInfo, ...]:
    raise NotImplementedError


async def schedule(engine: Engine, name: str) -> ScheduleInfo:
    raise NotImplementedError


async def put(engine: Engine, name: str, schedule: Schedule, version: int | None) -> ScheduleInfo:
    raise NotImplementedError


async def delete(engine: Engine, name: str) -> None:
    raise NotImplementedError


async def pause(engine: Engine, name: str, reason: str) -> bool:
    raise NotImplementedError


async def resume(engine: Engine, name: str) -> bool:
    raise NotImplementedError


async def task_now(engine: Engine, name: str) -> NewTask:
    raise NotImplementedError


async def next_times(engine: Engine, name: str, n: int) -> tuple[int, ...]:
    raise NotImplementedError
