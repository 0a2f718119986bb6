"""The schema of a store seen from outside, for `taskmill db`: what would be applied, applying it, the same as a script, and whether all is as it should be.

Looking never changes anything. Each call connects, does its work and lets go.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from taskmill.engines.postgres import migrate
from taskmill.engines.postgres.connecting import Connection, Pool
from taskmill.engines.postgres.sql import MIGRATIONS
from taskmill.engines.postgres.target import Target
from taskmill.errors import StoreError, WrongStore
from taskmill.version import __version__

__all__ = ["PostgresSchema"]

Answer = TypeVar("Answer")


class PostgresSchema:
    """The schema of one store; `folder` is where the migrations are."""

    def __init__(self, target: Target, *, folder: Traversable = MIGRATIONS) -> None:
        self.target = target
        self._folder = folder

    def __str__(self) -> str:
        return str(self.target)

    def upgrade(self, report: Callable[[str], None] = lambda _: None, *, contract: bool = False) -> list[str]:
        """Apply what is missing, each migration told to `report` when it stands; what takes things away from older programs only with `contract`."""

        async def work(pool: Pool) -> list[str]:
            if pool.in_recovery:
                hint = "name the primary, or several hosts with target_session_attrs=read-write"
                raise StoreError(f"{self.target} is a standby and takes no writes", code="read_only", field="url", hint=hint)
            try:
                return await migrate.upgrade(pool, contract=contract, report=report, folder=self._folder)
            except WrongStore as error:
                if error.code == "no_rights":
                    error.hint = _rights(self.target)
                raise

        return _run(self._opened(work))

    def plan(self, *, contract: bool = False) -> list[str]:
        """What `upgrade` would apply; for a schema that is not there yet, everything."""
        found = self._look(lambda connection: migrate.pending(connection, self.target.schema, contract=contract, folder=self._folder))
        return [migration.title for migration in found]

    def verify(self) -> list[str]:
        """What is wrong with the store; nothing, if the list is empty."""
        return self._look(self._verify)

    async def _verify(self, connection: Connection) -> list[str]:
        if not await migrate.applied(connection, self.target.schema):
            raise WrongStore(f"there is no store at {self.target}", code="no_store", field="url", hint="`taskmill db upgrade` makes one")
        return await migrate.verify(connection, self.target.schema, self._folder)

    def sql(self, *, contract: bool = False) -> str:
        """What `upgrade` would do, as a script for psql."""
        found = self._look(lambda connection: migrate.pending(connection, self.target.schema, contract=contract, folder=self._folder))
        return migrate.script(found, self.target.schema, __version__)

    def _look(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        async def work(pool: Pool) -> Answer:
            async with pool.transaction() as connection:
                return await ask(connection)

        return _run(self._opened(work))

    async def _opened(self, work: Callable[[Pool], Awaitable[Answer]]) -> Answer:
        pool = Pool(self.target)
        await pool.open()
        try:
            return await work(pool)
        finally:
            await pool.close()


def _rights(target: Target) -> str:
    """What whoever changes a schema needs."""
    user = target.user or "the_user"
    give = f"GRANT CREATE ON DATABASE {target.database} TO {user}, or CREATE SCHEMA {target.schema} AUTHORIZATION {user}"
    return f"{give}; or let somebody with these rights run what `taskmill db sql` prints; nothing was changed"


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """To its end, on a loop of its own: in another thread where this one has a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    ended: list[Answer] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:  # raised again below, in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="taskmill-schema")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return ended[0]
