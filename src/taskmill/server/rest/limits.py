"""Limits over HTTP: numbers that every claim obeys at once, written as people write them."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from taskmill.errors import NotFound
from taskmill.operations import Limit, LimitInfo, Operations
from taskmill.options import limit_value
from taskmill.server.access import Scope
from taskmill.server.conditions import etag, held, seen, seen_version
from taskmill.server.routes import Answer, Call, Nothing, Route
from taskmill.server.shapes import Cap, RateText
from taskmill.task import check_name
from taskmill.views import limit_data

__all__ = ["ROUTES"]


class LimitBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A rate, a cap, or both."""

    rate: RateText | None = None
    cap: Cap | None = None
    """At most so many at once."""


async def list_limits(call: Call[Nothing, None]) -> Answer:
    return Answer({"limits": [limit_data(info) for info in await call.desk.read(call.caller, Operations.limits)]})


async def get_limit(call: Call[Nothing, None]) -> Answer:
    name = check_name(call.params["name"], "name")
    return _answer(await call.desk.read(call.caller, lambda operations: operations.limit(name)))


def _answer(info: LimitInfo, status: int | None = None) -> Answer:
    return Answer(limit_data(info), (etag(info),), status)


async def _present(operations: Operations, name: str) -> LimitInfo | None:
    try:
        return await operations.limit(name)
    except NotFound:
        return None


async def put_limit(call: Call[Nothing, LimitBody]) -> Answer:
    name = check_name(call.params["name"], "name")
    wanted = msgspec.json.decode(limit_value(call.body.rate, call.body.cap), type=Limit)

    async def act(operations: Operations) -> Answer:
        present = await _present(operations, name)
        version, operator = seen(call.headers, present)
        info = await held(operations.put_limit(name, wanted, version=version, operator=operator))
        return _answer(info, 201 if present is None else 200)

    return await call.desk.administer(call.caller, "limit.put", name, act, rate=call.body.rate, cap=call.body.cap)


async def drop_limit(call: Call[Nothing, None]) -> Answer:
    name = check_name(call.params["name"], "name")

    async def act(operations: Operations) -> Answer:
        version = seen_version(call.headers, await _present(operations, name))
        await held(operations.drop_limit(name, version=version))
        return Answer(None)

    return await call.desk.administer(call.caller, "limit.delete", name, act)


PATH = "/api/v1/limits"
ONE = f"{PATH}/{{name}}"

ROUTES = (
    Route(method="GET", path=PATH, handler=list_limits, summary="Every limit in force", scope=Scope.READ, whole=True, gives="Limits"),
    Route(method="GET", path=ONE, handler=get_limit, summary="One limit, with an ETag", scope=Scope.READ, whole=True, gives="Limit", refuses=(404,)),
    Route(method="PUT", path=ONE, handler=put_limit, summary="These numbers for every claim from now on, over what code declares", scope=Scope.ADMIN,
          whole=True, body=LimitBody, gives="Limit", also=(201,), headers=("If-Match", "If-None-Match"), refuses=(412,)),
    Route(method="DELETE", path=ONE, handler=drop_limit, summary="Drop a limit that was put; what code declares under its name holds again",
          scope=Scope.ADMIN, whole=True, status=204, headers=("If-Match",), refuses=(404, 409, 412)),
)  # fmt: skip
