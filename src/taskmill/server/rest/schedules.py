"""Schedules over HTTP: seen, put, paused, fired by hand."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from taskmill.clock import rfc3339
from taskmill.errors import NotFound
from taskmill.operations import Operations, ScheduleInfo
from taskmill.schedule import Schedule
from taskmill.server.access import Scope
from taskmill.server.conditions import etag, held, seen, seen_version
from taskmill.server.rest.queues import PauseBody, paused, resumed
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.server.shapes import CronText, Id, Json, Key, Micros, Name, RetryData, Share
from taskmill.task import check_id, check_name
from taskmill.views import schedule_data, submitted_data

__all__ = ["ROUTES"]

SHOWN = 5
"""The next runs of a schedule that are shown with it."""


class CronBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When it fires, on the clock of a time zone."""

    expression: CronText
    timezone: str = "UTC"
    start: Micros | None = None
    """It fires only after this instant, in microseconds since 1970."""


class ScheduleBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A schedule, as it is shown: what it leaves out, its tasks get from their type. Times are microseconds."""

    type: Name
    cron: CronText | CronBody
    payload: Json = None
    overlap: Literal["allow", "skip", "replace"] = "allow"
    misfire: Literal["once", "skip", "all"] = "once"
    queue: Name | None = None
    priority: Literal[0, 1, 2, 3] | None = None
    """0 is low, 1 normal, 2 high, 3 critical."""
    retry: RetryData | None = None
    timeout: Micros | None = None
    max_crashes: int | None = None
    expires: Micros | None = None
    tenant: Share = ""
    headers: dict[str, str] | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET
    limits: list[Key] | None = None


async def list_schedules(call: Call[Nothing, None]) -> Answer:
    return Answer({"schedules": [schedule_data(info) for info in await call.desk.read(call.caller, Operations.schedules)]})


async def get_schedule(call: Call[Nothing, None]) -> Answer:
    name = check_name(call.params["name"], "name")
    return _answer(call, await call.desk.read(call.caller, lambda operations: operations.schedule(name)))


def _answer(call: Call[Any, Any], info: ScheduleInfo, status: int | None = None) -> Answer:
    now = call.service.engine.clock.now()
    times = info.schedule.cron.next_times(now, SHOWN) if info.schedule is not None else ()
    return Answer({**schedule_data(info), "next": [rfc3339(time) for time in times]}, (etag(info),), status)


async def _present(operations: Operations, name: str) -> ScheduleInfo | None:
    try:
        return await operations.schedule(name)
    except NotFound:
        return None


async def put_schedule(call: Call[Nothing, ScheduleBody]) -> Answer:
    name = check_name(call.params["name"], "name")
    wanted = Schedule.from_data(msgspec.to_builtins(call.body))

    async def act(operations: Operations) -> Answer:
        present = await _present(operations, name)
        version, operator = seen(call.headers, present)
        info = await held(operations.put_schedule(name, wanted, version=version, operator=operator))
        return _answer(call, info, 201 if present is None else 200)

    return await call.desk.administer(call.caller, "schedule.put", name, act)


async def delete_schedule(call: Call[Nothing, None]) -> Answer:
    name = check_name(call.params["name"], "name")

    async def act(operations: Operations) -> Answer:
        version = seen_version(call.headers, await _present(operations, name))
        await held(operations.delete_schedule(name, version=version))
        return Answer(None)

    return await call.desk.administer(call.caller, "schedule.delete", name, act)


async def pause_schedule(call: Call[Nothing, PauseBody]) -> Answer:
    return await paused(call, "schedule", Operations.pause_schedule)


async def resume_schedule(call: Call[Nothing, Nothing]) -> Answer:
    return await resumed(call, "schedule", Operations.resume_schedule)


class TriggerBody(Struct, frozen=True, forbid_unknown_fields=True):
    id: Id | None = None
    """Of the task, so that whoever asks again after a lost answer has one."""


async def trigger_schedule(call: Call[Nothing, TriggerBody]) -> Answer:
    name, id = check_name(call.params["name"], "name"), None if call.body.id is None else check_id(call.body.id)
    answer = await call.desk.administer(call.caller, "schedule.trigger", name, lambda operations: operations.trigger_schedule(name, id=id))
    return Answer(submitted_data(answer), ((b"location", f"/api/v1/tasks/{answer.id}".encode()),))


PATH = "/api/v1/schedules"
ONE = f"{PATH}/{{name}}"


def _verb(verb: str, handler: Handler, summary: str, body: type = Nothing, gives: str = "Paused", status: int = 200) -> Route:
    return Route(method="POST", path=f"{ONE}:{verb}", handler=handler, summary=summary, scope=Scope.ADMIN, whole=True, body=body, gives=gives, status=status,
                 refuses=(404, 409))  # fmt: skip


ROUTES = (
    Route(method="GET", path=PATH, handler=list_schedules, summary="Every schedule, those that code declares and those that were put", scope=Scope.READ,
          whole=True, gives="Schedules"),
    _verb("pause", pause_schedule, "Let a schedule fire no more until it is resumed", PauseBody),
    _verb("resume", resume_schedule, "Let a schedule fire again"),
    _verb("trigger", trigger_schedule, "Make a schedule's task now; its times stay as they are", TriggerBody, "Submitted", 202),
    Route(method="GET", path=ONE, handler=get_schedule, summary="One schedule, with its next five runs and an ETag", scope=Scope.READ, whole=True,
          gives="Schedule", refuses=(404,)),
    Route(method="PUT", path=ONE, handler=put_schedule, summary="Make or change a schedule; over one that code declares it stands until it is deleted",
          scope=Scope.ADMIN, whole=True, body=ScheduleBody, gives="Schedule", also=(201,), headers=("If-Match", "If-None-Match"), refuses=(412,)),
    Route(method="DELETE", path=ONE, handler=delete_schedule, summary="Delete a schedule that was put; what code declares under its name holds again",
          scope=Scope.ADMIN, whole=True, status=204, headers=("If-Match",), refuses=(404, 409, 412)),
)  # fmt: skip
