"""The schema of a store seen from outside, for `taskmill db`: what would be applied, applying it, and whether the file is as it should be.

Looking never changes anything: no file is made, no journal mode is set, no migration is applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from taskmill.clock import SECOND, Clock, SystemClock
from taskmill.engine import Durability
from taskmill.engines.sqlite import migrate
from taskmill.engines.sqlite.connection import check_path, connect, translate
from taskmill.engines.sqlite.sql import Database, migrations
from taskmill.errors import InvalidSettings, WrongStore

__all__ = ["SQLiteSchema"]


class SQLiteSchema:
    """The schema of one file."""

    def __init__(self, path: Path, *, durability: Durability = Durability.FSYNC, busy_timeout: int = 30 * SECOND, clock: Clock | None = None) -> None:
        self.path = path.resolve()
        self._durability = durability
        self._busy_timeout = busy_timeout
        self._clock: Clock = clock or SystemClock()

    def __str__(self) -> str:
        return str(self.path)

    def upgrade(self, report: Callable[[str], None] = lambda _: None, *, contract: bool = False) -> list[str]:
        """Apply what is missing, each migration told to `report` when it stands. One file has one program at a time, so nothing waits for `contract`."""
        check_path(self.path)
        with self._open(connect(self.path, durability=self._durability, busy_timeout=self._busy_timeout)) as db:
            return migrate.migrate(db, self._clock, report)

    def plan(self, *, contract: bool = False) -> list[str]:
        """What `upgrade` would apply; for a file that is not there yet, everything."""
        check_path(self.path)
        if not self.path.exists():
            return [_title(number, name) for number, name, _ in migrations()]
        with self._open(self._look()) as db:
            return [_title(number, name) for number, name, _ in migrate.pending(db)]

    def sql(self, *, contract: bool = False) -> str:
        """There is nobody to hand a script to: who may write to the file may upgrade it."""
        raise InvalidSettings("a store of SQLite is not upgraded by a script", code="no_script", field="url", hint="`taskmill db upgrade` does it")

    def verify(self) -> list[str]:
        """What is wrong with the file; nothing, if the list is empty."""
        check_path(self.path)
        if not self.path.exists():
            raise WrongStore(f"there is no store at {self.path}", code="no_store", field="url", hint="`taskmill db upgrade` makes one")
        with self._open(self._look()) as db:
            try:
                return migrate.verify(db)
            except apsw.CorruptError as error:
                return [f"the file is damaged: {error}"]

    def _look(self) -> Database:
        """Not a read-only connection, which would leave its files beside the store: one that writes nothing, and tidies up when it closes."""
        try:
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            connection.set_busy_timeout(self._busy_timeout // 1_000)
        except apsw.Error as error:
            raise translate(error, str(self.path)) from None
        return connection

    @contextlib.contextmanager
    def _open(self, db: Database) -> Iterator[Database]:
        try:
            yield db
        except apsw.Error as error:
            raise translate(error, str(self.path)) from None
        finally:
            db.close()


def _title(number: int, name: str) -> str:
    return f"{number:04d} {name}"
