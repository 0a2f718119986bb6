"""The user's transaction: a connection to the same file on which business rows and tasks are written together."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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

    def execute(self, statement: str, bindings: Any = None) -> Any:
        return self.session.db.execute(statement, bindings)

    def executemany(self, statement: str, rows: Iterable[Any]) -> Any:
        return self.session.db.executemany(statement, rows)

    def commit(self) -> None:
        if not self.session.db.in_transaction:
            self.session.rollback()
            raise Conflict(
                "the transaction was ended by a statement of its own", code="transaction_ended", hint="leave COMMIT and ROLLBACK to the `async with` block"
            )
        self.session.commit()


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
        raise Conflict("the transaction has ended", code="transaction_ended", field="tx", hint="submit inside its `async with` block")
    return tx.session.step
