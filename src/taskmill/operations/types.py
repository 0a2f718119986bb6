"""Types: what the store knows of them, who has them, and pausing one."""

from __future__ import annotations

from collections import Counter

import msgspec

from taskmill.engine import Engine, Filter
from taskmill.operations.model import TypeInfo
from taskmill.operations.names import unknown
from taskmill.operations.pauses import pause as put_pause
from taskmill.operations.pauses import pauses
from taskmill.operations.pauses import resume as drop_pause
from taskmill.task import TypeSettings, check_name

__all__ = ["check_type", "pause", "resume", "settings_of", "types"]

REMEDY = "a type appears with its first worker or task"


async def settings_of(engine: Engine) -> dict[str, TypeSettings]:
    """The types that the store knows."""
    return {item.name: _decoded(item.value) for item in await engine.items("type")}


def _decoded(value: bytes) -> TypeSettings:
    return msgspec.json.decode(value, type=TypeSettings)


async def types(engine: Engine) -> tuple[TypeInfo, ...]:
    workers = Counter(name for worker in await engine.workers() if worker.alive for name in worker.types)
    paused = await pauses(engine, "type")
    return tuple(
        TypeInfo(
            name=item.name,
            settings=_decoded(item.value),
            version=item.version,
            operator=item.operator,
            paused=item.name in paused,
            reason=paused[item.name].reason if item.name in paused else "",
            workers=workers[item.name],
        )
        for item in sorted(await engine.items("type"), key=lambda item: item.name)
    )


async def check_type(engine: Engine, name: str, field: str = "name") -> None:
    """A type that only tasks name is known too: they were submitted with their queue."""
    known = {item.name for item in await engine.items("type")} | set(await pauses(engine, "type")) | {count.type for count in await engine.counts()}
    if check_name(name, field) not in known and not (await engine.list(Filter(types=frozenset({name})), n=1)).tasks:
        raise unknown("type", name, known, REMEDY, field=field)


async def pause(engine: Engine, name: str, reason: str) -> bool:
    await check_type(engine, name)
    return await put_pause(engine, "type", name, reason)


async def resume(engine: Engine, name: str) -> bool:
    await check_type(engine, name)
    return await drop_pause(engine, "type", name)
