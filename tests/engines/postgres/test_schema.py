"""The schema seen from outside, with the engine's own migrations: made, in order, known to whoever asks, also from a running loop."""

from __future__ import annotations

import asyncio

import pytest

from taskmill import engines
from taskmill.engines.postgres.schema import PostgresSchema
from taskmill.engines.postgres.sql import migrations
from taskmill.engines.postgres.target import parse
from taskmill.errors import InvalidSettings, StoreError, WrongStore
from tests.engines.postgres.tools import opened, url_with
from tests.servers.postgres import Postgres

TITLES = [migration.title for migration in migrations("taskmill") if migration.phase == "expand"]


@pytest.mark.parametrize("schema", ["taskmill", "user", "_" + "x" * 62])
def test_a_store_is_made_and_is_in_order(empty_url: str, schema: str) -> None:
    store = engines.schema(url_with(empty_url, schema=schema))
    assert isinstance(store, PostgresSchema)
    assert store.plan() == TITLES
    told: list[str] = []
    assert store.upgrade(told.append) == told == TITLES
    assert (store.plan(), store.verify(), store.upgrade()) == ([], [], [])


def test_the_script_makes_the_same_store(empty_url: str) -> None:
    """Run as psql runs it, but for psql's own command in it."""
    store = engines.schema(empty_url)
    script = store.sql()
    assert "\\set ON_ERROR_STOP on\n" in script
    asyncio.run(_run(empty_url, script.replace("\\set ON_ERROR_STOP on\n", "")))
    assert (store.plan(), store.verify()) == ([], [])


async def _run(url: str, script: str) -> None:
    async with opened(url) as pool:
        connection = await pool.connect(plain=True)
        try:
            await connection.execute(script)
        finally:
            await connection.close()


async def test_from_a_running_loop(empty_url: str) -> None:
    store = engines.schema(empty_url)
    assert store.upgrade() == TITLES
    assert store.verify() == []
    with pytest.raises(InvalidSettings):
        engines.schema("postgresql://h/").plan()
    with pytest.raises(WrongStore):
        engines.schema(url_with(empty_url, schema="other")).verify()


def test_no_store_to_verify(empty_url: str) -> None:
    with pytest.raises(WrongStore) as caught:
        engines.schema(empty_url).verify()
    assert (caught.value.code, caught.value.hint) == ("no_store", "`taskmill db upgrade` makes one")


def test_its_text_names_the_store_without_the_password() -> None:
    assert str(PostgresSchema(parse("postgresql://me:s3cr3t@h/d?schema=x"))) == "postgresql://me@h/d?schema=x"


def test_a_standby_can_be_looked_at_and_not_upgraded(private_postgres: Postgres) -> None:
    store = engines.schema(private_postgres.url())
    store.upgrade()
    with private_postgres.standby(synchronous=True) as standby:
        there = engines.schema(standby.url())
        assert (there.plan(), there.verify()) == ([], [])
        with pytest.raises(StoreError) as caught:
            there.upgrade()
        assert caught.value.code == "read_only"


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    for make in (engines.schema, engines.create):
        with pytest.raises(InvalidSettings) as caught:
            make("postgresql://h/d")
        assert (caught.value.code, caught.value.hint) == ("missing_driver", "pip install 'taskmill[postgres]'")
