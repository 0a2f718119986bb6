"""The user's transaction: a connection to the same file on which business rows and tasks are written together."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import apsw

from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.writer import Session
from taskmill.errors import Conflict, WrongStore

if TYPE_CHECKING:
    from taskmill.engines.sqlite.engine import SQLiteEngine

__all__ = ["Tx", "writable"]


class Tx:
    """What `async with engine.transaction() as tx` hands out; its statements run on an apsw connection that holds the write lock."""

    def __init__(self, engine: SQLiteEngine, session: Session) -> None:
        self.engine = engine
        self.session = session
        self.open = True
        self.abandoned = False
        self.synced = False
        """Something in it asked that its commit waits for the disk, in a store that does not."""

    def execute(self, statement: str, bindings: Any = None) -> Rows:
        """A statement of the user's own, with `$1`, `$2`, … as on PostgreSQL, or SQLite's own `?` and `:name`."""
        with self.inside():
            return Rows(self, self.session.db.execute(statement, _numbered(statement, bindings)))

    def executemany(self, statement: str, rows: Iterable[Any]) -> Rows:
        """The same statement for each of these rows of bindings."""
        with self.inside():
            return Rows(self, self.session.db.executemany(statement, (_numbered(statement, row) for row in rows)))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A user's statement may do everything but end the transaction: what the engine owes to its end would be lost."""
        if not self.open:
            raise _ended()
        self.session.db.authorizer = _no_end
        try:
            yield
        except apsw.AuthError:
            raise Conflict(
                "a statement of its own would end the transaction", code="transaction_ended", hint="leave BEGIN, COMMIT and ROLLBACK to the `async with` block"
            ) from None
        finally:
            self.session.db.authorizer = None

    def commit(self) -> None:
        self.session.commit()
        if self.synced:
            self.session.sync()

    def abandon(self) -> None:
        """The engine is closed under it: nothing of it stays."""
        self.open = False
        self.abandoned = True
        self.session.rollback()
        self.session.close()


class Rows:
    """What a statement answers: rows to go through at once, or awaited as a list, so that one handler runs here and on PostgreSQL."""

    def __init__(self, tx: Tx, cursor: Any) -> None:
        self._tx = tx
        self._cursor = cursor

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._tx.inside():
            return next(self._cursor)

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._all().__await__()

    async def _all(self) -> list[Any]:
        return list(self)

    def fetchone(self) -> Any:
        return next(self, None)

    def fetchall(self) -> list[Any]:
        return list(self)


_NO_CODE = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_NUMBERED = re.compile(r"\$\d")


def _numbered(statement: str, bindings: Any) -> Any:
    """Bindings by number where the statement has `$1`: SQLite itself takes that for a name, and would give it the binding of its first place."""
    if not isinstance(bindings, (list, tuple)) or "$" not in statement or not _NUMBERED.search(_NO_CODE.sub("", statement)):
        return bindings
    return {str(number): value for number, value in enumerate(bindings, 1)}


def _no_end(operation: int, *_: str | None) -> int:
    return apsw.SQLITE_DENY if operation == apsw.SQLITE_TRANSACTION else apsw.SQLITE_OK


def _ended() -> Conflict:
    return Conflict("the transaction has ended", code="transaction_ended", field="tx", hint="use it inside its `async with` block")


def writable(tx: object, engine: SQLiteEngine) -> Step:
    """The step of a transaction that this engine handed out and that is still open."""
    if isinstance(tx, sqlite3.Connection):
        raise WrongStore(
            "the sqlite3 module of Python is another SQLite library than the engine's; two of them on one file lose committed rows when one closes it",
            code="wrong_sqlite_library",
            field="tx",
            hint="use `async with app.transaction() as tx` and run your own statements on tx",
        )
    if not isinstance(tx, Tx) or tx.engine is not engine:
        raise WrongStore(
            "this connection is not one that the engine handed out", code="foreign_connection", field="tx", hint="use `async with app.transaction() as tx`"
        )
    if not tx.open:
        raise _ended()
    return tx.session.step
