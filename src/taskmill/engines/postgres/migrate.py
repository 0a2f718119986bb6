"""Numbered migrations, each one transaction: a program that dies in one leaves the store as it was before it, and two that start at once take turns.

A deploy of many processes rolls: for a while the old program and the new one work on one store. So a migration has a phase. `expand` adds: what the program
before needs is still there, and that one goes on working on a store that is ahead of it. `contract` takes away what only older programs needed; it is applied
when it is asked for (`taskmill db upgrade --contract`), after the last of those is gone, and refuses them from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources.abc import Traversable

from msgspec import Struct

from taskmill.clock import MILLISECOND
from taskmill.engines.postgres.connecting import Connection, Pool
from taskmill.engines.postgres.objects import differences, made, present
from taskmill.engines.postgres.sql import MIGRATIONS, Migration, filled, migrations
from taskmill.errors import StoreError, WrongStore

__all__ = ["Applied", "applied", "pending", "script", "upgrade", "verify"]

TURN = 7_829_367
"""The first number of the advisory lock under which migrations take turns ("two"); the schema's name makes the second."""

LEDGER = """CREATE TABLE IF NOT EXISTS {schema}.migration (
  number     integer PRIMARY KEY,
  name       text    NOT NULL,
  phase      text    NOT NULL,
  checksum   text    NOT NULL,
  applied_at bigint  NOT NULL
)"""
APPLIED = "SELECT number, name, phase, checksum FROM {schema}.migration ORDER BY number"
NOTE = """INSERT INTO {schema}.migration (number, name, phase, checksum, applied_at)
VALUES ($1, $2, $3, $4, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"""


class Applied(Struct, frozen=True):
    """A migration as the store has noted it."""

    number: int
    name: str
    phase: str
    checksum: str


async def applied(connection: Connection, schema: str) -> list[Applied]:
    """What was applied, in order; nothing, where there is no store."""
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migration')", schema):
        return []
    return [Applied(*row) for row in await connection.fetch(filled(APPLIED, schema))]


async def pending(connection: Connection, schema: str, *, contract: bool = False, folder: Traversable = MIGRATIONS) -> list[Migration]:
    """What is still to be applied, in the order of applying; a store from which a newer program has taken something away is refused."""
    done = await applied(connection, schema)
    known = migrations(schema, folder)
    newer = [one.number for one in done if one.phase == "contract" and one.number not in {migration.number for migration in known}]
    if newer:
        raise WrongStore(
            f"the store has schema {newer[-1]}, this program knows {max(migration.number for migration in known)}",
            code="newer_schema",
            hint="upgrade taskmill on this machine; the store was left as it is",
        )
    numbers = {one.number for one in done}
    missing = [migration for migration in known if migration.number not in numbers]
    first = [migration for migration in missing if migration.phase == "expand"]
    return first + [migration for migration in missing if migration.phase == "contract" and contract]


async def upgrade(pool: Pool, *, contract: bool = False, report: Callable[[str], None] = lambda _: None, folder: Traversable = MIGRATIONS) -> list[str]:
    """Bring the store to this program's schema. What was applied, by name."""
    schema = pool.target.schema
    async with pool.transaction() as connection:
        missing = await pending(connection, schema, contract=contract, folder=folder)
    names = []
    for migration in missing:
        try:
            async with pool.transaction() as connection:
                fresh = await _apply(connection, migration, pool.target.patience // MILLISECOND, schema)
        except StoreError as error:
            if error.code != "store_error":
                raise
            hint = "nothing of it was applied; `taskmill db verify` says whether somebody changed the schema"
            raise StoreError(f"the migration {migration.title} failed: {error.message}", code="migration_failed", hint=hint) from None
        if fresh:
            names.append(migration.title)
            report(migration.title)
    return names


async def _apply(connection: Connection, migration: Migration, patience: int, schema: str) -> bool:
    """Whether it was still to do: another program may have been faster. Waiting for locks is bounded: whoever comes behind a DDL statement waits too."""
    await connection.execute(f"SET LOCAL lock_timeout TO {patience}")
    await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", TURN, schema)
    if migration.number in {one.number for one in await applied(connection, schema)}:
        return False
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
        await connection.execute(filled("CREATE SCHEMA {schema}", schema))
    await connection.execute(filled("SET LOCAL search_path TO {schema}; SET LOCAL client_min_messages TO warning;" + LEDGER, schema))
    await connection.execute(migration.statements)
    await connection.execute(filled(NOTE, schema), migration.number, migration.name, migration.phase, migration.checksum)
    return True


async def verify(connection: Connection, schema: str, folder: Traversable = MIGRATIONS) -> list[str]:
    """What is wrong with the store: missing migrations, others than this program's, or objects that somebody removed or changed by hand."""
    missing = await pending(connection, schema, folder=folder)
    done = {one.number: one for one in await applied(connection, schema)}
    problems = [f"migration {migration.title} is not applied" for migration in missing]
    here = [migration for migration in migrations(schema, folder) if migration.number in done]
    problems += [
        f"migration {one.title} was applied from another file than this program's"
        for one in here
        if done[one.number].checksum not in {one.checksum, *one.earlier}
    ]
    return problems + differences(made(migration.statements for migration in here), await present(connection, schema))


def script(missing: list[Migration], schema: str, version: str) -> str:
    """These migrations as a DBA can read them and run them with psql; one that was applied meanwhile ends the script at its row."""
    head = [f"-- Taskmill {version}, schema {schema}: {len(missing)} migration{'' if len(missing) == 1 else 's'}"]
    if not missing:
        return head[0] + "; up to date\n"
    head.append("\\set ON_ERROR_STOP on")
    return "\n".join([*head, *(_written(migration, schema) for migration in missing)])


def _written(migration: Migration, schema: str) -> str:
    values = (str(migration.number), *(f"'{text}'" for text in (migration.name, migration.phase, migration.checksum)))
    note = NOTE
    for number, value in enumerate(values, 1):
        note = note.replace(f"${number}", value)
    start = "CREATE SCHEMA IF NOT EXISTS {schema};\nSET LOCAL search_path TO {schema};\n" if migration.number == 1 else "SET LOCAL search_path TO {schema};\n"
    lines = (
        f"\n-- {migration.title} ({migration.phase})",
        f"BEGIN;\nDO $$ BEGIN PERFORM pg_advisory_xact_lock({TURN}, hashtext('{schema}')); END $$;",
        filled(f"{start}{LEDGER};\n{note};", schema),
        migration.statements.strip(),
        "COMMIT;\n",
    )
    return "\n".join(lines)
