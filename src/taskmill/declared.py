"""What the store is told of an app's types: by a worker that joins, or by the first submit when none has joined yet.

A new task names its queue and leaves the rest to its stored type, so that what operators put over it holds at once. Before any worker has joined, the
store has no such type; then the declaration is put there first, as code's own, never over what is there. That is asked once per type and process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from taskmill.config import Settings
from taskmill.engine import Engine, Transaction
from taskmill.errors import InvalidInput, StaleVersion
from taskmill.retry import Retry
from taskmill.task import NewTask, TypeSettings, resolve

if TYPE_CHECKING:
    from taskmill.tasks import Call, TaskType

__all__ = ["Declared", "own_fields", "settings_of"]

R = TypeVar("R")


def settings_of(declared: TaskType[..., Any, Any], app: Settings) -> TypeSettings:
    """A type's settings, with the app's own where the declaration is silent."""
    changes: dict[str, Any] = {}
    if "retry" not in declared.declared and app.max_retries != Retry().max_retries:
        changes["retry"] = Retry(max_retries=app.max_retries)
    if "timeout" not in declared.declared:
        changes["timeout"] = app.timeout
    if "max_crashes" not in declared.declared:
        changes["max_crashes"] = app.max_crashes
    return msgspec.structs.replace(declared.settings, **changes)


class Declared:
    """The types of which this process knows that the store knows them."""

    def __init__(self, engine: Engine, settings: Settings, limits: Mapping[str, bytes]) -> None:
        self._engine = engine
        self._settings = settings
        self._limits = limits
        self._told: set[str] = set()
        self._telling = asyncio.Lock()

    def __contains__(self, type: str) -> bool:
        return type in self._told

    async def tell(self, types: Iterable[TaskType[..., Any, Any]]) -> None:
        """The store knows these from here on."""
        missing = [each for each in types if each.name not in self._told]
        if missing:
            async with self._telling:
                await self._tell([each for each in missing if each.name not in self._told])

    async def _tell(self, types: Sequence[TaskType[..., Any, Any]]) -> None:
        settings = {each.name: settings_of(each, self._settings) for each in types}
        special = {name: each for name, each in settings.items() if each != TypeSettings(queue=each.queue)}
        if special:
            known = await self._names("type")
            for name in special.keys() - known:
                await self._tell_limits(special[name])
                await self._put_new("type", name, msgspec.json.encode(special[name]))
        self._told.update(settings)

    async def _tell_limits(self, settings: TypeSettings) -> None:
        ours = {limit.partition(":")[0] for limit in settings.limits} & self._limits.keys()
        if ours:
            for name in ours - await self._names("limit"):
                await self._put_new("limit", name, self._limits[name])

    async def _names(self, kind: str, tx: Transaction | None = None) -> set[str]:
        return {item.name for item in await self._engine.items(kind, tx=tx)}

    async def _put_new(self, kind: str, name: str, value: bytes) -> None:
        with suppress(StaleVersion):  # somebody was faster: a worker, or another process like this one
            await self._engine.put(kind, name, value, version=0, operator=False)

    async def in_transaction(self, call: Call[R], declared: TaskType[..., R, Any]) -> Call[R]:
        """The call for a transaction that is open already: the store cannot be told now, so the task itself carries what its type says."""
        settings = settings_of(declared, self._settings)
        if declared.name in self._told or settings == TypeSettings(queue=settings.queue):
            return call
        if declared.name in await self._names("type", call.tx):
            self._told.add(declared.name)
            return call
        if settings.limits:
            raise InvalidInput(
                f"the store does not know the limits of {declared.name} yet, and cannot be told inside of a transaction",
                code="unknown_type",
                field="tx",
                hint="begin it with app.transaction(), or start a worker first",
            )
        return call.with_fields({**own_fields(call.new(), settings), **call.fields})


def own_fields(new: NewTask, settings: TypeSettings) -> dict[str, Any]:
    """What a new task can carry of its type's settings by itself."""
    found = resolve(new, settings)
    return {
        "priority": found.priority,
        "retry": found.retry,
        "timeout": found.timeout,
        "max_crashes": found.max_crashes,
        "unique": found.unique,
        "fair_key": found.share,
        "order_key": found.order_key,
    }
