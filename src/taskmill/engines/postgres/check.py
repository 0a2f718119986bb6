"""What the server's own settings, its other users and this user's rights cannot promise.

Read on a connection of its own, as any other program of this user gets one: the engine asks for the settings it needs, and a task that is submitted in a
user's own transaction has those of the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources.abc import Traversable

from msgspec import Struct

from taskmill.clock import SECOND, format_duration
from taskmill.engine import Durability, Finding
from taskmill.engines.postgres import migrate
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.connection import Connection, hang_up
from taskmill.engines.postgres.errors import FAILURES, grants, translate
from taskmill.engines.postgres.sql import MIGRATIONS, load
from taskmill.errors import WrongStore

__all__ = ["check"]

LONG_HELD = 5 * 60
"""Seconds after which an open transaction is worth a word."""

LONGEST_NAP = 60
STUCK_SLICE = 100_000
"""Waiting tasks that are looked at."""


class _Seen(Struct, frozen=True):
    """The server at one glance."""

    pool: Pool
    settings: dict[str, str]
    holders: list[tuple[str, str, float]]
    lacks: list[tuple[str, str]]
    pending: list[str]
    contract: list[str]
    refused: WrongStore | None
    stuck: list[str]

    def number(self, name: str) -> int:
        return int(self.settings[name])

    def off(self, name: str) -> bool:
        return self.settings[name] == "off"


async def check(pool: Pool, *, long_held: float = LONG_HELD, folder: Traversable = MIGRATIONS) -> tuple[Finding, ...]:
    try:
        connection = await pool.connect(plain=True)
        try:
            seen = await _look(pool, connection, long_held, folder)
        finally:
            await hang_up(connection)
    except FAILURES as error:
        raise translate(error, pool.target) from None
    looks = (_server, _durability, _vacuum, _holders, _connections, _schema, _rights, _stuck)
    return tuple(finding for look in looks for finding in look(seen))


async def _look(pool: Pool, connection: Connection, long_held: float, folder: Traversable) -> _Seen:
    schema = pool.target.schema
    queries = load("check.sql", schema)
    settings = {row[0]: row[1] for row in await connection.fetch(queries.settings)}
    holders = [(row[0], row[1], row[2]) for row in await connection.fetch(queries.holders, long_held)]
    exists = await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema)
    lacks = [(row[0], row[1]) for row in await connection.fetch(queries.rights)] if exists else []
    pending: list[str] = []
    contract: list[str] = []
    refused = None
    if "USAGE ON SCHEMA" not in {what for what, _ in lacks} and ("SELECT", "migration") not in lacks:
        try:
            missing = await migrate.pending(connection, schema, contract=True, folder=folder)
            pending = [migration.title for migration in missing if migration.phase == "expand"]
            contract = [migration.title for migration in missing if migration.phase == "contract"]
        except WrongStore as error:
            refused = error
    stuck: list[str] = []
    if exists and not (lacks or pending or refused):
        stuck = await connection.fetchval(queries.stuck, STUCK_SLICE)
    return _Seen(pool, settings, holders, lacks, pending, contract, refused, stuck)


def _server(seen: _Seen) -> Iterator[Finding]:
    major, minor = seen.pool.server_version
    yield Finding("info", "postgres", f"PostgreSQL {major}.{minor} at {seen.pool.target}")
    if seen.pool.in_recovery:
        hint = "name the primary, or several hosts with target_session_attrs=read-write"
        yield Finding("error", "standby", "the server is a standby: it takes no writes", hint)
    elif not seen.off("transaction_read_only"):
        yield Finding("error", "read_only", "transactions of this user are read-only", f"ALTER ROLE {_user(seen)} SET default_transaction_read_only = off")
    if seen.pool.pooled:
        hint = "name the server itself in the URL where a start within milliseconds matters"
        yield Finding("info", "pooler", "a pooler stands before the server: nobody can listen there, so workers poll, and each step costs more", hint)


def _durability(seen: _Seen) -> Iterator[Finding]:
    target = seen.pool.target
    if seen.off("fsync"):
        yield Finding("error", "fsync_off", "fsync is off: a power cut can lose or damage the whole database", "set fsync = on in postgresql.conf")
    if seen.off("full_page_writes"):
        hint = "set full_page_writes = on, unless the file system never writes half a page"
        yield Finding("warning", "full_page_writes_off", "full_page_writes is off: a power cut can damage pages", hint)
    if target.durability is Durability.LOCAL:
        message = "a power cut can lose the last acknowledged tasks (synchronous_commit=off)"
        yield Finding("warning", "durability_local", message, "durability=fsync keeps them")
    elif seen.settings["synchronous_commit"] == "off":
        message = "synchronous_commit is off for this user: tasks submitted in your own transactions can be lost in a power cut; others are flushed"
        yield Finding("warning", "synchronous_commit_off", message, f"ALTER ROLE {_user(seen)} SET synchronous_commit = on")
    if target.durability is Durability.REPLICATED and seen.settings["synchronous_commit"] in ("local", "remote_write"):
        message = f"synchronous_commit is {seen.settings['synchronous_commit']} for this user: tasks submitted in your own transactions may not be replicated"
        yield Finding("warning", "synchronous_commit_local", message, f"ALTER ROLE {_user(seen)} SET synchronous_commit = on")
    names = seen.settings["synchronous_standby_names"]
    if target.durability is Durability.REPLICATED and not names:
        message = "the server has no synchronous standby: tasks are answered as fsync, and a failover can lose the last of them"
        yield Finding("error", "not_replicated", message, "set synchronous_standby_names there, or ask for durability fsync")
    elif seen.number("asynchronous") and not names:
        message = "the standby is asynchronous: a failover can lose the last acknowledged tasks"
        yield Finding("warning", "asynchronous_standby", message, "name it in synchronous_standby_names, and write durability=replicated into the URL")
    elif target.durability is Durability.REPLICATED and seen.number("standbys") == 0 and seen.settings["sees_others"] == "true":
        message = f"no synchronous standby is connected ({names}): every commit waits for one"
        yield Finding("error", "no_standby", message, "start the standby, or take it out of synchronous_standby_names")


def _vacuum(seen: _Seen) -> Iterator[Finding]:
    if seen.off("autovacuum") or seen.off("track_counts"):
        off = "autovacuum" if seen.off("autovacuum") else "track_counts"
        yield Finding("error", "autovacuum_off", f"{off} is off: dead rows pile up and every claim gets slower", f"set {off} = on in postgresql.conf")
    elif seen.number("autovacuum_naptime") > LONGEST_NAP:
        nap = format_duration(seen.number("autovacuum_naptime") * SECOND)
        message = f"autovacuum looks at each database only every {nap}: dead rows pile up under load"
        yield Finding("warning", "autovacuum_naptime", message, "set autovacuum_naptime = 10s in postgresql.conf")


def _holders(seen: _Seen) -> Iterator[Finding]:
    remedies = {
        "transaction": "end it: SELECT pg_terminate_backend(pid); look for programs that leave transactions open",
        "prepared": "COMMIT PREPARED or ROLLBACK PREPARED it",
        "slot": "start its consumer, or drop it: SELECT pg_drop_replication_slot(name)",
    }
    for kind, who, seconds in seen.holders:
        since = f" for {format_duration(int(seconds) * SECOND)}" if seconds >= 1 else ""
        yield Finding("warning", f"held_by_{kind}", f"{who} keeps dead rows from being removed{since}: claims get slower", remedies[kind])
    if seen.settings["sees_others"] != "true":
        hint = f"GRANT pg_read_all_stats TO {_user(seen)}"
        yield Finding("info", "sees_only_own", "this user cannot see other users' transactions, so long ones may be missing here", hint)


def _connections(seen: _Seen) -> Iterator[Finding]:
    room = seen.number("max_connections") - seen.number("superuser_reserved_connections")
    pool = seen.pool.target.pool + 1  # and one that listens
    if seen.pool.pooled:
        return
    if pool > room:
        message = f"one process may open {pool} connections, the server has {room}"
        yield Finding("error", "too_few_connections", message, f"raise max_connections, or write ?pool={max(room // 4, 1)} into the URL")
    elif seen.number("used") + pool > room:
        message = f"{seen.number('used')} of {room} connections are in use; one more process may open {pool}"
        yield Finding("warning", "few_connections", message, "raise max_connections, lower ?pool= in the URL, or put PgBouncer before the server")


def _schema(seen: _Seen) -> Iterator[Finding]:
    if seen.refused is not None:
        yield Finding("error", seen.refused.code, seen.refused.message, seen.refused.hint or "")
    if seen.pending:
        yield Finding("error", "schema_behind", f"the schema lacks {', '.join(seen.pending)}", "taskmill db upgrade")
    elif seen.contract:
        hint = "taskmill db upgrade --contract, when no older program runs any more"
        yield Finding("info", "contract_pending", f"what only older programs need is still there: {', '.join(seen.contract)}", hint)


def _rights(seen: _Seen) -> Iterator[Finding]:
    if seen.lacks:
        shown = ", ".join(f"{what} {name}" for what, name in seen.lacks[:3])
        more = f" and {len(seen.lacks) - 3} more" if len(seen.lacks) > 3 else ""
        yield Finding("error", "no_rights", f"this user lacks rights: {shown}{more}", grants(seen.pool.target))


def _stuck(seen: _Seen) -> Iterator[Finding]:
    if seen.stuck:
        shown = ", ".join(seen.stuck[:3])
        hint = "a running worker makes them ready within a minute; please report how they came to be"
        yield Finding("error", "stuck_waiting", f"{len(seen.stuck)} tasks wait for nothing any more: {shown}", hint)


def _user(seen: _Seen) -> str:
    return seen.pool.target.user or "the_user"
