"""Django's connection: `django.db.connection`, or one of `django.db.connections`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError

from taskmill.engines.postgres.drivers import Driver, failed, foreign, has_failed, no_transaction

__all__ = ["driver"]

_MARK = re.compile(r"\$\d")


def driver(tx: object) -> Driver:
    if not hasattr(tx, "vendor") or not hasattr(tx, "in_atomic_block"):
        raise foreign(tx, "pass the connection: from django.db import connection")
    return Django(tx)


class Django:
    """It blocks; in async code Django itself refuses it."""

    blocks = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begin(self) -> object:
        connection = self._connection
        if connection.vendor != "postgresql":
            raise foreign(connection, f"it leads to {connection.vendor}; tasks are in PostgreSQL")
        if not connection.in_atomic_block and connection.get_autocommit():
            raise no_transaction("with transaction.atomic(): …", "the connection commits each statement by itself (autocommit)")
        if connection.needs_rollback:
            raise failed()
        connection.ensure_connection()
        own: object = connection.connection
        return own

    async def ask(self, statement: str, *arguments: str) -> str:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(_MARK.sub("%s::text", statement), arguments or None)
                answer: str = cursor.fetchone()[0]
        except DatabaseError as error:
            if has_failed(error.__cause__):
                raise failed() from None
            raise
        return answer

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Outside of an atomic block Django takes a hook for one to be called at once."""
        if self._connection.in_atomic_block:
            self._connection.on_commit(tell, robust=True)
