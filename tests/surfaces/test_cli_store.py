"""Every command on a store that is not there, cannot be written, is locked or of no use: one line, soon, and nothing is made."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from taskmill.cli import store
from tests.surfaces.cli_tools import Cli

ID = "018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e"
COMMANDS = [
    ["task", "list"],
    ["task", "get", ID],
    ["task", "attempts", ID],
    ["task", "wait", ID],
    ["task", "tail"],
    ["task", "cancel", ID, "--yes"],
    ["task", "requeue", "--all", "--yes"],
    ["task", "delete", "--all", "--yes"],
    ["dead", "list"],
    ["dead", "purge", "--all", "--yes"],
    ["queue", "list"],
    ["queue", "pause", "mail"],
    ["queue", "purge", "mail", "--yes"],
    ["type", "list"],
    ["schedule", "list"],
    ["schedule", "put", "morning", "@daily", "--type", "report"],
    ["schedule", "delete", "morning", "--yes"],
    ["workers", "list"],
    ["workers", "stop", "--all", "--yes"],
    ["submit", "mail", "--queue", "out"],
    ["check"],
]
EACH = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))


@EACH
def test_no_store(cli: Cli, command: list[str]) -> None:
    absent = cli.folder / "absent.db"
    said = cli.bare(*command, "--url", f"sqlite:///{absent}")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"taskmill: url: there is no store of this version at {absent} (`taskmill db upgrade` makes or upgrades it")
    assert said.err.count("\n") == 1
    assert not absent.exists()


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("sqlite:///absent/store.db", 1, "does not exist (make it first"),
        ("sqlite:////", 2, "names no file"),
        ("sqlite://:memory:", 2, "a store in memory ends with its program"),
        ("kafka://127.0.0.1:1", 2, "the kafka engine is not part of this version"),
        ("sqlit:///x.db", 2, "did you mean sqlite://?"),
    ],
)
def test_a_url_that_is_wrong(cli: Cli, url: str, code: int, said: str) -> None:
    answer = cli.bare("task", "list", "--url", url)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_a_file_that_is_no_store(cli: Cli) -> None:
    path = cli.folder / "notes.txt"
    path.write_text("hello\n" * 1_000, encoding="utf-8")
    answer = cli.bare("task", "list", "--url", f"sqlite:///{path}")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "is not a SQLite database" in answer.err
    assert path.read_text(encoding="utf-8") == "hello\n" * 1_000


def test_a_store_of_a_newer_program(cli: Cli) -> None:
    with closing(apsw.Connection(str(cli.path))) as connection:
        connection.execute("INSERT INTO taskmill_migration VALUES (9999, 'of_tomorrow', 0)")
    answer = cli("task", "list")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "the store has schema 9999" in answer.err


def test_a_store_that_another_program_keeps_locked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits: it gives up long before a worker would. (The patience itself is shortened here.)"""
    assert store.PATIENCE <= 5_000_000
    monkeypatch.setattr(store, "PATIENCE", 50_000)
    with closing(apsw.Connection(str(cli.path))) as connection:
        connection.execute("BEGIN IMMEDIATE")
        answer = cli("submit", "mail", "--queue", "out")
        connection.execute("ROLLBACK")
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert cli.ids() == []


def test_the_store_of_the_settings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.submit("mail")
    monkeypatch.setenv("TASKMILL_URL", cli.url)
    assert len(cli.bare("task", "list").lines) == 1
    monkeypatch.delenv("TASKMILL_URL")
    (cli.folder / "taskmill.toml").write_text('url = "sqlite:///store.db"\n', encoding="utf-8")
    (cli.folder / "deep").mkdir()
    monkeypatch.chdir(cli.folder / "deep")
    assert len(cli.bare("task", "list").lines) == 1


# Without the right to write: root may do everything, so the child gives its rights away

UNPRIVILEGED = """
import contextlib, io, os, sys
from taskmill.cli import main
import taskmill.cli.task, taskmill.engines.sqlite.engine, taskmill.engines.sqlite.schema
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


@pytest.mark.parametrize("command", [["task", "list"], ["submit", "mail", "--queue", "out"]], ids=["list", "submit"])
def test_a_read_only_store(shown_folder: Path, command: list[str]) -> None:
    made = Cli(shown_folder)
    made.path.chmod(0o444)
    arguments = [sys.executable, "-c", UNPRIVILEGED, *command, "--url", made.url]
    done = subprocess.run(arguments, cwd=shown_folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"taskmill: url: {made.path} is read-only (give this user the right to write to it and to its directory)\n"
