"""Migrations: each whole or not at all, in turn, in two phases; and what `verify` sees of a schema that somebody changed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from taskmill.clock import SECOND
from taskmill.config import Secret
from taskmill.engines.postgres import migrate, sql
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.objects import made
from taskmill.errors import StoreError, WrongStore
from tests.engines.postgres.tools import opened
from tests.servers.pgbouncer import PgBouncer

FIRST = """-- The first.
CREATE TABLE thing (
  id    uuid PRIMARY KEY,
  pair  numeric(4, 2)[] NOT NULL DEFAULT '{1.5,2}', -- a comma, and a bracket: )
  "Odd" text CHECK ("Odd" <> 'a;b'),
  UNIQUE (pair, "Odd")
);
CREATE INDEX thing_pair ON thing (pair) WHERE "Odd" IS NOT NULL;
CREATE SEQUENCE seq;
CREATE VIEW things AS SELECT * FROM {schema}.thing;
CREATE FUNCTION name_of() RETURNS text LANGUAGE sql AS $$ SELECT '{schema_name}'; $$;
CREATE PROCEDURE empty_it() LANGUAGE plpgsql AS $body$ BEGIN DELETE FROM thing; END $body$;
"""
SECOND_ONE = """ALTER TABLE thing ADD COLUMN size bigint, ADD COLUMN "Name" text;
CREATE OR REPLACE FUNCTION name_of() RETURNS text LANGUAGE sql AS $$ SELECT 'two' $$;
"""
THIRD = """-- phase: contract
DROP VIEW things;
ALTER TABLE thing DROP COLUMN "Odd";
DROP INDEX IF EXISTS thing_pair;
"""
FOURTH = "CREATE TABLE other (id int);\n"


@pytest.fixture
async def pool(empty_url: str) -> AsyncIterator[Pool]:
    async with opened(empty_url, schema="tasks") as made_one:
        yield made_one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text(FIRST)
    (tmp_path / "0002_second.sql").write_text(SECOND_ONE)
    (tmp_path / "README.md").write_text("not a migration")
    return tmp_path


async def plan(pool: Pool, folder: Path, *, contract: bool = False) -> list[str]:
    async with pool.connection() as connection:
        return [one.title for one in await migrate.pending(connection, pool.target.schema, contract=contract, folder=folder)]


async def problems(pool: Pool, folder: Path) -> list[str]:
    async with pool.connection() as connection:
        return await migrate.verify(connection, pool.target.schema, folder)


async def schemas(pool: Pool) -> set[str]:
    return {row[0] for row in await pool.fetch("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)'")}


# Applying


async def test_what_is_missing_is_applied_in_order_and_told(pool: Pool, folder: Path) -> None:
    assert await plan(pool, folder) == ["0001 first", "0002 second"]
    assert await schemas(pool) == set()
    told: list[str] = []
    assert await migrate.upgrade(pool, report=told.append, folder=folder) == told == ["0001 first", "0002 second"]
    assert await plan(pool, folder) == []
    assert await migrate.upgrade(pool, folder=folder) == []
    assert await schemas(pool) == {"tasks"}
    assert await pool.fetchval("SELECT tasks.name_of()") == "two"
    rows = await pool.fetch("SELECT number, name, phase, length(checksum), applied_at > 1700000000000000 FROM tasks.migration ORDER BY number")
    assert [tuple(row) for row in rows] == [(1, "first", "expand", 64, True), (2, "second", "expand", 64, True)]


async def test_an_older_store_gets_only_what_it_lacks(pool: Pool, folder: Path) -> None:
    await migrate.upgrade(pool, folder=folder)
    (folder / "0004_fourth.sql").write_text(FOURTH)
    assert await migrate.upgrade(pool, folder=folder) == ["0004 fourth"]


async def test_two_schemas_of_one_database_do_not_know_each_other(empty_url: str, pool: Pool, folder: Path) -> None:
    async with opened(empty_url, schema="user") as other:  # a word of SQL
        for one in (pool, other):
            assert await migrate.upgrade(one, folder=folder) == ["0001 first", "0002 second"]
            assert await problems(one, folder) == []
    assert await schemas(pool) == {"tasks", "user"}


async def test_a_migration_that_fails_leaves_nothing(pool: Pool, folder: Path) -> None:
    (folder / "0001_first.sql").write_text(FIRST + "SELECT 1 / 0;")
    with pytest.raises(StoreError):
        await migrate.upgrade(pool, folder=folder)
    assert await schemas(pool) == set()
    (folder / "0001_first.sql").write_text(FIRST)
    (folder / "0002_second.sql").write_text(SECOND_ONE + "SELECT 1 / 0;")
    with pytest.raises(StoreError) as caught:
        await migrate.upgrade(pool, folder=folder)
    assert (caught.value.code, caught.value.message) == ("migration_failed", "the migration 0002 second failed: PostgreSQL refused the step: division by zero")
    assert await plan(pool, folder) == ["0002 second"]
    (folder / "0002_second.sql").write_text(SECOND_ONE)
    assert await migrate.upgrade(pool, folder=folder) == ["0002 second"]
    assert await problems(pool, folder) == []


async def test_many_at_once_take_turns(empty_url: str, pool: Pool, folder: Path) -> None:
    async def upgrade() -> list[str]:
        async with opened(empty_url, schema="tasks") as one:
            return await migrate.upgrade(one, folder=folder)

    applied = await asyncio.gather(*(upgrade() for _ in range(8)))
    assert sorted(title for titles in applied for title in titles) == ["0001 first", "0002 second"]
    assert await problems(pool, folder) == []


async def test_one_that_dies_in_the_middle_is_followed_by_the_next(empty_url: str, pool: Pool, folder: Path) -> None:
    (folder / "0002_second.sql").write_text(SECOND_ONE + "SELECT pg_terminate_backend(pg_backend_pid());")
    async with opened(empty_url, schema="tasks") as dying:
        with pytest.raises(StoreError):
            await migrate.upgrade(dying, folder=folder)
    (folder / "0002_second.sql").write_text(SECOND_ONE)
    assert await migrate.upgrade(pool, folder=folder) == ["0002 second"]
    assert await problems(pool, folder) == []


async def test_a_lock_that_somebody_holds_is_not_waited_for_for_ever(empty_url: str, pool: Pool, folder: Path) -> None:
    """Everybody who comes behind a waiting ALTER TABLE waits too."""
    (folder / "0002_second.sql").rename(folder / "later")
    await migrate.upgrade(pool, folder=folder)
    (folder / "later").rename(folder / "0002_second.sql")
    async with pool.transaction() as connection, opened(empty_url, schema="tasks", busy_timeout=SECOND) as other:
        await connection.fetch("SELECT * FROM tasks.thing")
        with pytest.raises(StoreError) as caught:
            await migrate.upgrade(other, folder=folder)
    assert caught.value.code == "store_busy"
    assert await plan(pool, folder) == ["0002 second"]


async def test_behind_a_pooler(pgbouncer: PgBouncer, empty_url: str, folder: Path) -> None:
    async with opened(pgbouncer.through(empty_url), schema="tasks") as pooled:
        assert await migrate.upgrade(pooled, folder=folder) == ["0001 first", "0002 second"]


async def test_a_schema_that_the_dba_made_needs_no_right_to_make_schemas(empty_url: str, pool: Pool, folder: Path) -> None:
    role = f"owner_{pool.target.database.rpartition('_')[2]}_{secrets.token_hex(3)}"
    await pool.fetch(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    try:
        async with opened(empty_url, schema="tasks", user=role, password=Secret("pw")) as owner:
            with pytest.raises(WrongStore) as caught:
                await migrate.upgrade(owner, folder=folder)
            assert caught.value.code == "no_rights"
            await pool.fetch(f"CREATE SCHEMA tasks AUTHORIZATION {role}")
            assert await migrate.upgrade(owner, folder=folder) == ["0001 first", "0002 second"]
    finally:
        await pool.fetch(f"DROP OWNED BY {role}")
        await pool.fetch(f"DROP ROLE {role}")


# Phases


async def test_contract_comes_after_everything_and_only_when_asked_for(pool: Pool, folder: Path) -> None:
    (folder / "0003_third.sql").write_text(THIRD)
    (folder / "0004_fourth.sql").write_text(FOURTH)
    assert await plan(pool, folder) == ["0001 first", "0002 second", "0004 fourth"]
    assert await plan(pool, folder, contract=True) == ["0001 first", "0002 second", "0004 fourth", "0003 third"]
    await migrate.upgrade(pool, folder=folder)
    assert (await plan(pool, folder), await problems(pool, folder)) == ([], [])
    assert await pool.fetch('SELECT "Odd" FROM tasks.things') == []
    assert await migrate.upgrade(pool, contract=True, folder=folder) == ["0003 third"]
    assert await problems(pool, folder) == []


async def test_while_a_deploy_rolls_the_program_before_goes_on(pool: Pool, folder: Path) -> None:
    """The store is ahead of it by what was added; when something was taken away, it is refused."""
    await migrate.upgrade(pool, folder=folder)
    (folder / "0004_fourth.sql").write_text(FOURTH)
    await migrate.upgrade(pool, folder=folder)
    (folder / "0004_fourth.sql").unlink()
    assert (await plan(pool, folder), await problems(pool, folder), await migrate.upgrade(pool, folder=folder)) == ([], [], [])
    (folder / "0003_third.sql").write_text(THIRD)
    await migrate.upgrade(pool, contract=True, folder=folder)
    (folder / "0003_third.sql").unlink()
    for look in (plan(pool, folder), problems(pool, folder), migrate.upgrade(pool, folder=folder)):
        with pytest.raises(WrongStore) as caught:
            await look
        assert caught.value.code == "newer_schema"
        assert caught.value.message == "the store has schema 3, this program knows 2"


# Verifying


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("DROP INDEX tasks.thing_pair", ["index thing_pair is missing"]),
        ("ALTER TABLE tasks.thing DROP COLUMN size", ["column thing.size is missing"]),
        ('ALTER TABLE tasks.thing RENAME "Name" TO name', ["column thing.Name is missing"]),
        ("DROP SEQUENCE tasks.seq", ["sequence seq is missing"]),
        ("DROP VIEW tasks.things", ["view things is missing"]),
        ("DROP FUNCTION tasks.name_of", ["function name_of is missing"]),
        ("DROP PROCEDURE tasks.empty_it", ["procedure empty_it is missing"]),
        ("DROP TABLE tasks.thing CASCADE", ["table thing is missing", "index thing_pair is missing", "view things is missing"]),
        (
            "CREATE OR REPLACE FUNCTION tasks.name_of() RETURNS text LANGUAGE sql AS $$ SELECT 'three' $$",
            ["function name_of differs from what this program makes"],
        ),
        ("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tasks.thing_pair'::regclass", ["index thing_pair is missing"]),
        ("DELETE FROM tasks.migration WHERE number = 2", ["migration 0002 second is not applied", "function name_of differs from what this program makes"]),
        ("UPDATE tasks.migration SET checksum = '' WHERE number = 1", ["migration 0001 first was applied from another file than this program's"]),
        ("CREATE TABLE tasks.more ()", []),
    ],
)
async def test_what_somebody_changed_by_hand(pool: Pool, folder: Path, change: str, found: list[str]) -> None:
    await migrate.upgrade(pool, folder=folder)
    assert await problems(pool, folder) == []
    await pool.fetch(change)
    assert await problems(pool, folder) == found


def test_what_the_text_of_a_migration_makes() -> None:
    assert made([FIRST, SECOND_ONE]) == {
        "table thing": "",
        "column thing.id": "",
        "column thing.pair": "",
        "column thing.Odd": "",
        "column thing.size": "",
        "column thing.Name": "",
        "index thing_pair": "",
        "sequence seq": "",
        "view things": "",
        "function name_of": " SELECT 'two' ",
        "procedure empty_it": " BEGIN DELETE FROM thing; END ",
    }
    dropped = made([FIRST, "DROP TABLE thing; DROP FUNCTION name_of(), other(int); DROP SEQUENCE IF EXISTS a, seq CASCADE;", THIRD])
    assert set(dropped) == {"procedure empty_it"}


# The script


async def test_the_script_does_the_same(pool: Pool, folder: Path) -> None:
    (folder / "0003_third.sql").write_text(THIRD)
    await _run(pool, await _script(pool, folder))
    assert (await plan(pool, folder), await problems(pool, folder)) == ([], [])
    await _run(pool, await _script(pool, folder, contract=True))
    assert (await plan(pool, folder, contract=True), await problems(pool, folder)) == ([], [])
    assert (await _script(pool, folder)).endswith("0 migrations; up to date\n")


async def test_a_script_that_comes_too_late_changes_nothing(pool: Pool, folder: Path) -> None:
    script = await _script(pool, folder)
    await migrate.upgrade(pool, folder=folder)
    with pytest.raises(asyncpg.UniqueViolationError):
        await _run(pool, script)
    assert await problems(pool, folder) == []


async def _script(pool: Pool, folder: Path, *, contract: bool = False) -> str:
    async with pool.connection() as connection:
        missing = await migrate.pending(connection, "tasks", contract=contract, folder=folder)
    return migrate.script(missing, "tasks", "1.0")


async def _run(pool: Pool, script: str) -> None:
    """As psql does, but for its own command in it."""
    connection = await pool.connect(plain=True)
    try:
        await connection.execute(script.replace("\\set ON_ERROR_STOP on\n", ""))
    finally:
        connection.terminate()


# The files


def test_named_statements_and_the_schema_s_name(tmp_path: Path) -> None:
    (tmp_path / "x.sql").write_text("-- name: one\nSELECT '{}' FROM {schema}.a;\n\n-- name: two\nNOTIFY {schema_name}\n")
    queries = sql.load("x.sql", "user", tmp_path)
    assert (queries.one, queries.two) == ("SELECT '{}' FROM \"user\".a", "NOTIFY user")
    with pytest.raises(AttributeError, match="no query is named 'three'"):
        _ = queries.three


@pytest.mark.parametrize(("name", "text"), [("first.sql", ""), ("1_first.sql", ""), ("0001_first.sql", "-- phase: shrink\n")])
def test_a_file_that_is_not_a_migration_is_a_mistake_of_ours(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AssertionError):
        sql.migrations("tasks", tmp_path)


def test_our_own_are_numbered_without_a_gap_or_a_repeat() -> None:
    numbers = [migration.number for migration in sql.migrations("tasks")]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1
