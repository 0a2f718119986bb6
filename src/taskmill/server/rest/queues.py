"""Queues and types over HTTP: what waits where, and whether it is given out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from taskmill.errors import NotFound
from taskmill.operations import Operations, QueueInfo, QueueSettings
from taskmill.requests import check_confirmed
from taskmill.server.access import Scope
from taskmill.server.conditions import etag, held, seen, seen_version
from taskmill.server.rest.tasks import tally_answer
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.server.shapes import Reason, Share
from taskmill.task import check_name
from taskmill.views import queue_data, type_data

__all__ = ["ROUTES", "PauseBody", "paused", "resumed"]

Weight = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 1_000})]
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
    return _queue_answer(await call.desk.read(call.caller, lambda operations: operations.queue(name)))


async def pause_queue(call: Call[Nothing, PauseBody]) -> Answer:
    return await paused(call, "queue", Operations.pause_queue)


async def resume_queue(call: Call[Nothing, Nothing]) -> Answer:
    return await resumed(call, "queue", Operations.resume_queue)


class QueueBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How a queue shares itself out; what is left out has its default."""

    weights: dict[str, Weight] = {}
    """Turns of a share by its name: one of weight 3 has three turns while another has one."""
    priorities: Annotated[list[Weight], Meta(min_length=4, max_length=4)] | None = None
    """Turns of low, normal, high and critical tasks; left out: the highest priority always goes first."""
    fair: Share | None = None
    """What types of this queue take turns by where they do not say it themselves: `tenant`, or a field of the payload in braces."""
    partitions: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 64})] = 1
    """Over how many shards of a Redis Cluster it is spread; it may grow."""


async def put_queue_settings(call: Call[Nothing, QueueBody]) -> Answer:
    name, body = check_name(call.params["name"], "name"), call.body
    priorities = None if body.priorities is None else (body.priorities[0], body.priorities[1], body.priorities[2], body.priorities[3])
    wanted = QueueSettings(weights=body.weights, priorities=priorities, fair=body.fair, partitions=body.partitions)

    async def act(operations: Operations) -> Answer:
        version = seen(call.headers, await _present(operations, name)).version
        return _queue_answer(await held(operations.put_queue_settings(name, wanted, version=version)))

    return await call.desk.administer(call.caller, "queue.settings", name, act, settings=msgspec.json.encode(wanted).decode())


async def drop_queue_settings(call: Call[Nothing, None]) -> Answer:
    name = check_name(call.params["name"], "name")

    async def act(operations: Operations) -> Answer:
        version = seen_version(call.headers, await _present(operations, name))
        await held(operations.drop_queue_settings(name, version=version))
        return Answer(None)

    return await call.desk.administer(call.caller, "queue.defaults", name, act)


async def _present(operations: Operations, name: str) -> QueueInfo | None:
    """The queue as it is, where settings were put for it."""
    try:
        found = await operations.queue(name)
    except NotFound:
        return None
    return found if found.version else None


def _queue_answer(info: QueueInfo) -> Answer:
    return Answer(queue_data(info), (etag(info),) if info.version else ())


class PurgeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """`dry_run` counts and changes nothing; without it, `confirm` must be said."""

    dry_run: bool = False
    confirm: bool = False


async def purge_queue(call: Call[Nothing, PurgeBody]) -> Answer:
    name, dry_run = check_name(call.params["name"], "name"), call.body.dry_run
    check_confirmed(dry_run=dry_run, confirm=call.body.confirm)
    return tally_answer(await call.desk.purge_queue(call.caller, name, dry_run=dry_run), dry_run=dry_run)


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
    Route(method="PUT", path=f"{QUEUES}/{{name}}/settings", handler=put_queue_settings, summary="How a queue shares itself out from now on",
          scope=Scope.ADMIN, whole=True, body=QueueBody, gives="Queue", headers=("If-Match", "If-None-Match"), refuses=(412,)),
    Route(method="DELETE", path=f"{QUEUES}/{{name}}/settings", handler=drop_queue_settings, summary="Let the defaults of a queue hold again",
          scope=Scope.ADMIN, whole=True, status=204, headers=("If-Match",), refuses=(404, 409, 412)),
    Route(method="GET", path=TYPES, handler=list_types, summary="Every type with its settings and how many workers have it", scope=Scope.READ, whole=True,
          gives="Types"),
    _change(f"{TYPES}/{{name}}:pause", pause_type, "Give out no task of a type until it is resumed", PauseBody),
    _change(f"{TYPES}/{{name}}:resume", resume_type, "Give out tasks of a type again", Nothing),
)  # fmt: skip
