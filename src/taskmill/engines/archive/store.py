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

from taskmill.clock import SECOND
from taskmill.engine import Record
from taskmill.engines.postgres import migrate
from taskmill.engines.postgres.connecting import Connection, Pool
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

_decode = msgspec.json.Decoder(Task).decode


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(type(value))


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


class Archive:
    """One archive, seen from one process."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._pool = Pool(target)
        self._queries: Any = load("archive.sql", target.schema, FOLDER)
        self._turn = asyncio.Lock()
        self._connected = False
        self._migrated = False

    async def close(self) -> None:
        if self._connected:
            self._connected = self._migrated = False
            await self._pool.close()

    # Writing

    async def keep(self, records: Sequence[Record]) -> None:
        """All of them are there when this answers, each with its attempts, or none is. Repeats change nothing, and an older record goes over no newer one."""
        async with self._told():
            await self._migrate()
            try:
                async with self._pool.transaction() as connection:
                    await self._write(connection, records)
            except WrongStore:
                self._migrated = False  # somebody removed the tables: the next one makes them again
                raise

    async def _write(self, connection: Connection, records: Sequence[Record]) -> None:
        rows = list(zip(*(_row(record.task) for record in records), strict=True))
        kept = {id for (id,) in await connection.fetch(self._queries.keep, *rows)}
        await connection.execute(self._queries.clear_attempts, sorted(kept))
        attempts = [row for record in records if record.task.id in kept for row in _attempt_rows(record)]
        if attempts:
            await connection.execute(self._queries.add_attempts, *zip(*attempts, strict=True))

    async def _migrate(self) -> None:
        async with self._turn:
            if self._migrated:
                return
            await self._connect()
            await migrate.upgrade(self._pool, folder=MIGRATIONS)
            async with self._pool.transaction() as connection:
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
        async with self._told():
            try:
                async with asyncio.timeout(PATIENCE / SECOND):
                    async with self._turn:
                        await self._connect()
                    return await self._pool.fetch(statement, *arguments)
            except TimeoutError:
                raise StoreError("it did not answer in time", hint="is the server up, and the URL right?") from None
            except WrongStore as error:
                if error.code != "no_store":
                    raise
                return ()

    # Connecting

    async def _connect(self) -> None:
        if not self._connected:
            await self._pool.open()
            self._connected = True

    @asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        """What goes wrong here is the archive's, and not that of the store that tasks run on."""
        try:
            yield
        except TaskmillError as error:
            named = str(self.target) in error.message
            message = error.message if named else f"{self.target}: {error.message}"
            raise StoreError(message, code="archive_unavailable", field="archive", hint=error.hint) from None


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
