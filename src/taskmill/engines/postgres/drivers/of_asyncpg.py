"""A connection of asyncpg, alone or out of its pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from taskmill.engines.postgres.drivers import Driver, failed, foreign, no_transaction

__all__ = ["driver"]


def driver(tx: object) -> Driver:
    if not isinstance(tx, (asyncpg.Connection, PoolConnectionProxy)):
        raise foreign(tx, "pass the connection whose transaction it is")
    return Asyncpg(tx)


class Asyncpg:
    """asyncpg's own way. It tells nobody of a commit."""

    blocks = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begin(self) -> object:
        if self._connection.is_closed() or not self._connection.is_in_transaction():
            raise no_transaction("async with connection.transaction(): …")
        return getattr(self._connection, "_con", self._connection)

    async def ask(self, statement: str, *arguments: str) -> str:
        try:
            answer: str = await self._connection.fetchval(statement, *arguments)
        except asyncpg.InFailedSQLTransactionError:
            raise failed() from None
        return answer

    def after_commit(self, tell: Callable[[], None]) -> None:
        pass
