"""`taskmill db upgrade|plan|verify`: on stores of every condition, at once, and stopped in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from taskmill.cli import main
from taskmill.engines.sqlite import migrate, schema
from taskmill.engines.sqlite.sql import migrations

COMMAND = [sys.executable, "-c", "import sys; from taskmill.cli import main; sys.exit(main())"]
TITLES = [f"{number:04d} {name}" for number, name, _ in migrations()]
LAST = TITLES[-1]
VERBS = ("upgrade", "plan", "verify")


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither settings of this machine nor its folders."""
    for name in [name for name in os.environ if name.startswith("TASKMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def made(store: Path) -> Path:
    assert main(["db", "upgrade", "--url", url(store)]) == 0
    return store


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def run(capsys: pytest.CaptureFixture[str], verb: str, path: Path, *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["db", verb, "--url", url(path), *more])
    said = capsys.readouterr()
    return code, said.out, said.err


def files(path: Path) -> dict[str, bytes]:
    return {found.name: found.read_bytes() for found in path.parent.iterdir() if found.is_file()}


def change(path: Path, statement: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(statement)


# A store that is well


def test_plan_of_a_store_that_is_not_there_makes_none(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", store)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [f"pending {LAST}", f"{store}: {len(migrations())} migrations to apply with `taskmill db upgrade`"]
    assert files(store) == {}


def test_upgrade_makes_a_store_and_tells_each_migration(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "upgrade", store)
    assert (code, err) == (0, "")
    assert out.splitlines() == [*(f"applied {number:04d} {name}" for number, name, _ in migrations()), f"{store}: {len(migrations())} migrations applied"]
    assert list(files(store)) == [store.name]


def test_upgrade_of_a_store_that_is_up_to_date_changes_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(made)
    assert run(capsys, "upgrade", made) == (0, f"{made}: up to date\n", "")
    assert files(made) == before


def test_looking_at_a_store_changes_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(made)
    assert run(capsys, "plan", made) == (0, f"{made}: up to date\n", "")
    assert run(capsys, "verify", made) == (0, f"{made}: in order\n", "")
    assert files(made) == before


def test_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", store, "--json")
    assert (code, json.loads(out)) == (0, {"store": str(store), "pending": [f"{number:04d} {name}" for number, name, _ in migrations()]})
    run(capsys, "upgrade", store)
    code, out, _ = run(capsys, "plan", store, "--json")
    assert (code, json.loads(out)) == (0, {"store": str(store), "pending": []})
    code, out, _ = run(capsys, "verify", store, "--json")
    assert (code, json.loads(out)) == (0, {"store": str(store), "ok": True, "problems": []})


def test_an_older_store_gets_only_what_it_lacks(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    number = migrations()[-1][0] + 1
    later = [*migrations(), (number, "later", "CREATE TABLE taskmill_later (one INTEGER);")]
    for module in (migrate, schema):
        monkeypatch.setattr(module, "migrations", lambda: later)
    title = f"{number:04d} later"
    code, out, _ = run(capsys, "verify", made)
    assert (code, out.splitlines()[0]) == (1, f"problem: migration {title} is not applied")
    assert run(capsys, "plan", made)[1].splitlines()[0] == f"pending {title}"
    assert run(capsys, "upgrade", made)[1].splitlines() == [f"applied {title}", f"{made}: 1 migration applied"]
    assert run(capsys, "verify", made) == (0, f"{made}: in order\n", "")


def test_a_database_with_tables_of_its_own_is_a_store_too(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(store, "CREATE TABLE invoice (number INTEGER PRIMARY KEY); INSERT INTO invoice VALUES (7)")
    assert run(capsys, "upgrade", store)[0] == 0
    assert run(capsys, "verify", store)[0] == 0
    with closing(apsw.Connection(str(store))) as connection:
        assert connection.execute("SELECT number FROM invoice").fetchall() == [(7,)]


# Where the store is named


def test_the_store_of_the_environment(store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMILL_URL", url(store))
    assert main(["db", "upgrade"]) == 0
    assert f"{store}: {len(migrations())} migrations applied" in capsys.readouterr().out


def test_a_relative_path_starts_at_the_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskmill.toml").write_text('url = "sqlite:///data/tasks.db"\n', encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert main(["db", "plan"]) == 0
    assert str(tmp_path / "data" / "tasks.db") in capsys.readouterr().out


def test_without_a_word_it_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "upgrade"]) == 0
    assert str(tmp_path / "taskmill.db") in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sqlite:///", "the SQLite URL names no file (write sqlite:///taskmill.db)"),
        ("sqlite://:memory:", "a store in memory ends with its program (name a file: sqlite:///taskmill.db)"),
        (
            "kafka://localhost",
            "the kafka engine is not part of this version (use sqlite:///path/to/taskmill.db, postgresql://user@host/database or redis://host:6379/0)",
        ),
        ("sqlit:///x.db", "there is no engine 'sqlit' (did you mean sqlite://?)"),
    ],
)
def test_a_url_that_names_no_file(verb: str, given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", verb, "--url", given]) == 2
    said_here = capsys.readouterr()
    assert (said_here.out, said_here.err) == ("", f"taskmill: url: {said}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", verb, "--help"]) == 0
    assert f"Example:\n    taskmill db {verb}" in capsys.readouterr().out


# A store that is not


def refused(capsys: pytest.CaptureFixture[str], verb: str, path: Path, *said: str) -> None:
    """One line with a hint, exit 1, and everything as it was."""
    before = files(path)
    code, out, err = run(capsys, verb, path)
    assert (code, out) == (1, "")
    assert err.startswith("taskmill: ")
    assert err.count("\n") == 1
    assert all(part in err for part in said), err
    assert files(path) == before


def test_verify_of_a_store_that_is_not_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "verify", store, "there is no store at", "(`taskmill db upgrade` makes one)")


@pytest.mark.parametrize("verb", VERBS)
def test_a_newer_schema_is_refused(verb: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(made, "INSERT INTO taskmill_migration VALUES (9999, 'of_tomorrow', 0)")
    refused(capsys, verb, made, "the store has schema 9999", "(upgrade taskmill on this machine; the store was left as it is)")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("content", [b"hello\n", b"-- a dump\nCREATE TABLE x (y);\n" * 500], ids=["short", "long"])
def test_a_file_that_is_no_database(verb: str, content: bytes, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.write_bytes(content)
    refused(capsys, verb, store, "is not a SQLite database", "(name another file; this one was left as it is)")


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory(verb: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.mkdir()
    refused(capsys, verb, store, f"{store} is a directory", f"(name a file in it, for example {store / 'taskmill.db'})")


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_directory(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "absent"
    code, out, err = run(capsys, verb, missing / "store.db")
    assert (code, out) == (1, "")
    assert err == f"taskmill: url: the directory {missing} does not exist (make it first: mkdir -p {missing})\n"
    assert not missing.exists()


def damage(path: Path) -> None:
    """Every page but the first and those of the schema is noise."""
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half:] = b"\xa5" * (len(content) - half)
    path.write_bytes(content)


def test_verify_finds_damage(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(made)
    before = files(made)
    code, out, err = run(capsys, "verify", made)
    assert (code, err) == (1, "")
    assert out.startswith("problem: ")
    code, out, _ = run(capsys, "verify", made, "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False
    assert json.loads(out)["problems"]
    assert files(made) == before


@pytest.mark.parametrize("verb", ["plan", "upgrade"])
def test_a_file_whose_schema_cannot_be_read(verb: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(made.read_bytes())
    content[100:4096] = b"\xa5" * 3996
    made.write_bytes(content)
    refused(capsys, verb, made, "is damaged", "(restore it from a backup; `taskmill db verify` tells more)")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP INDEX taskmill_task_plain", "taskmill_task_plain is missing"),
        ("DROP TABLE taskmill_outbox", "taskmill_outbox is missing"),
        ("ALTER TABLE taskmill_task ADD COLUMN mine TEXT", "taskmill_task differs from what this program makes"),
    ],
)
def test_verify_finds_a_schema_changed_by_hand(statement: str, problem: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(made, statement)
    code, out, _ = run(capsys, "verify", made)
    assert code == 1
    assert f"problem: {problem}" in out.splitlines()


# Without the right to write: root may do everything, so the child gives its rights away

UNPRIVILEGED = """
import contextlib, io, os, sys
from taskmill.cli import main
import taskmill.engines.sqlite.schema
with contextlib.redirect_stderr(io.StringIO()):  # everything is imported while it may be read
    assert main(["db", "plan", "--url", "sqlite://:memory:"]) == 2
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main())
"""


@pytest.fixture
def shown_folder() -> Iterator[Path]:
    """A folder that everybody may enter (those of pytest are private)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def run_unprivileged(folder: Path, verb: str) -> tuple[int, str, str]:
    arguments = [sys.executable, "-c", UNPRIVILEGED, "db", verb, "--url", url(folder / "store.db")]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("verb", ["plan", "upgrade"])
def test_a_read_only_directory(verb: str, shown_folder: Path) -> None:
    shown_folder.chmod(0o555)
    said = f"taskmill: url: the directory {shown_folder} is read-only (give this user the right to write to it)\n"
    assert run_unprivileged(shown_folder, verb) == (1, "", said)
    assert list(shown_folder.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_file(verb: str, shown_folder: Path) -> None:
    store = shown_folder / "store.db"
    assert main(["db", "upgrade", "--url", url(store)]) == 0
    store.chmod(0o444)
    before = files(store)
    said = f"taskmill: url: {store} is read-only (give this user the right to write to it and to its directory)\n"
    assert run_unprivileged(shown_folder, verb) == (1, "", said)
    assert files(store) == before


# Several at once, and stopped in the middle


AT_ONCE = """
import sys
from taskmill.cli import main
import taskmill.cli.db, taskmill.engines.sqlite.schema
print(flush=True)
sys.stdin.read()
sys.exit(main())
"""


def test_programs_that_upgrade_at_once(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All wait at a pipe until all are ready; each migration is applied by exactly one of them."""
    arguments = [sys.executable, "-c", AT_ONCE, "db", "upgrade", "--url", url(store)]
    children = [subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        child.stdin = None
    said = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0, 0], said
    assert sum(out.count("applied 0001") for out, _ in said) == 1
    assert run(capsys, "verify", store) == (0, f"{store}: in order\n", "")


KILLED = """
import os, signal, sys
import apsw
from taskmill.cli import main

left = int(sys.argv.pop(1))

def count(cursor, statement, bindings):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return True

def trace(connection):
    connection.exec_trace = count

apsw.connection_hooks.append(trace)
code = main()
print(left)
sys.exit(code)
"""


def upgrade_killed_at(store: Path, statement: int) -> tuple[int, int]:
    """The exit code, and how many statements were left when it came to its end."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(statement), "db", "upgrade", "--url", url(store)], capture_output=True, text=True, check=False)
    return done.returncode, int(done.stdout.splitlines()[-1]) if done.returncode == 0 else 0


def test_an_upgrade_that_is_killed_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the first statement, at the last, and at several between: what is there is the old schema or the new one, and upgrade goes on from it."""
    code, left = upgrade_killed_at(tmp_path / "whole.db", 10_000)
    statements = 10_000 - left
    assert code == 0
    assert statements > 40
    for number in {1, 2, 5, 10, statements // 2, statements - 2, statements - 1, statements}:
        store = tmp_path / f"killed-{number}.db"
        assert upgrade_killed_at(store, number)[0] == -signal.SIGKILL
        pending = [line.removeprefix("pending ") for line in run(capsys, "plan", store)[1].splitlines()[:-1]]
        assert pending, number
        assert pending == TITLES[-len(pending) :], number
        assert run(capsys, "upgrade", store)[1].splitlines()[:-1] == [f"applied {title}" for title in pending]
        assert run(capsys, "verify", store) == (0, f"{store}: in order\n", "")


def test_another_s_open_transaction_is_waited_for_as_long_as_the_settings_say(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(made, "DELETE FROM taskmill_migration")
    monkeypatch.setenv("TASKMILL_BUSY_TIMEOUT", "10ms")
    with closing(apsw.Connection(str(made))) as other:
        other.execute("BEGIN IMMEDIATE")
        code, out, err = run(capsys, "upgrade", made)
    assert (code, out) == (1, "")
    assert err.startswith("taskmill: another program has been writing to the store all this time (look for a transaction left open")


def test_a_reader_that_went_away_does_not_stop_an_upgrade(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*COMMAND, "db", "upgrade", "--url", url(store)], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert done.stderr == b""
    assert run(capsys, "verify", store) == (0, f"{store}: in order\n", "")
