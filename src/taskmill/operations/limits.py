"""Limits: numbers that every claim obeys at once."""

from __future__ import annotations

import msgspec

from taskmill.engine import Engine, Item
from taskmill.errors import Conflict
from taskmill.operations.model import Limit, LimitInfo
from taskmill.operations.names import check_known
from taskmill.task import check_name

__all__ = ["drop", "limits", "put"]

REMEDY = "code declares them with app.limit, people put them"


async def limits(engine: Engine) -> tuple[LimitInfo, ...]:
    return tuple(_info(item) for item in sorted(await engine.items("limit"), key=lambda item: item.name))


def _info(item: Item) -> LimitInfo:
    return LimitInfo(name=item.name, limit=msgspec.json.decode(item.value, type=Limit), version=item.version, operator=item.operator)


async def put(engine: Engine, name: str, limit: Limit, version: int | None) -> LimitInfo:
    """The engine checks the numbers, for what code declares too."""
    return _info(await engine.put("limit", check_name(name, "name"), msgspec.json.encode(limit), version=version))


async def drop(engine: Engine, name: str) -> None:
    if await engine.drop("limit", name):
        return
    known = [item.name for item in await engine.items("limit")]
    check_known("limit", name, known, REMEDY)
    raise Conflict(f"the limit {name!r} is declared by code", code="declared", field="name", hint="put other numbers over it, or remove it from the app")
