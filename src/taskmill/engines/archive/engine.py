"""An engine with an archive behind it: the hot store first, the archive after. Every verb but those below is the hot store's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from taskmill.clock import SECOND, format_duration
from taskmill.config import Secret, engine_kind, url_parameters
from taskmill.engine import Engine, Entry, Finding
from taskmill.engines.archive.delivery import Delivery, forgo
from taskmill.engines.archive.store import Archive
from taskmill.engines.postgres.target import Target, parse
from taskmill.errors import Expired, InvalidSettings, NotFound, StoreError
from taskmill.task import Attempt, Gone, State, Task

__all__ = ["KIND", "archived"]

KIND = "archive"
"""Of the outbox's entries."""
SCHEMA = "taskmill_archive"
"""In the archive's database, unless its URL names another."""
NONE = "none"
"""In place of a URL: what is still owed to an archive is let go."""


def archived(engine: Engine, url: Secret, *, busy_timeout: int = 30 * SECOND) -> Engine:
    """The engine with the archive of this URL behind it; nothing is opened yet."""
    if url.reveal() == NONE:
        return cast("Engine", _GivenUp(engine))
    return cast("Engine", _Archived(engine, Archive(_target(url, busy_timeout))))


def _target(url: Secret, busy_timeout: int) -> Target:
    """Its refusals never show the URL: a password may stand at a place where none should."""
    try:
        if engine_kind(url) != "postgres":
            hint = "archive=postgresql://user:password@host/database, percent-encoded, or archive=none"
            raise InvalidSettings("the archive is no PostgreSQL database", code="unknown_engine", hint=hint)
        found = parse(url.reveal(), busy_timeout=busy_timeout)
    except InvalidSettings as error:
        message = error.message if error.field is None else f"the URL of the archive: {error.message}"
        raise InvalidSettings(message, code=error.code, field="archive", hint=error.hint) from None
    return found if "schema" in url_parameters(url) else msgspec.structs.replace(found, schema=SCHEMA)


class _GivenUp:
    """The hot store alone; what is owed to an archive is cut undelivered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.deliverers: Mapping[str, Callable[[Sequence[Entry]], Awaitable[None]]] = {KIND: forgo}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _Archived:
    """`deliverers` is for whoever looks after the store."""

    def __init__(self, engine: Engine, archive: Archive) -> None:
        self._engine = engine
        self._archive = archive
        self.deliverers: Mapping[str, Callable[[Sequence[Entry]], Awaitable[None]]] = {KIND: Delivery(engine, archive)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def open(self) -> None:
        """From now on every end is owed to the archive, also before somebody delivers. The archive itself may be away."""
        await self._engine.open()
        try:
            await self._engine.put("outbox", KIND, b"{}", operator=False)
        except BaseException:
            await self._engine.close()
            raise

    async def close(self) -> None:
        try:
            await self._archive.close()
        finally:
            await self._engine.close()

    async def check(self) -> tuple[Finding, ...]:
        return (*await self._engine.check(), await self._found())

    async def _found(self) -> Finding:
        try:
            newest = await self._archive.newest()
        except StoreError as error:
            hint = f"{error.hint}; work goes on, and what ends stays in the hot store until it was delivered" if error.hint else ""
            return Finding("warning", "archive_unreachable", f"the archive {error.message}", hint)
        if newest is None:
            return Finding("info", "archive", f"the archive {self._archive.target} is reachable; nothing lies in it yet")
        age = format_duration(max(SECOND, (self._engine.clock.now() - newest) // SECOND * SECOND))
        return Finding("info", "archive", f"the archive {self._archive.target} is reachable; the newest task in it ended {age} ago")

    # Reading

    async def get(self, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
        found = await self._engine.get(ids)
        missing = [id for id, task in zip(ids, found, strict=True) if not isinstance(task, Task)]
        if not missing:
            return found
        kept = await self._archive.tasks(missing)
        return tuple(task if isinstance(task, Task) else kept.get(id, task) for id, task in zip(ids, found, strict=True))

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        try:
            return await self._engine.attempts(task)
        except (NotFound, Expired):
            if task in await self._archive.tasks([task]):
                return await self._archive.attempts(task)
            raise

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        """A task that only the archive remembers has ended."""
        try:
            return await self._engine.wait(ids, timeout)
        except NotFound:
            kept = await self._archive.tasks(ids)
            live = {id for id, task in zip(ids, await self._engine.get(ids), strict=True) if isinstance(task, Task)}
            ended = {id: task.state for id, task in kept.items() if id not in live}
            if not ended:
                raise
            return ended
