"""The drivers whose connections a user may hand in as `tx=`: each runs one statement with texts for arguments, and answers one text.

A driver is known by where the connection's class comes from, so none is imported that the user has not imported before. One that blocks does
so in `ask`, on the thread of whoever asks: its coroutines never wait, so a caller without an event loop runs them to their end by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from taskmill.errors import Conflict, WrongStore

__all__ = ["Driver", "driver_of", "failed", "foreign", "has_failed", "no_transaction"]

_KNOWN = {"asyncpg": "of_asyncpg", "psycopg": "of_psycopg", "sqlalchemy": "of_sqlalchemy", "django": "of_django"}
HINT = (
    "use `async with app.transaction() as tx`, or a connection of asyncpg, psycopg 3, SQLAlchemy (Session, Connection, AsyncSession, AsyncConnection)"
    " or Django in its transaction"
)


class Driver(Protocol):
    """The user's connection, in the user's transaction."""

    blocks: bool
    """Whether it holds its thread while the server answers."""

    async def begin(self) -> object:
        """Refuse a connection that is in no transaction. Answers the driver's own connection, by which it is known again."""

    async def ask(self, statement: str, *arguments: str) -> str:
        """The one value of a statement that has `$1`, `$2` for its arguments."""

    def after_commit(self, tell: Callable[[], None]) -> None:
        """Call it when the transaction has committed, if the driver says so to anybody."""


def driver_of(tx: object) -> Driver:
    for origin in type(tx).__mro__:
        module = _KNOWN.get(origin.__module__.partition(".")[0])
        if module is not None:
            made: Driver = import_module(f"{__name__}.{module}").driver(tx)
            return made
    raise foreign(tx)


def foreign(tx: object, hint: str = HINT) -> WrongStore:
    return WrongStore(f"a {type(tx).__name__} is no transaction of this engine", code="foreign_connection", field="tx", hint=hint)


def no_transaction(hint: str, why: str = "the connection is in no transaction") -> Conflict:
    return Conflict(why, code="no_transaction", field="tx", hint=hint)


def failed() -> Conflict:
    """A transaction in which a statement has failed: PostgreSQL does nothing more in it."""
    return no_transaction("roll it back and begin anew", "a statement of the transaction has failed")


def has_failed(error: BaseException | None) -> bool:
    """Whether a driver's error, of psycopg 2 or 3 or asyncpg, says so: not all of them know before."""
    return "25P02" in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None))
