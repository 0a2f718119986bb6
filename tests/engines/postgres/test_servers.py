"""The servers of the tests themselves: ours, gone when they should be, and missed loudly."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.servers import pgbouncer as poolers
from tests.servers.databases import Databases
from tests.servers.existing import URL, Server
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres, Stop, started
from tests.servers.processes import ended
from tests.servers.programs import FOLDERS, Absent
from tests.servers.programs import postgres as programs

ROOT = Path(__file__).parents[3]
GENEROUS = 120.0

PROBE = """
def test_database(postgres):
    print("DATABASE", postgres.databases.empty())

def test_variables(postgres):
    import os
    assert not [name for name in os.environ if name.startswith("TASKMILL_TEST_")]

def test_pooler(pgbouncer):
    assert pgbouncer.pid
"""
HOLD = """
import sys
from tests.servers import guard
from tests.servers.postgres import started

with started() as server:
    print(*server.processes(), guard.pid(), server.folder, flush=True)
    sys.stdin.read()
"""


def schema(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE seed (number int PRIMARY KEY); INSERT INTO seed VALUES (1), (2)")
        connection.execute("CREATE TABLE row (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, seed int REFERENCES seed)")


@pytest.fixture
def databases(postgres: Server) -> Iterator[Databases]:
    databases = Databases(postgres.url(), schema)
    yield databases
    databases.drop_all()


def content(url: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("INSERT INTO row (seed) VALUES (1) RETURNING id").fetchall()
        connection.rollback()
        connection.execute("SELECT setval('row_id_seq', 1, false)")
        return rows, connection.execute("SELECT number FROM seed ORDER BY 1").fetchall()


FRESH = ([(1,)], [(1,), (2,)])


@pytest.mark.parametrize("change", [
    "SELECT 1",
    "INSERT INTO row (seed) VALUES (1), (2)",
    "DELETE FROM seed WHERE number = 2; INSERT INTO row (seed) VALUES (1)",
    "UPDATE seed SET number = 3 WHERE number = 1",
    "TRUNCATE seed CASCADE",
    "SELECT setval('row_id_seq', 77)",
])  # fmt: skip
def test_a_database_that_comes_back_is_emptied(databases: Databases, change: str) -> None:
    url = databases.give()
    assert content(url) == FRESH
    with psycopg.connect(url) as connection:
        connection.execute(change.encode())
    databases.take_back(url)
    assert databases.give() == url, "it was thrown away"
    assert content(url) == FRESH


@pytest.mark.parametrize("change", [
    "CREATE TABLE another (id int)",
    "DROP TABLE row",
    "ALTER TABLE row ADD COLUMN name text",
    "CREATE INDEX ON row (seed)",
    "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA another",
    "ALTER TABLE row SET (fillfactor = 50)",
    "CREATE VIEW another AS SELECT 1",
])  # fmt: skip
def test_a_database_whose_schema_was_changed_is_not_given_again(databases: Databases, change: str) -> None:
    url = databases.give()
    with psycopg.connect(url) as connection:
        connection.execute(change.encode())
    databases.take_back(url)
    again = databases.give()
    assert again != url
    assert content(again) == FRESH
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_who_is_still_in_a_database_is_thrown_out(databases: Databases) -> None:
    url = databases.give()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO row (seed) VALUES (1)")
        databases.take_back(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert content(databases.give()) == FRESH


def test_the_server_that_answers_is_ours(private_postgres: Postgres) -> None:
    server = private_postgres
    assert server.query("SELECT current_setting('cluster_name'), current_setting('fsync')") == [(server.name, "on")]
    (backend,) = server.query("SELECT pg_backend_pid()")[0]
    assert backend > 0
    assert int((server.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]) == server.pid
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url().replace(server.password, "guess"))


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_what_was_committed_is_there_after_a_restart(private_postgres: Postgres, mode: Stop) -> None:
    server = private_postgres
    server.query("CREATE TABLE kept AS SELECT 7 AS value")
    before = server.pid
    server.restart(mode)
    assert (server.query("SELECT value FROM kept"), server.pid != before) == ([(7,)], True)


def test_kill_leaves_nothing(private_postgres: Postgres) -> None:
    server = private_postgres
    with psycopg.connect(server.url(), autocommit=True) as connection:
        family = server.processes()
        assert connection.info.backend_pid in family
        server.stop("kill")
        assert all(gone(pid) for pid in family)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    segment = server.data / "postmaster.pid"
    key = int(segment.read_text(encoding="utf-8").splitlines()[6].split()[0])
    assert key in segments()
    server.close()
    assert (server.folder.exists(), key in segments()) == (False, False)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except FileNotFoundError:
        return True


def segments() -> set[int]:
    return {int(line.split()[0]) for line in Path("/proc/sysvipc/shm").read_text(encoding="utf-8").splitlines()[1:]}


def test_a_server_does_not_outlive_the_process_that_started_it() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        *pids, folder = holder.stdout.readline().split()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert (len(pids) > 2, all(ended(int(pid), GENEROUS) for pid in pids), Path(folder).exists()) == (True, True, False)


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_standby_follows_and_is_promoted(private_postgres: Postgres, synchronous: bool) -> None:
    with private_postgres.standby(synchronous=synchronous) as standby:
        assert standby.query("SELECT pg_is_in_recovery()") == [(True,)]
        private_postgres.query("CREATE TABLE kept AS SELECT 7 AS value")
        (position,) = private_postgres.query("SELECT pg_current_wal_lsn()::text")[0]
        if not synchronous:
            standby.until(f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{position}'")
        private_postgres.stop("kill")
        standby.promote()
        assert standby.query("INSERT INTO kept VALUES (8) RETURNING value") == [(8,)]
        assert standby.query("SELECT value FROM kept ORDER BY 1") == [(7,), (8,)]


def test_a_pooler_gives_a_connection_for_a_transaction_only(postgres: Server, pgbouncer: PgBouncer) -> None:
    with psycopg.connect(pgbouncer.through(postgres.url())) as first, psycopg.connect(pgbouncer.through(postgres.url())) as second:
        (one,) = first.execute("SELECT pg_backend_pid()").fetchone() or ()
        first.commit()
        (two,) = second.execute("SELECT pg_backend_pid()").fetchone() or ()
        assert (one == two, first.info.backend_pid != one) == (True, True)
    assert {row["pool_mode"] for row in pgbouncer.ask("SHOW POOLS") if row["database"] != "pgbouncer"} == {"transaction"}


def test_a_pooler_has_as_many_connections_as_it_was_told(postgres: Server) -> None:
    with (
        poolers.started(postgres.url(), pool_size=1, query_wait_timeout=1) as pooler,
        psycopg.connect(pooler.through(postgres.url())) as first,
        psycopg.connect(pooler.through(postgres.url())) as second,
    ):
        first.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
            second.execute("SELECT 1")


def run(folder: Path, *options: str, probe: str = PROBE, **variables: str) -> subprocess.CompletedProcess[str]:
    """Another pytest over our conftest, with a test that wants a database."""
    (folder / "tests").mkdir()
    for name in ("__init__.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    (folder / "tests" / "servers").symlink_to(ROOT / "tests" / "servers")
    (folder / "tests" / "test_probe.py").write_text(probe, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith(("TASKMILL_TEST_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rP", *options, "tests"]
    return subprocess.run(command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, check=False)


def test_an_existing_server_is_used_and_left_as_it_was(tmp_path: Path, private_postgres: Postgres) -> None:
    before = private_postgres.query("SELECT datname FROM pg_database ORDER BY 1")
    result = run(tmp_path, "-n", "0", **{URL: private_postgres.url()})
    made = re.search(r"^DATABASE (\S+)$", result.stdout, re.MULTILINE)
    assert (result.returncode, made is not None) == (0, True), result.stdout
    assert made is not None
    assert urlsplit(made.group(1)).port == private_postgres.port
    assert private_postgres.query("SELECT datname FROM pg_database ORDER BY 1") == before


@pytest.mark.parametrize(("workers", "variables", "code"), [("0", {}, 0), ("2", {"CI": "false"}, 0), ("2", {"CI": "true"}, 1)])
def test_a_missing_server_is_said_loudly(tmp_path: Path, workers: str, variables: dict[str, str], code: int) -> None:
    result = run(tmp_path, "-n", workers, **{FOLDERS: str(tmp_path / "nothing"), **variables})
    line = "PostgreSQL is not installed: 3 tests of its engine were skipped; apt-get install postgresql, or set TASKMILL_TEST_POSTGRES"
    assert (result.returncode, result.stdout.count(line)) == (code, 1), result.stdout


def test_a_missing_pooler_is_said_loudly(tmp_path: Path, private_postgres: Postgres) -> None:
    result = run(tmp_path, "-n", "0", **{URL: private_postgres.url(), FOLDERS: str(tmp_path / "nothing"), "CI": "true"})
    assert (result.returncode, "PgBouncer is not installed: 1 tests behind it were skipped; apt-get install pgbouncer" in result.stdout) == (1, True)


def test_make_says_what_it_cannot_install(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "servers.py")]
    result = subprocess.run(command, env={"PATH": str(tmp_path), FOLDERS: str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")
    assert "not installed: curl postgresql pgbouncer redis-server prometheus; the tests that need them will be skipped" in result.stderr


def test_an_old_or_incomplete_server_is_none(tmp_path: Path) -> None:
    for name in ("postgres", "initdb", "pg_basebackup"):
        with pytest.raises(Absent, match="PostgreSQL is not installed"):
            programs(str(tmp_path))
        (tmp_path / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.9'\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(Absent):
        programs(str(tmp_path))
    (tmp_path / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 14.1 (Debian 14.1-1)'\n", encoding="utf-8")
    assert programs(str(tmp_path)) == tmp_path


def test_a_server_that_cannot_start_says_why_and_leaves_nothing() -> None:
    with pytest.raises(AssertionError, match="shared_buffers"), started(shared_buffers="nonsense"):
        pass
