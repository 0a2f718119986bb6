"""The verbs of `operations` about the whole store, over a server: queues and types, schedules, workers, limits, and how it is.

Every request may be repeated, as all of a client's: a put finds what it was to put, a deletion finds nothing where there was something, and a schedule that is
triggered is told the id of its task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw

from taskmill.client.http import Http
from taskmill.client.problems import understood
from taskmill.client.records import limit_of, limit_text, queue_of, schedule_of, type_of, worker_of
from taskmill.clock import SystemClock
from taskmill.engine import Durability, Finding, Status, Submitted, Term, WorkerInfo
from taskmill.errors import Conflict, InvalidInput, NotFound, StaleVersion
from taskmill.operations import ROLES, Limit, LimitInfo, QueueInfo, QueueSettings, ScheduleInfo, Tally, TypeInfo
from taskmill.schedule import Schedule
from taskmill.task import check_id, check_name, new_id

__all__ = ["Administration"]

PATH = "/api/v1"
COMMANDS = {"pause": "pause", "quiet": "quiet", "stop": "stop", None: "resume"}

_NOTHING: Mapping[str, str] = MappingProxyType({})
Fields = dict[str, Raw]
Setting = TypeVar("Setting", ScheduleInfo, LimitInfo)


class _Leading(msgspec.Struct, frozen=True):
    holder: str
    term: int


class _Leader(msgspec.Struct, frozen=True):
    roles: dict[str, _Leading | None]


class _Engine(msgspec.Struct, frozen=True):
    findings: list[Finding]


class _Changed(msgspec.Struct, frozen=True):
    changed: bool


class _Triggered(msgspec.Struct, frozen=True):
    id: str
    status: Status
    durability: Durability


class Administration:
    """Over one server, for the callers of one event loop; a key for the whole store is needed, to change something one with the scope admin."""

    def __init__(self, http: Http) -> None:
        self.http = http

    async def _ask(self, method: str, path: str, kind: Any, body: object = None, *, seen: Mapping[str, str] = _NOTHING) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        answered = await self.http.ask(method, f"{PATH}{path}", data, headers=seen)
        return None if kind is None else understood(answered.data, kind)

    # Queues and types

    async def queues(self) -> tuple[QueueInfo, ...]:
        """Every queue that a task, a type, a worker or a setting names."""
        found: dict[str, list[Fields]] = await self._ask("GET", "/queues", dict[str, list[Fields]])
        return tuple(queue_of(each) for each in found["queues"])

    async def queue(self, name: str) -> QueueInfo:
        """One queue; NotFound says which was meant."""
        return queue_of(await self._ask("GET", _one("queues", name), Fields))

    async def pause_queue(self, name: str, *, reason: str = "") -> bool:
        """Nothing of it is claimed until it is resumed; what runs goes on. Whether that is new."""
        return await self._pause("queues", name, reason)

    async def resume_queue(self, name: str) -> bool:
        """Claimed from again. Whether it was paused."""
        return await self._resume("queues", name)

    async def purge_queue(self, name: str, *, dry_run: bool = False) -> Tally:
        """Every waiting task of it is cancelled and its record removed; running and ended ones stay."""
        body = {"dry_run": True} if dry_run else {"confirm": True}
        tally: Tally = await self._ask("POST", f"{_one('queues', name)}:purge", Tally, body)
        return tally

    async def put_queue_settings(self, name: str, settings: QueueSettings, *, version: int | None = None) -> QueueInfo:
        """How the queue shares itself out from now on: weights of shares and priorities, what shares are, partitions. `version`: the one seen, 0: none."""
        try:
            return queue_of(await self._ask("PUT", f"{_one('queues', name)}/settings", Fields, settings, seen=_seen(version, True)))
        except StaleVersion as stale:
            info = await self.queue(name)
            if info.version and info.settings == settings:
                return info
            raise stale from None

    async def drop_queue_settings(self, name: str, *, version: int | None = None) -> bool:
        """The defaults hold again. Whether any were put."""
        before = await self.queue(name)
        await self._ask("DELETE", f"{_one('queues', name)}/settings", None, seen=_seen_to_delete(version))
        return before.version > 0

    async def types(self) -> tuple[TypeInfo, ...]:
        """Every type that a worker has registered or an operator has put."""
        found: dict[str, list[Fields]] = await self._ask("GET", "/types", dict[str, list[Fields]])
        return tuple(type_of(each) for each in found["types"])

    async def pause_type(self, name: str, *, reason: str = "") -> bool:
        """None of its tasks is claimed until it is resumed. Whether that is new."""
        return await self._pause("types", name, reason)

    async def resume_type(self, name: str) -> bool:
        """Claimed again. Whether it was paused."""
        return await self._resume("types", name)

    async def _pause(self, kind: str, name: str, reason: str) -> bool:
        changed: _Changed = await self._ask("POST", f"{_one(kind, name)}:pause", _Changed, {"reason": reason})
        return changed.changed

    async def _resume(self, kind: str, name: str) -> bool:
        changed: _Changed = await self._ask("POST", f"{_one(kind, name)}:resume", _Changed, {})
        return changed.changed

    # Schedules

    async def schedules(self) -> tuple[ScheduleInfo, ...]:
        """Every schedule, those that code declares and those that were put."""
        found: dict[str, list[Fields]] = await self._ask("GET", "/schedules", dict[str, list[Fields]])
        return tuple(schedule_of(each) for each in found["schedules"])

    async def schedule(self, name: str) -> ScheduleInfo:
        """One schedule; NotFound says which was meant."""
        return schedule_of(await self._ask("GET", _one("schedules", name), Fields))

    async def put_schedule(self, name: str, schedule: Schedule, *, version: int | None = None, operator: bool | None = None) -> ScheduleInfo:
        """Make or change it; over one that code declares it stands until it is deleted. `version`: the one seen, 0: it must be new; `operator`: whether
        that was a person's."""
        try:
            return schedule_of(await self._ask("PUT", _one("schedules", name), Fields, schedule.to_data(), seen=_seen(version, operator)))
        except StaleVersion as stale:
            info = await self._there(self.schedule(name), stale)
            return _put_before(info, stale, same=info.schedule == schedule)

    async def delete_schedule(self, name: str, *, version: int | None = None) -> None:
        """What was put is gone; what code declares under this name, if anything, holds again."""
        await self._delete(_one("schedules", name), lambda: self.schedule(name), version)

    async def pause_schedule(self, name: str, *, reason: str = "") -> bool:
        """It fires no more until it is resumed. Whether that is new."""
        return await self._pause("schedules", name, reason)

    async def resume_schedule(self, name: str) -> bool:
        """It fires again. Whether it was paused."""
        return await self._resume("schedules", name)

    async def trigger_schedule(self, name: str, *, id: str | None = None) -> Submitted:
        """Its task now, with an id of its own; its times stay as they are. `id`: the task's, so that whoever asks twice has one."""
        own = new_id() if id is None else check_id(id)
        found: _Triggered = await self._ask("POST", f"{_one('schedules', name)}:trigger", _Triggered, {"id": own})
        return Submitted(Status.CREATED if id is None else found.status, found.id, found.durability)

    async def next_times(self, name: str, n: int = 5) -> tuple[int, ...]:
        """When it would fire next, paused or not."""
        info = await self.schedule(name)
        if info.schedule is None:
            raise InvalidInput(f"the schedule {name!r} cannot be read: {info.error}", code="invalid_schedule", field="name", hint="put it again")
        return tuple(info.schedule.cron.next_times(SystemClock().now(), n))

    # Workers and limits

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Everybody registered, oldest first."""
        found: dict[str, list[Fields]] = await self._ask("GET", "/workers", dict[str, list[Fields]])
        return tuple(worker_of(each) for each in found["workers"])

    async def worker(self, id: str) -> WorkerInfo:
        """One of them; NotFound says which was meant."""
        return worker_of(await self._ask("GET", f"/workers/{quote(id, safe='')}", Fields))

    async def command_worker(self, id: str, command: str | None) -> None:
        """Told with its next beat: pause (claim nothing), quiet (finish what runs, claim nothing more), stop (finish and leave); None takes it back."""
        if command not in COMMANDS:
            raise InvalidInput(f"{command!r:.40} is no command", code="unknown_command", field="command", hint="one of pause, quiet, stop")
        await self._ask("POST", f"/workers/{quote(id, safe='')}:{COMMANDS[command]}", None, {})

    async def limits(self) -> tuple[LimitInfo, ...]:
        """Every limit in force."""
        found: dict[str, list[Fields]] = await self._ask("GET", "/limits", dict[str, list[Fields]])
        return tuple(limit_of(each) for each in found["limits"])

    async def limit(self, name: str) -> LimitInfo:
        """One limit; NotFound says which was meant."""
        return limit_of(await self._ask("GET", _one("limits", name), Fields))

    async def put_limit(self, name: str, limit: Limit, *, version: int | None = None, operator: bool | None = None) -> LimitInfo:
        """These numbers for every claim from now on, over what code declares, until dropped. `version`, `operator`: as of a schedule."""
        body = {"rate": limit_text(limit), "cap": limit.cap}
        try:
            return limit_of(await self._ask("PUT", _one("limits", name), Fields, body, seen=_seen(version, operator)))
        except StaleVersion as stale:
            info = await self._there(self.limit(name), stale)
            return _put_before(info, stale, same=info.limit == limit)

    async def drop_limit(self, name: str, *, version: int | None = None) -> None:
        """What was put is gone; what code declares under this name, if anything, holds again."""
        await self._delete(_one("limits", name), lambda: self.limit(name), version)

    async def _there(self, asked: Awaitable[Setting], stale: StaleVersion) -> Setting:
        try:
            return await asked
        except NotFound:
            raise stale from None

    async def _delete(self, path: str, see: Callable[[], Awaitable[Setting]], version: int | None) -> None:
        """One that was there as the caller has seen it, and is not there any more, is deleted: by a request whose answer got lost, if not by this one."""
        before = await see()
        try:
            await self._ask("DELETE", path, None, seen=_seen_to_delete(version))
        except (NotFound, Conflict):
            if not before.operator or version not in (None, before.version) or await _stands(see):
                raise

    # Health

    async def leaders(self) -> dict[str, Term | None]:
        """Who does what only one may do, by role; None: nobody does now."""
        found: _Leader = await self._ask("GET", "/leader", _Leader)
        return {role: None if (led := found.roles.get(role)) is None else Term(role, led.holder, led.term) for role in ROLES}

    async def check(self) -> tuple[Finding, ...]:
        """What is not as it should be, of the store and of the work in it, each with its remedy."""
        found: _Engine = await self._ask("GET", "/engine", _Engine)
        return tuple(found.findings)


def _one(kind: str, name: str) -> str:
    return f"/{kind}/{check_name(name, 'name')}"


# What the caller has seen


def _seen(version: int | None, operator: bool | None) -> dict[str, str]:
    """The headers of a change that is conditional on it. Who does not know whose version it was has seen that of either."""
    if version is None:
        return {}
    if version == 0:
        return {"If-None-Match": "*"}
    whose = "oc" if operator is None else "o" if operator else "c"
    return {"If-Match": ", ".join(f'"{each}{version}"' for each in whose)}


def _seen_to_delete(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"o{version}", "c{version}"'}


async def _stands(see: Callable[[], Awaitable[Setting]]) -> bool:
    """Whether a person's setting is there."""
    try:
        return (await see()).operator
    except NotFound:
        return False


def _put_before(info: Setting, stale: StaleVersion, *, same: bool) -> Setting:
    """What stands there already is what was to be put: this very request did it, and its answer was lost, or somebody else did."""
    if info.operator and same:
        return info
    raise stale
