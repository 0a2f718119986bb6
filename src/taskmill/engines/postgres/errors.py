"""PostgreSQL's errors, and those of the way to it, in the words of this product.

What matters most to a caller is whether the step may have been applied. `sent` says that a statement (or COMMIT) had left this program: a
connection that broke then leaves it open, and the error is `AnswerLost`. What broke before that, and whatever the server itself answered while it lived,
was not applied.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

import asyncpg
from asyncpg import exceptions as pg

from taskmill.clock import format_duration
from taskmill.engines.postgres.target import Target
from taskmill.errors import AnswerLost, InvalidSettings, StoreError, TaskmillError, WrongStore

__all__ = ["FAILURES", "OLDEST_SERVER", "applied", "breaks", "grants", "passes", "refuse_server", "translate"]

OLDEST_SERVER = 14

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""What asyncpg raises; a TimeoutError is an OSError in some versions of Python only."""

_BREAKS = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
_PASSES = (pg.SerializationError, pg.DeadlockDetectedError)
_AGAIN = "nothing was written, ask again"
_UNKNOWN = "it may have been applied: ask again"


def breaks(error: BaseException) -> bool:
    """Whether the connection is of no use after it, and what was on the way may have arrived."""
    return isinstance(error, _BREAKS) or (isinstance(error, asyncpg.InterfaceError) and "clos" in str(error))


def passes(error: BaseException) -> bool:
    """Whether the server has rolled the step back only because of others, so that it goes through when it is repeated."""
    return isinstance(error, _PASSES)


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """What a step still asks for when it has been applied, or a part of it. If that fails, nobody may be told that nothing was written: the answer is lost."""
    try:
        yield
    except AnswerLost:
        raise
    except StoreError as error:
        raise AnswerLost(error.message, hint=_UNKNOWN) from error


def refuse_server(version: str, target: Target) -> WrongStore:
    return WrongStore(
        f"the server at {target} is PostgreSQL {version}",
        code="old_server",
        field="url",
        hint=f"Taskmill needs PostgreSQL {OLDEST_SERVER} or newer; nothing was changed",
    )


def translate(error: BaseException, target: Target, *, sent: bool = False) -> TaskmillError:
    """An error of asyncpg, of the server or of the network. It never holds a password, because asyncpg's and PostgreSQL's texts hold none."""
    if isinstance(error, TaskmillError):
        return error
    for judge in (_of_settings, _of_connecting, _of_the_schema, _of_others):
        found = judge(error, target)
        if found is not None:
            return found
    if breaks(error):
        return _broken(error, target, sent=sent)
    return StoreError(f"PostgreSQL refused the step: {_text(error)}", code="store_error")


def _of_settings(error: BaseException, target: Target) -> TaskmillError | None:
    """What will be the same next time: the URL says something that is not so."""
    match error:
        case pg.InvalidPasswordError() | pg.InvalidAuthorizationSpecificationError():
            hint = "check user and password of the URL, and pg_hba.conf of the server; signs like # and @ in a password are percent-encoded"
            return WrongStore(f"{target} lets this user not in: {_text(error)}", code="not_let_in", field="url", hint=hint)
        case pg.InvalidCatalogNameError():
            return WrongStore(f"there is no database {target.database!r} at {target}", code="no_database", field="url", hint=f"createdb {target.database}")
        case pg.ClientConfigurationError() | ssl.SSLCertVerificationError():
            hint = "check sslmode, sslrootcert, sslcert and sslkey of the URL"
            return InvalidSettings(f"no connection to {target} can be made as asked: {_text(error)}", code="invalid_value", field="url", hint=hint)
        case FileNotFoundError() | NotADirectoryError() if target.ssl or any(host.startswith("/") for host, _ in target.hosts):
            hint = "check the folder of the socket, or the certificates; is the server up?"
            return StoreError(f"{target} cannot be reached: {_text(error)}", field="url", hint=hint)
        case pg.TargetServerAttributeNotMatched():
            message = f"no server of {target} is {target.target_session_attrs}"
            return StoreError(message, code="no_such_server", field="url", hint="one may be promoted: ask again")
    return None


def _of_connecting(error: BaseException, target: Target) -> TaskmillError | None:
    match error:
        case pg.TooManyConnectionsError():
            hint = f"raise max_connections, or use fewer: ?pool= is {target.pool} a process now; {_AGAIN}"
            return StoreError(f"{target} has no connection left: {_text(error)}", code="too_many_connections", hint=hint)
        case pg.ReadOnlySQLTransactionError():
            hint = f"a standby cannot be written to: name the primary, or several hosts with target_session_attrs=read-write; {_AGAIN}"
            return StoreError(f"{target} takes no writes: {_text(error)}", code="read_only", hint=hint)
        case pg.ProtocolViolationError() if "startup parameter" in str(error):
            hint = "add it to ignore_startup_parameters of pgbouncer.ini"
            return WrongStore(f"the pooler at {target} lets this program not in: {_text(error)}", code="pooler", field="url", hint=hint)
    return None


def _of_the_schema(error: BaseException, target: Target) -> TaskmillError | None:
    match error:
        case pg.InvalidSchemaNameError() | pg.UndefinedTableError() | pg.UndefinedFunctionError() | pg.UndefinedColumnError() | pg.UndefinedObjectError():
            hint = "`taskmill db upgrade` makes or upgrades it; `taskmill db verify` says what is missing"
            return WrongStore(f"{target} is no store of this version: {_text(error)}", code="no_store", field="url", hint=hint)
        case pg.InsufficientPrivilegeError():
            return WrongStore(f"this user may not do that at {target}: {_text(error)}", code="no_rights", field="url", hint=grants(target))
    return None


def grants(target: Target) -> str:
    """What a user needs at run time, as a DBA types it."""
    user = target.user or "the_user"
    rights = ("USAGE ON SCHEMA {0}", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {0}", "USAGE ON ALL SEQUENCES IN SCHEMA {0}")
    return "the owner of the schema gives the rights: " + "; ".join(f"GRANT {right.format(target.schema)} TO {user}" for right in rights)


def _of_others(error: BaseException, target: Target) -> TaskmillError | None:
    match error:
        case pg.SerializationError() | pg.DeadlockDetectedError():
            return StoreError(f"others were in the way: {_text(error)}", code="store_busy", hint=_AGAIN)
        case pg.LockNotAvailableError():
            hint = f"look for a transaction left open (pg_stat_activity); {_AGAIN}"
            return StoreError(f"somebody holds a lock of {target} all this time", code="store_busy", hint=hint)
        case pg.QueryCanceledError():
            hint = f"look for locks and for a small statement_timeout of this user; {_AGAIN}"
            return StoreError(f"the server called the step off: {_text(error)}", code="store_busy", hint=hint)
        case pg.IdleInTransactionSessionTimeoutError():
            hint = f"a transaction does nothing slow while it is open; {_AGAIN}"
            return StoreError("the transaction was idle for too long and was rolled back", code="transaction_idle", hint=hint)
        case pg.DiskFullError():
            return StoreError(f"the disk of {target} is full", code="disk_full", hint=f"free some space; {_AGAIN}")
        case pg.OutOfMemoryError():
            return StoreError(f"{target} has no memory left: {_text(error)}", code="store_unavailable", hint=_AGAIN)
    return None


def _broken(error: BaseException, target: Target, *, sent: bool) -> StoreError:
    if isinstance(error, TimeoutError):
        message = f"{target} did not answer within {format_duration(target.patience)}"
    else:
        message = f"{target} {'broke off' if sent else 'cannot be reached'}: {_text(error)}"
    if sent:
        return AnswerLost(message, hint=_UNKNOWN)
    return StoreError(message, hint=f"is the server up, and the URL right? {_AGAIN}")


def _text(error: BaseException) -> str:
    """The first line of what it says: details and hints follow in others, and can hold rows."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (said.strip().splitlines() or [type(error).__name__])[0][:300]
