"""How the program `taskmill` finds its commands, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import metadata

import click
import pytest

from taskmill.cli import main, program
from taskmill.cli.groups import LazyCommand, NounGroup
from taskmill.errors import InvalidInput, InvalidSettings, StoreError, TaskmillError

COMMAND = [sys.executable, "-c", "import sys; from taskmill.cli import main; sys.exit(main())"]


@click.group(cls=NounGroup)
def noun() -> None:
    """A noun with verbs."""


@noun.command()
def upgrade() -> None:
    """A verb."""


@click.command()
@click.argument("kind")
def fail(kind: str) -> None:
    """Raise what a command may raise."""
    raise FAILURES[kind]


FAILURES: dict[str, BaseException] = {
    "input": InvalidInput("is empty", field="queue", hint="name one"),
    "settings": InvalidSettings("unknown key 'ur'", hint="did you mean 'url'?"),
    "store": StoreError("the store is busy", hint="try again"),
    "lines": TaskmillError("one\ntwo\x1b[2J"),
    "file": FileNotFoundError(2, "No such file or directory", "missing.json"),
    "interrupt": KeyboardInterrupt(),
    "usage": click.UsageError("give one of both"),
    "bug": ZeroDivisionError("ours"),
}


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, command in {"noun": "noun", "fail": "fail"}.items():
        monkeypatch.setitem(program.COMMANDS, name, LazyCommand(__name__, command, "For tests."))
    monkeypatch.setitem(program.COMMANDS, "broken", LazyCommand("taskmill.cli.absent", "absent", "Cannot be imported."))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "version")
    assert (code, err) == (0, "")
    assert out.startswith(f"taskmill {metadata.version('taskmill')} (Python 3.")


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "broken" in out
    assert all(name in out and entry.summary in out for name, entry in program.COMMANDS.items())


def test_no_command_shows_help_as_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "Commands:" in err


@pytest.mark.parametrize("name", [name for name in program.COMMANDS if name not in {"noun", "fail", "broken"}])
def test_the_line_in_the_table_is_the_command_s_own(name: str) -> None:
    command = program.program().get_command(click.Context(program.program()), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == program.COMMANDS[name].summary


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["versoin"], "did you mean taskmill version?"),
        (["vers"], "did you mean taskmill version?"),
        (["noun", "upgrad"], "did you mean taskmill noun upgrade?"),
        (["noun", "zzz"], "taskmill noun --help lists them: upgrade"),
        (["é\n"], "taskmill --help lists them"),
    ],
)
def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("taskmill: there is no command ")
    assert hint in err
    assert err.count("\n") == 1


def test_an_unknown_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "version", "--hepl")
    assert code == 2
    assert "--help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("input", 2, "taskmill: queue: is empty (name one)\n"),
        ("settings", 2, "taskmill: unknown key 'ur' (did you mean 'url'?)\n"),
        ("store", 1, "taskmill: the store is busy (try again)\n"),
        ("lines", 1, "taskmill: one two\\x1b[2J\n"),
        ("file", 1, "taskmill: missing.json: No such file or directory\n"),
        ("usage", 2, "taskmill: give one of both\n"),
    ],
)
def test_a_failure_is_one_line_and_a_code(capsys: pytest.CaptureFixture[str], kind: str, code: int, line: str) -> None:
    assert run(capsys, "fail", kind) == (code, "", line)


def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fail", "interrupt")
    assert (code, err.strip()) == (130, "taskmill: interrupted")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(["fail", "bug"])


def test_importing_the_program_loads_no_driver() -> None:
    script = "import sys, taskmill, taskmill.cli; print([name for name in ('apsw', 'rich', 'msgspec') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["version"], ["--help"]])
def test_a_reader_that_went_away_is_met_with_silence(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*COMMAND, *arguments], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode in {1, -signal.SIGPIPE}


def test_a_late_flush_to_a_closed_pipe_is_silent_too() -> None:
    script = (
        "import sys; from taskmill.cli import program; "
        "program.program = lambda: type('Late', (), {'main': lambda self, **_: sys.stdout.write('late') and None})(); "
        "sys.exit(program.main([]))"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "version"], stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert done.returncode == 1
    assert done.stderr == "taskmill: [Errno 28] No space left on device\n"
