"""The user's transaction: business rows and tasks are written together, on a connection of the pool or on the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from taskmill.engines.postgres.connecting import Connection, Record
from taskmill.errors import Conflict, WrongStore

if TYPE_CHECKING:
    from taskmill.engines.postgres.engine import PostgresEngine

__all__ = ["Tx", "writable"]


class Tx:
    """What `async with engine.transaction() as tx` hands out; `tx.connection` is asyncpg's, with all that it can do."""

    def __init__(self, engine: PostgresEngine, connection: Connection) -> None:
        self.engine = engine
        self.connection = connection
        self.open = True
        self.abandoned = False

    async def execute(self, statement: str, bindings: Sequence[Any] | None = None) -> list[Record]:
        """A statement of the user's own, with `$1`, `$2`, … for its bindings; its rows."""
        self.check()
        rows = await self.connection.fetch(statement, *(bindings or ()))
        self.check_inside()
        return rows

    async def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """The same statement for each of these rows of bindings."""
        self.check()
        await self.connection.executemany(statement, rows)
        self.check_inside()

    def check(self) -> None:
        if not self.open:
            raise Conflict("the transaction has ended", code="transaction_ended", field="tx", hint="use it inside its `async with` block")

    def check_inside(self) -> None:
        """A statement that ended the transaction took the ground from under what follows."""
        if not self.connection.is_in_transaction():
            raise Conflict(
                "a statement of its own has ended the transaction", code="transaction_ended", hint="leave BEGIN, COMMIT and ROLLBACK to the `async with` block"
            )

    def abandon(self) -> None:
        """The engine is closed under it: nothing of it stays."""
        self.open = False
        self.abandoned = True
        self.connection.terminate()


def writable(tx: object, engine: PostgresEngine) -> Any:
    """The connection of a transaction that this engine handed out, or that the user has begun on an asyncpg connection of their own."""
    if isinstance(tx, Tx):
        if tx.engine is not engine:
            raise WrongStore("this transaction is of another engine", code="foreign_connection", field="tx", hint="use `async with app.transaction() as tx`")
        tx.check()
        return tx.connection
    if not isinstance(tx, (asyncpg.Connection, PoolConnectionProxy)):
        raise WrongStore(
            f"a {type(tx).__name__} is no transaction of this engine",
            code="foreign_connection",
            field="tx",
            hint="use `async with app.transaction() as tx`, or an asyncpg connection in its transaction",
        )
    if tx.is_closed() or not tx.is_in_transaction():
        raise Conflict("the connection is in no transaction", code="transaction_ended", field="tx", hint="async with connection.transaction(): …")
    return tx
