"""Queues and types over HTTP: what waits where, and whether it is given out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from taskmill.operations import Operations
from taskmill.server.access import Scope
from taskmill.server.rest.tasks import check_confirmed, tally_answer
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.server.shapes import Reason
from taskmill.task import check_name
from taskmill.views import queue_data, type_data

__all__ = ["ROUTES", "PauseBody", "paused", "resumed"]

Change = Callable[[Operations, str], Coroutine[Any, Any, bool]]


class PauseBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason = ""


async def paused(call: Call[Nothing, PauseBody], what: str, pause: Callable[..., Coroutine[Any, Any, bool]]) -> Answer:
    """Pause what the path names; `changed`: it was not paused before."""
    name, reason = check_name(call.params["name"], "name"), call.body.reason
    changed = await call.desk.administer(call.caller, f"{what}.pause", name, lambda operations: pause(operations, name, reason=reason), reason=reason)
    return Answer({"name": name, "paused": True, "changed": changed})


async def resumed(call: Call[Nothing, Nothing], what: str, resume: Change) -> Answer:
    name = check_name(call.params["name"], "name")
    changed = await call.desk.administer(call.caller, f"{what}.resume", name, lambda operations: resume(operations, name))
    return Answer({"name": name, "paused": False, "changed": changed})


# Queues


async def list_queues(call: Call[Nothing, None]) -> Answer:
    return Answer({"queues": [queue_data(info) for info in await call.desk.read(call.caller, Operations.queues)]})


async def get_queue(call: Call[Nothing, None]) -> Answer:
    name = check_name(call.params["name"], "name")
    return Answer(queue_data(await call.desk.read(call.caller, lambda operations: operations.queue(name))))


async def pause_queue(call: Call[Nothing, PauseBody]) -> Answer:
    return await paused(call, "queue", Operations.pause_queue)


async def resume_queue(call: Call[Nothing, Nothing]) -> Answer:
    return await resumed(call, "queue", Operations.resume_queue)


class PurgeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`dry_run` counts and changes nothing; without it, `confirm` must be said."""

    dry_run: bool = False
    confirm: bool = False


async def purge_queue(call: Call[Nothing, PurgeBody]) -> Answer:
    name, dry_run = check_name(call.params["name"], "name"), call.body.dry_run
    check_confirmed(dry_run=dry_run, confirm=call.body.confirm)
    if dry_run:
        call.caller.need(Scope.ADMIN, whole=True)
        return tally_answer(await call.desk.operations.purge_queue(name, dry_run=True), dry_run=True)
    tally = await call.desk.administer(call.caller, "queue.purge", name, lambda operations: operations.purge_queue(name))
    return tally_answer(tally, dry_run=False)


# Types


async def list_types(call: Call[Nothing, None]) -> Answer:
    return Answer({"types": [type_data(info) for info in await call.desk.read(call.caller, Operations.types)]})


async def pause_type(call: Call[Nothing, PauseBody]) -> Answer:
    return await paused(call, "type", Operations.pause_type)


async def resume_type(call: Call[Nothing, Nothing]) -> Answer:
    return await resumed(call, "type", Operations.resume_type)


QUEUES = "/api/v1/queues"
TYPES = "/api/v1/types"


def _change(path: str, handler: Handler, summary: str, body: type, gives: str = "Paused") -> Route:
    return Route(method="POST", path=path, handler=handler, summary=summary, scope=Scope.ADMIN, whole=True, body=body, gives=gives, refuses=(404,))


ROUTES = (
    Route(method="GET", path=QUEUES, handler=list_queues, summary="Every queue: how many tasks in which state, up to 5 s old", scope=Scope.READ, whole=True,
          gives="Queues"),
    _change(f"{QUEUES}/{{name}}:pause", pause_queue, "Give out nothing of a queue until it is resumed; what runs goes on", PauseBody),
    _change(f"{QUEUES}/{{name}}:resume", resume_queue, "Give out tasks of a queue again", Nothing),
    _change(f"{QUEUES}/{{name}}:purge", purge_queue, "Throw away every task that waits in a queue; count them first with `dry_run`", PurgeBody, "Tally"),
    Route(method="GET", path=f"{QUEUES}/{{name}}", handler=get_queue, summary="One queue", scope=Scope.READ, whole=True, gives="Queue", refuses=(404,)),
    Route(method="GET", path=TYPES, handler=list_types, summary="Every type with its settings and how many workers have it", scope=Scope.READ, whole=True,
          gives="Types"),
    _change(f"{TYPES}/{{name}}:pause", pause_type, "Give out no task of a type until it is resumed", PauseBody),
    _change(f"{TYPES}/{{name}}:resume", resume_type, "Give out tasks of a type again", Nothing),
)  # fmt: skip
