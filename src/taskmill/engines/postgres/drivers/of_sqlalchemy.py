"""A session or a connection of SQLAlchemy, blocking or not, over any driver of PostgreSQL. Its transaction begins by itself, with the first statement."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from taskmill.engines.postgres.drivers import Driver, failed, foreign, has_failed, no_transaction

__all__ = ["driver"]

_MARK = re.compile(r"\$(\d)")
_PENDING = "taskmill: tell after commit"
_BIND = "the session has several databases: pass the connection, session.connection(bind_arguments=…)"


def driver(tx: object) -> Driver:
    if isinstance(tx, scoped_session):
        tx = tx()
    if isinstance(tx, (Session, Connection)):
        return Blocking(tx)
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(tx, async_scoped_session):
        tx = tx()
    if isinstance(tx, (AsyncConnection, AsyncSession)):
        return Awaited(tx)
    raise foreign(tx, "pass the session or the connection, not what made it")


def _connected(connection: Connection) -> object:
    if connection.dialect.name != "postgresql":
        raise foreign(connection, f"it leads to {connection.dialect.name}; tasks are in PostgreSQL")
    inner = connection.connection
    if getattr(inner.dbapi_connection, "autocommit", False):
        raise no_transaction("leave out isolation_level=AUTOCOMMIT", "the connection commits each statement by itself (autocommit)")
    return inner.driver_connection


def _asked(connection: Connection, statement: str, arguments: tuple[str, ...]) -> str:
    marked = text(_MARK.sub(r"CAST(:a\1 AS text)", statement))
    try:
        answer: str = connection.execute(marked, {f"a{n}": argument for n, argument in enumerate(arguments, 1)}).scalar_one()
    except DBAPIError as error:
        if has_failed(error.orig):
            raise failed() from None
        raise
    return answer


def _after_commit(session: Session, tell: Callable[[], None]) -> None:
    """What was submitted in a savepoint that is rolled back is told with the rest: a hint too many does no harm."""
    if _PENDING not in session.info:
        session.info[_PENDING] = []
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_rollback", _rolled_back)
    session.info[_PENDING].append(tell)


def _committed(session: Session) -> None:
    if not session.in_nested_transaction():
        pending, session.info[_PENDING] = session.info[_PENDING], []
        for tell in pending:
            tell()


def _rolled_back(session: Session) -> None:
    if not session.in_nested_transaction():
        session.info[_PENDING] = []


class Blocking:
    """Session and Connection."""

    blocks = True

    def __init__(self, given: Session | Connection) -> None:
        self._given = given

    def _connection(self) -> Connection:
        if isinstance(self._given, Connection):
            return self._given
        try:
            return self._given.connection()
        except UnboundExecutionError:
            raise foreign(self._given, _BIND) from None
        except PendingRollbackError:
            raise failed() from None

    async def begin(self) -> object:
        return _connected(self._connection())

    async def ask(self, statement: str, *arguments: str) -> str:
        return _asked(self._connection(), statement, arguments)

    def after_commit(self, tell: Callable[[], None]) -> None:
        if isinstance(self._given, Session):
            _after_commit(self._given, tell)


class Awaited:
    """AsyncSession and AsyncConnection."""

    blocks = False

    def __init__(self, given: Any) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession

        self._given = given
        self._session: Session | None = given.sync_session if isinstance(given, AsyncSession) else None

    async def _connection(self) -> Any:
        if self._session is None:
            return self._given
        try:
            return await self._given.connection()
        except UnboundExecutionError:
            raise foreign(self._given, _BIND) from None
        except PendingRollbackError:
            raise failed() from None

    async def begin(self) -> object:
        return await (await self._connection()).run_sync(_connected)

    async def ask(self, statement: str, *arguments: str) -> str:
        answer: str = await (await self._connection()).run_sync(_asked, statement, arguments)
        return answer

    def after_commit(self, tell: Callable[[], None]) -> None:
        if self._session is not None:
            _after_commit(self._session, tell)
