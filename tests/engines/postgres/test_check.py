"""`check`: each thing that the server cannot promise is found where it is so, and not where it is not."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmill.config import Secret
from taskmill.engine import Durability, Finding
from taskmill.engines.postgres import check as checking
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.schema import PostgresSchema
from taskmill.engines.postgres.target import parse
from tests.engines.postgres.tools import opened
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres


@pytest.fixture
async def pool(postgres_url: str) -> AsyncIterator[Pool]:
    async with opened(postgres_url) as made:
        yield made


@pytest.fixture
def own(private_postgres: Postgres) -> Postgres:
    """A server of one's own with a store in it."""
    PostgresSchema(parse(private_postgres.url())).upgrade()
    return private_postgres


async def found(pool: Pool, *, long_held: float = 300) -> dict[str, Finding]:
    findings = await checking.check(pool, long_held=long_held)
    assert len({finding.code for finding in findings}) == len(findings)
    assert all(finding.hint for finding in findings if finding.level != "info")
    assert all("\n" not in finding.message + finding.hint for finding in findings)
    return {finding.code: finding for finding in findings}


async def codes(server: Postgres, **changes: object) -> dict[str, str]:
    async with opened(server.url(), **changes) as pool:
        return {code: finding.level for code, finding in (await found(pool)).items()}


async def test_a_server_that_is_well(own: Postgres) -> None:
    assert await codes(own) == {"postgres": "info"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum_naptime": "61s"},
            {"fsync_off": "error", "full_page_writes_off": "warning", "synchronous_commit_off": "warning", "autovacuum_naptime": "warning"},
        ),
        (
            {"autovacuum": "off", "autovacuum_naptime": "61s", "max_connections": 12, "superuser_reserved_connections": 2},
            {"autovacuum_off": "error", "too_few_connections": "error"},
        ),
        (
            {"track_counts": "off", "autovacuum_naptime": "60s", "max_connections": 14, "superuser_reserved_connections": 2},
            {"autovacuum_off": "error", "few_connections": "warning"},
        ),
        ({"default_transaction_read_only": "on", "synchronous_commit": "local"}, {"read_only": "error"}),
    ],
    ids=lambda value: next(iter(value)),
)
async def test_settings_of_the_server(own: Postgres, settings: dict[str, object], expected: dict[str, str]) -> None:
    own.configure(**settings)
    own.restart()
    assert await codes(own) == {"postgres": "info"} | expected


async def test_the_durability_asked_for(pool: Pool, postgres_url: str) -> None:
    async with opened(postgres_url, durability=Durability.LOCAL) as local:
        assert (await found(local))["durability_local"].level == "warning"
    assert "durability_local" not in await found(pool)


async def test_a_synchronous_standby(own: Postgres) -> None:
    with own.standby(synchronous=True) as standby:
        assert await codes(own, durability=Durability.REPLICATED) == {"postgres": "info"}
        own.query("ALTER ROLE postgres SET synchronous_commit = local")
        assert "synchronous_commit_local" in await codes(own, durability=Durability.REPLICATED)
        assert "standby" in await codes(standby)
        async with opened(own.url(), durability=Durability.REPLICATED) as pool:
            standby.stop()
            assert (await found(pool))["no_standby"].level == "error"


async def test_a_pooler(pgbouncer: PgBouncer, postgres_url: str) -> None:
    async with opened(pgbouncer.through(postgres_url)) as pooled:
        assert (await found(pooled))["pooler"].level == "info"


async def test_a_transaction_held_open(pool: Pool) -> None:
    async with pool.transaction() as holder:
        await holder.execute("SELECT txid_current()")
        finding = (await found(pool, long_held=0))["held_by_transaction"]
        assert finding.level == "warning"
        assert f"process {holder.get_server_pid()} (taskmill of " in finding.message
        assert "held_by_transaction" not in await found(pool)
    assert "held_by_transaction" not in await found(pool, long_held=0)


async def test_a_prepared_transaction_and_an_unused_slot(own: Postgres) -> None:
    own.configure(max_prepared_transactions=2, wal_level="logical")
    own.restart()
    own.query("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
    async with opened(own.url()) as pool:
        connection = await pool.connect()
        try:
            await connection.execute("BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'left'")
        finally:
            await connection.close()
        findings = await found(pool, long_held=0)
    assert "left of postgres" in findings["held_by_prepared"].message
    assert "slot forgotten" in findings["held_by_slot"].message


async def test_a_schema_that_is_behind_or_ahead(postgres_url: str, pool: Pool) -> None:
    async with opened(postgres_url, schema="nothing_here") as empty:
        finding = (await found(empty))["schema_behind"]
        assert (finding.level, finding.hint) == ("error", "taskmill db upgrade")
    await pool.fetch("INSERT INTO taskmill.migration VALUES (9998, 'later', 'expand', '', 0)")
    assert not {"schema_behind", "newer_schema"} & (await found(pool)).keys()
    await pool.fetch("INSERT INTO taskmill.migration VALUES (9999, 'later', 'contract', '', 0)")
    assert (await found(pool))["newer_schema"].level == "error"


async def test_what_waits_for_the_last_older_program(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "0001_tables.sql").write_text("")
    (tmp_path / "9000_later.sql").write_text("-- phase: contract\nDROP TABLE task;")
    finding = {finding.code: finding for finding in await checking.check(pool, folder=tmp_path)}["contract_pending"]
    assert finding.level == "info"
    assert "9000 later" in finding.message


async def test_a_user_s_rights(postgres_url: str, pool: Pool) -> None:
    role = f"app_{secrets.token_hex(4)}"
    await pool.fetch(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    try:
        async with opened(postgres_url, user=role, password=Secret("pw")) as app:
            finding = (await found(app))["no_rights"]
            assert finding.level == "error"
            assert "USAGE ON SCHEMA taskmill" in finding.message
            for statement in finding.hint.partition(": ")[2].split("; "):
                await pool.fetch(statement)
            findings = await found(app)
            assert "no_rights" not in findings
            assert findings["sees_only_own"].level == "info"
            await pool.fetch(f"GRANT pg_read_all_stats TO {role}")
            assert "sees_only_own" not in await found(app)
            await pool.fetch(f"REVOKE DELETE ON taskmill.task FROM {role}")
            assert (await found(app))["no_rights"].message == "this user lacks rights: DELETE task"
    finally:
        await pool.fetch(f"DROP OWNED BY {role}")
        await pool.fetch(f"DROP ROLE {role}")
    assert "no_rights" not in await found(pool)
