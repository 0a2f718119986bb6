"""Limits: numbers that every claim obeys at once."""

from __future__ import annotations

import msgspec

from taskmill.engine import Engine, Item
from taskmill.operations import settings
from taskmill.operations.model import Limit, LimitInfo
from taskmill.operations.names import unknown
from taskmill.task import check_name

__all__ = ["drop", "find", "limits", "put"]

REMEDY = "code declares them with app.limit, people put them"


async def limits(engine: Engine) -> tuple[LimitInfo, ...]:
    return tuple(_info(item) for item in sorted(await engine.items("limit"), key=lambda item: item.name))


def _info(item: Item) -> LimitInfo:
    return LimitInfo(name=item.name, limit=msgspec.json.decode(item.value, type=Limit), version=item.version, operator=item.operator)


async def find(engine: Engine, name: str) -> LimitInfo:
    known = {info.name: info for info in await limits(engine)}
    if name not in known:
        raise unknown("limit", name, known, REMEDY)
    return known[name]


async def put(engine: Engine, name: str, limit: Limit, version: int | None, operator: bool | None) -> LimitInfo:
    """The engine checks the numbers, for what code declares too."""
    return _info(await settings.put(engine, "limit", check_name(name, "name"), msgspec.json.encode(limit), version, operator=operator))


async def drop(engine: Engine, name: str, version: int | None) -> None:
    await settings.drop(engine, "limit", name, REMEDY, version)
