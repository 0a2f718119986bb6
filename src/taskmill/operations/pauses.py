"""Pauses of queues, types and schedules: one kind of setting, obeyed by the next step of every worker."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from taskmill.engine import Engine
from taskmill.errors import InvalidInput

__all__ = ["Pause", "pause", "pauses", "resume"]

REASON_LENGTH = 500


class Pause(Struct, frozen=True):
    """Why, and whether a person did it."""

    reason: str
    operator: bool


class _Value(Struct, frozen=True, omit_defaults=True):
    reason: str = ""


async def pauses(engine: Engine, what: str) -> dict[str, Pause]:
    """The names of this sort (queue, type, schedule) that are paused."""
    prefix = f"{what}:"
    return {item.name.removeprefix(prefix): Pause(_reason(item.value), item.operator) for item in await engine.items("pause") if item.name.startswith(prefix)}


def _reason(value: bytes) -> str:
    """That it is paused counts, whatever its value says."""
    try:
        return msgspec.json.decode(value, type=_Value).reason
    except msgspec.DecodeError:
        return ""


async def pause(engine: Engine, what: str, name: str, reason: str) -> bool:
    """Whether it was not paused before."""
    if len(reason) > REASON_LENGTH:
        raise InvalidInput(f"{len(reason)} characters are too many", field="reason", hint=f"at most {REASON_LENGTH}")
    before = await pauses(engine, what)
    await engine.put("pause", f"{what}:{name}", msgspec.json.encode(_Value(reason)))
    return name not in before


async def resume(engine: Engine, what: str, name: str) -> bool:
    """Whether a person had paused it."""
    return await engine.drop("pause", f"{what}:{name}")
