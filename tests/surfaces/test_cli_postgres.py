"""`taskmill db` on PostgreSQL: stores of every condition, scripts for a DBA, and what a wrong URL or a wrong server is answered with."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from taskmill.cli import main
from taskmill.engines.postgres.sql import migrations
from tests.servers.existing import Server
from tests.servers.pgbouncer import PgBouncer

COMMAND = [sys.executable, "-c", "import sys; from taskmill.cli import main; sys.exit(main())"]
EXPAND = [migration.title for migration in migrations("taskmill") if migration.phase == "expand"]
COUNT = f"{len(EXPAND)} migration{'' if len(EXPAND) == 1 else 's'}"
VERBS = ("upgrade", "plan", "sql", "verify")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither settings of this machine nor its folders."""
    for name in [name for name in os.environ if name.startswith(("TASKMILL_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def running(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["db", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return running


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """A database in which there is nothing."""
    made = postgres.databases.empty()
    try:
        yield made
    finally:
        postgres.databases.drop(urlsplit(made).path.removeprefix("/"))


def without_password(url: str) -> str:
    parts = urlsplit(url)
    assert parts.password
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")))


def changed(url: str, **parts: str) -> str:
    return urlunsplit(urlsplit(url)._replace(**parts))


def ask(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def everything(url: str) -> list[tuple[object, ...]]:
    """What there is in the database."""
    return ask(
        url,
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^(pg_|information_schema)' "
        "UNION ALL SELECT nspname, '' FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1, 2",
    )


# A store that is well


def test_a_store_is_planned_made_and_verified(url: str, run: Run) -> None:
    shown = without_password(url)
    before = everything(url)
    assert run("plan", "--url", url) == (0, "".join(f"pending {title}\n" for title in EXPAND) + f"{shown}: {COUNT} to apply with `taskmill db upgrade`\n", "")
    assert everything(url) == before
    assert run("upgrade", "--url", url) == (0, "".join(f"applied {title}\n" for title in EXPAND) + f"{shown}: {COUNT} applied\n", "")
    after = everything(url)
    assert run("upgrade", "--url", url) == (0, f"{shown}: up to date\n", "")
    assert run("plan", "--url", url) == (0, f"{shown}: up to date\n", "")
    assert run("verify", "--url", url) == (0, f"{shown}: in order\n", "")
    assert everything(url) == after
    assert run("upgrade", "--contract", "--url", url)[0] == 0
    assert run("plan", "--contract", "--url", url) == (0, f"{shown}: up to date\n", "")


def test_json(url: str, run: Run) -> None:
    shown = without_password(url)
    assert json.loads(run("plan", "--url", url, "--json")[1]) == {"store": shown, "pending": EXPAND}
    said = json.loads(run("sql", "--url", url, "--json")[1])
    assert said["store"] == shown
    assert said["script"].startswith("-- Taskmill ")
    run("upgrade", "--url", url)
    assert json.loads(run("verify", "--url", url, "--json")[1]) == {"store": shown, "ok": True, "problems": []}
    ask(url, "DROP TABLE taskmill.migration")
    code, _, err = run("verify", "--url", url, "--json")
    assert (code, "there is no store at" in err) == (1, True)


def test_the_schema_is_a_setting(url: str, run: Run) -> None:
    for name in ("tasks", "user"):
        code, out, _ = run("upgrade", "--url", f"{url}?schema={name}")
        assert (code, out.splitlines()[-1]) == (0, f"{without_password(url)}?schema={name}: {COUNT} applied")
    schemas = {str(name) for name, _ in everything(url)}
    assert schemas == {"public", "information_schema", "tasks", "user"}


def test_the_script_runs_in_psql(url: str, run: Run, tmp_path: Path) -> None:
    """Once; a second time it stops at the first row that is there, with nothing changed."""
    code, out, err = run("sql", "--url", url)
    assert (code, err) == (0, "")
    (tmp_path / "upgrade.sql").write_text(out)
    psql = shutil.which("psql")
    assert psql is not None, "psql comes with PostgreSQL"
    command = [psql, "--no-psqlrc", "--quiet", "--file", str(tmp_path / "upgrade.sql"), url]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (first.returncode, first.stdout) == (0, ""), first.stderr
    assert run("verify", "--url", url)[0] == 0
    assert run("upgrade", "--url", url) == (0, f"{without_password(url)}: up to date\n", "")
    after = everything(url)
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 3
    assert "duplicate key" in second.stderr
    assert everything(url) == after
    assert run("sql", "--url", url)[1].endswith("0 migrations; up to date\n")


def test_two_upgrades_at_once_take_turns(url: str, run: Run) -> None:
    both = [subprocess.Popen([*COMMAND, "db", "upgrade", "--url", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        said = [one.communicate() for one in both]
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert [one.returncode for one in both] == [0, 0], said
    applied = sorted(line for out, _ in said for line in out.splitlines() if line.startswith("applied "))
    assert applied == sorted(f"applied {title}" for title in EXPAND)
    assert run("verify", "--url", url)[0] == 0


def test_behind_a_pooler(pgbouncer: PgBouncer, url: str, run: Run) -> None:
    through = pgbouncer.through(url)
    assert [run(verb, "--url", through)[0] for verb in ("plan", "upgrade", "verify")] == [0, 0, 0]


# A store that is not


def test_a_store_that_somebody_changed(url: str, run: Run) -> None:
    run("upgrade", "--url", url)
    ask(url, "DROP INDEX taskmill.task_held; UPDATE taskmill.migration SET checksum = 'x' WHERE number = 1")
    code, out, _ = run("verify", "--url", url)
    assert (code, out.splitlines()) == (
        1,
        [
            f"problem: migration {EXPAND[0]} was applied from another file than this program's",
            "problem: index task_held is missing",
            f"{without_password(url)}: 2 problems",
        ],
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_schema_from_which_a_newer_program_took_something_away(verb: str, url: str, run: Run) -> None:
    run("upgrade", "--url", url)
    ask(url, "INSERT INTO taskmill.migration VALUES (9999, 'later', 'contract', '', 0)")
    before = everything(url)
    code, out, err = run(verb, "--url", url)
    newest = max(migration.number for migration in migrations("taskmill"))
    hint = "upgrade taskmill on this machine; the store was left as it is"
    assert (code, out, err) == (1, "", f"taskmill: the store has schema 9999, this program knows {newest} ({hint})\n")
    assert everything(url) == before


def test_a_command_on_a_database_without_a_store_makes_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(url)
    assert main(["task", "list", "--url", url]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "there is no store of this version at" in said.err
    assert "taskmill db upgrade" in said.err
    assert everything(url) == before


def test_a_user_without_rights(url: str, run: Run, postgres: Server) -> None:
    role = f"app_{urlsplit(url).path.rpartition('_')[2]}_{os.getpid()}"
    ask(url, f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    try:
        parts = urlsplit(url)
        theirs = urlunsplit(parts._replace(netloc=f"{role}:pw@{parts.hostname}:{parts.port}"))
        before = everything(url)
        code, out, err = run("upgrade", "--url", theirs)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "permission denied" in err
        assert f"GRANT CREATE ON DATABASE {parts.path.removeprefix('/')} TO {role}" in err
        assert everything(url) == before
    finally:
        ask(url, f"DROP ROLE {role}")


# A URL that is wrong


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:s3cr#t@localhost/shop", "there is a # in the URL (percent-encode the password: # as %23"),
        ("postgresql://me:s3cr@t@localhost/shop", "there are two @ before the host of the URL (percent-encode the password: # as %23, @ as %40"),
        ("postgresql://me:s3cr/t@localhost/shop", "an @ stands behind the first / of the URL"),
        ("postgresql://me:s3crt@localhost", "the URL names no database"),
        ("postgresql://me:s3crt@localhost/shop?schema=Shop", "'Shop' is not a name for a schema"),
        ("postgresql://me:s3crt@localhost/shop?shema=shop", "did you mean schema?"),
        ("postgresql://me:s3crt@localhost:99999/shop", "the port of the URL is not one"),
        ("postgresql://me:s3crt@localhost/shop?durability=paper", "'paper' is not one of fsync, local, replicated"),
    ],
)
def test_a_wrong_url(verb: str, url: str, says: str, run: Run) -> None:
    code, out, err = run(verb, "--url", url)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert "s3cr" not in err


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_there(verb: str, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, out, err = run(verb, "--url", f"postgresql://me:s3crt@127.0.0.1:{port}/shop")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"postgresql://me@127.0.0.1:{port}/shop cannot be reached" in err
    assert "s3crt" not in err


def test_no_such_database(url: str, run: Run) -> None:
    code, out, err = run("upgrade", "--url", changed(url, path="/nowhere_at_all"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "there is no database 'nowhere_at_all'" in err
    assert "createdb nowhere_at_all" in err


def test_without_the_driver(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmill.engines.find_spec", lambda _: None)
    assert run("plan", "--url", "postgresql://me@localhost/shop") == (
        2,
        "",
        "taskmill: url: the PostgreSQL engine needs asyncpg (pip install 'taskmill[postgres]')\n",
    )


def test_sqlite_has_no_script(run: Run) -> None:
    assert run("sql", "--url", "sqlite:///store.db") == (
        2,
        "",
        "taskmill: url: a store of SQLite is not upgraded by a script (`taskmill db upgrade` does it)\n",
    )
