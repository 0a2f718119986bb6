"""Limits: numbers that every claim obeys at once."""

from __future__ import annotations

import msgspec

from taskmill.engine import Engine, Item
from taskmill.operations import settings
from taskmill.operations.model import Limit, LimitInfo
from taskmill.task import check_name

__all__ = ["drop", "limits", "put"]


async def limits(engine: Engine) -> tuple[LimitInfo, ...]:
    return tuple(_info(item) for item in sorted(await engine.items("limit"), key=lambda item: item.name))


def _info(item: Item) -> LimitInfo:
    return LimitInfo(name=item.name, limit=msgspec.json.decode(item.value, type=Limit), version=item.version, operator=item.operator)


async def put(engine: Engine, name: str, limit: Limit, version: int | None) -> LimitInfo:
    """The engine checks the numbers, for what code declares too."""
    return _info(await settings.put(engine, "limit", check_name(name, "name"), msgspec.json.encode(limit), version))


async def drop(engine: Engine, name: str) -> None:
    await settings.drop(engine, "limit", name, "code declares them with app.limit, people put them")
