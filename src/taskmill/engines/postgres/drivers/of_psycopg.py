"""A connection of psycopg 3, blocking or not. Without autocommit its transaction begins with the first statement, which may be ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from taskmill.engines.postgres.drivers import Driver, failed, foreign, no_transaction

__all__ = ["driver"]

_MARK = re.compile(r"\$\d")


def driver(tx: object) -> Driver:
    if isinstance(tx, psycopg.AsyncConnection):
        return Psycopg(tx)
    if isinstance(tx, psycopg.Connection):
        return BlockingPsycopg(tx)
    raise foreign(tx, "pass the connection whose transaction it is")


def _encoded(statement: str) -> bytes:
    return _MARK.sub("%s::text", statement).encode()


def _check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> object:
    status = connection.info.transaction_status
    if connection.closed or status is TransactionStatus.UNKNOWN:
        raise no_transaction("pass one that is open", "the connection is closed")
    if status is TransactionStatus.INERROR:
        raise failed()
    if status is TransactionStatus.IDLE and connection.autocommit:
        raise no_transaction("with connection.transaction(): …", "the connection commits each statement by itself (autocommit)")
    return connection


class BlockingPsycopg:
    """It tells nobody of a commit."""

    blocks = True

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def begin(self) -> object:
        return _check(self._connection)

    async def ask(self, statement: str, *arguments: str) -> str:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(_encoded(statement), arguments or None, prepare=False)
            return _text(cursor.fetchone())

    def after_commit(self, tell: Callable[[], None]) -> None:
        pass


class Psycopg:
    """The same for one that is awaited."""

    blocks = False

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def begin(self) -> object:
        return _check(self._connection)

    async def ask(self, statement: str, *arguments: str) -> str:
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_encoded(statement), arguments or None, prepare=False)
            return _text(await cursor.fetchone())

    def after_commit(self, tell: Callable[[], None]) -> None:
        pass


def _text(row: tuple[Any, ...] | None) -> str:
    assert row is not None
    return str(row[0])
