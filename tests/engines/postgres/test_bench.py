"""The benchmark's own tools on a server: its raw loop, its watch, and its private server; how fast anything is, is no matter of a test."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from bench import postgres_server
from bench.postgres_server import Server
from bench.raw_postgres import claim_and_finish
from bench.stores import Databases
from bench.watch import Watch


def test_the_raw_loop_finishes_every_job(postgres_url: str) -> None:
    assert claim_and_finish(postgres_url, 1_050, 100, "{}") > 0
    assert asyncio.run(value(postgres_url, "SELECT count(*) FROM job WHERE state = 2 AND attempts = 1")) == 1_050


def test_a_watch_sees_when_nothing_is_left(postgres_url: str) -> None:
    with Watch(postgres_url, "SELECT false") as watch:
        assert watch.emptied(5.0) is not None
    with Watch(postgres_url, "SELECT true") as watch, pytest.raises(RuntimeError, match="have not ended: SELECT true"):
        watch.emptied(0.0)


def test_without_a_statement_there_is_nothing_to_watch() -> None:
    with Watch("sqlite:///nothing.db", "") as watch:
        assert watch.emptied(5.0) is None


@pytest.fixture(scope="module")
def server(postgres: object) -> Iterator[Server]:
    """Where the tests have no server the benchmark has none; its folder must be open to another user, which those of pytest are not."""
    with postgres_server.started(Path(tempfile.gettempdir())) as server:
        yield server


def test_a_private_server_waits_for_the_disk_and_leaves_nothing(postgres: object) -> None:
    with postgres_server.started(Path(tempfile.gettempdir())) as server:
        settings = {name: server.execute(f"SHOW {name}") for name in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")}
        assert set(settings.values()) == {"on"}
        assert Databases(server).release.startswith("PostgreSQL ")
        pid, folder = server.pid, server.folder
        assert server.cpu() >= 0
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_database_is_gone_after_its_block_whoever_is_connected(server: Server) -> None:
    async def scene() -> str:
        with server.database() as url:
            connection = await asyncpg.connect(url)
            name = await connection.fetchval("SELECT current_database()")
        connection.terminate()
        return str(name)

    name = asyncio.run(scene())
    assert server.execute(f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == "0"


def test_statements_are_counted_whichever_way_they_are_sent(server: Server) -> None:
    async def scene(url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("SELECT 1")
        await connection.fetch("SELECT $1::int", 2)
        async with connection.transaction():
            await connection.fetch("SELECT $1::int", 3)
        await connection.close()

    with server.database() as url:
        sent = server.trace(url)
        asyncio.run(scene(url))
        assert sent() == 5


async def value(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
