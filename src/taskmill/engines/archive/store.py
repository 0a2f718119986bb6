"""The archive's tables: its connections, its migrations, what is written into them and read from them.

Nothing is connected before the first use. Whoever writes brings the schema up to date first; whoever reads takes a schema that is not there for one
in which nothing lies yet, because a reader may have no right to make one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill.clock import SECOND, format_duration
from taskmill.engine import Record
from taskmill.engines.postgres import migrate
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.sql import load
from taskmill.engines.postgres.target import Target
from taskmill.engines.rows import decode_error, encode_error
from taskmill.errors import StoreError, TaskmillError, WrongStore
from taskmill.task import UUID, Attempt, Task

__all__ = ["Archive"]

FOLDER = files(__package__)
MIGRATIONS = FOLDER / "migrations"
FIRST = "archive"
"""The name of the first migration: what tells an archive from a store."""
PATIENCE = 3 * SECOND
"""How long somebody who reads waits for the archive; a delivery waits for as long as the settings say."""

UNAVAILABLE = "archive_unavailable"
NO_ATTEMPTS: list[tuple[object, ...]] = [()] * 9

_decode = msgspec.json.Decoder(Task).decode


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(type(value))


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


class Archive:
    """One archive, seen from one process. Those who read and who writes have connections of their own: a reader gives up sooner."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._queries: Any = load("archive.sql", target.schema, FOLDER)
        self._reading = Side(target, PATIENCE)
        self._writing = Side(target, 2 * target.patience)
        self._migrated = False

    async def close(self) -> None:
        self._migrated = False
        await self._reading.close()
        await self._writing.close()

    # Writing

    async def keep(self, records: Sequence[Record]) -> None:
        """All of them are there when this answers, each with its attempts, or none is. Repeats change nothing, and an older record goes over no newer one."""
        tasks = zip(*(_row(record.task) for record in records), strict=True)
        attempts = zip(*(row for record in records for row in _attempt_rows(record)), strict=True)
        async with self._writing.pool() as pool:
            if not self._migrated:
                await self._migrate(pool)
            try:
                await pool.fetch(self._queries.keep, *tasks, *(list(attempts) or NO_ATTEMPTS))
            except WrongStore:
                self._migrated = False  # somebody removed the tables: the next one makes them again
                raise

    async def _migrate(self, pool: Pool) -> None:
        await migrate.upgrade(pool, folder=MIGRATIONS)
        async with pool.transaction() as connection:
            [first, *_] = await migrate.applied(connection, self.target.schema)
        if first.name != FIRST:
            hint = "name another in the URL of the archive: ?schema=taskmill_archive"
            raise WrongStore(f"the schema {self.target.schema} is a store of tasks", code="not_an_archive", field="archive", hint=hint)
        self._migrated = True

    # Reading

    async def tasks(self, ids: Iterable[str]) -> dict[str, Task]:
        """Those of them that are here."""
        wanted = [id for id in ids if UUID.fullmatch(id)]
        return {row[0]: _task(row) for row in await self._read(self._queries.tasks, wanted)} if wanted else {}

    async def attempts(self, id: str) -> tuple[Attempt, ...]:
        return tuple(_attempt(row) for row in await self._read(self._queries.attempts, id))

    async def newest(self) -> int | None:
        """When the last of those that are here ended."""
        rows = await self._read(self._queries.newest)
        return None if not rows else rows[0][0]

    async def _read(self, statement: str, *arguments: object) -> Sequence[Any]:
        async with self._reading.pool() as pool:
            try:
                return await pool.fetch(statement, *arguments)
            except WrongStore as error:
                if error.code != "no_store":
                    raise
                return ()


class Side:
    """Connections to the archive, made when they are first needed."""

    def __init__(self, target: Target, patience: int) -> None:
        self._target = target
        self._patience = patience
        self._pool: Pool | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def pool(self) -> AsyncIterator[Pool]:
        """For what is asked inside there is bounded time. What goes wrong in it is the archive's, and not that of the store that tasks run on."""
        try:
            async with asyncio.timeout(self._patience / SECOND):
                yield await self._opened()
        except TimeoutError:
            await self.close()  # connections to a server that is frozen are of no use
            message = f"{self._target} did not answer within {format_duration(self._patience)}"
            raise StoreError(message, code=UNAVAILABLE, field="archive", hint="is the server up, and the URL right?") from None
        except TaskmillError as error:
            named = str(self._target) in error.message
            message = error.message if named else f"{self._target}: {error.message}"
            raise StoreError(message, code=UNAVAILABLE, field="archive", hint=error.hint) from None

    async def _opened(self) -> Pool:
        async with self._turn:
            if self._pool is None:
                pool = Pool(self._target)
                await pool.open()
                self._pool = pool
            return self._pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(0)


def _row(task: Task) -> tuple[object, ...]:
    record = _encode(msgspec.structs.replace(task, payload=b"", result=None)).decode()
    finished_at = task.updated_at if task.finished_at is None else task.finished_at
    about = (task.id, task.type, task.queue, task.tenant, task.priority, task.state.value, task.version, task.created_at, finished_at)
    return *about, task.payload, task.result, record


def _task(row: Any) -> Task:
    _, payload, result, record = row
    return msgspec.structs.replace(_decode(record), payload=payload, result=result)


def _attempt_rows(record: Record) -> Iterable[tuple[object, ...]]:
    for position, one in enumerate(record.attempts):
        yield record.task.id, position, one.number, one.worker, one.token, one.started_at, one.ended_at, one.outcome, encode_error(one.error)


def _attempt(row: Any) -> Attempt:
    number, worker, token, started_at, ended_at, outcome, error = row
    return Attempt(number=number, worker=worker, token=token, started_at=started_at, ended_at=ended_at, outcome=outcome, error=decode_error(error))
