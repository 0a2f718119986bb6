"""The whole tree of commands: what every one of them has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from taskmill.cli import main, program

DESTRUCTIVE = {"drop", "cancel", "requeue", "delete", "purge", "revoke", "stop"}
READS = {"list", "get", "attempts", "edges", "wait", "tail", "next", "show", "plan", "sql", "verify", "check", "version"}
WRITES = {"create", "submit", "signal", "set", "put", "pause", "resume", "trigger", "quiet", "upgrade", "init"}
OF_OTHERS = {"api", "bench", "dev", "kit", "scheduler", "up", "worker"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


TREE = dict(commands(program.program()))
EACH = pytest.mark.parametrize("path", TREE, ids=" ".join)


def options(path: tuple[str, ...]) -> set[str]:
    return {option for parameter in TREE[path].params for option in parameter.opts}


def test_every_verb_is_of_a_kind() -> None:
    assert {path[-1] for path in TREE} - OF_OTHERS == DESTRUCTIVE | READS | WRITES


@EACH
def test_help_says_what_and_shows_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert (TREE[path].help or "").strip()
    assert "Example:\n    taskmill " in out
    examples = out.partition("Example:")[2].splitlines()
    assert any(f"taskmill {' '.join(path)}" in line for line in examples)


@EACH
def test_every_option_and_argument_is_explained(path: tuple[str, ...]) -> None:
    assert [parameter.name for parameter in TREE[path].params if isinstance(parameter, click.Option) and not parameter.help] == []


@EACH
def test_every_read_speaks_json(path: tuple[str, ...]) -> None:
    if path[-1] in READS:
        assert "--json" in options(path)


@EACH
def test_what_destroys_asks_first(path: tuple[str, ...]) -> None:
    if path[-1] in DESTRUCTIVE:
        assert options(path) >= {"--yes", "--dry-run"}


@EACH
def test_what_knows_a_store_can_be_told_which(path: tuple[str, ...]) -> None:
    if path not in {("init",), ("version",)} and path[0] not in OF_OTHERS:
        assert "--url" in options(path)


@EACH
def test_an_option_that_is_near_is_named(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    longest = max(options(path) & {option for option in options(path) if option.startswith("--")} or {"--help"}, key=len)
    assert main([*path, longest + "x"]) == 2
    err = capsys.readouterr().err
    assert longest in err.replace(longest + "x", "")
    assert err.count("\n") == 1


HEAVY = ("rich", "apsw", "asyncio", "msgspec", "taskmill.engine", "taskmill.operations")


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["task", "--helpp"]], ids=["version", "help", "unknown"])
def test_version_and_help_load_nothing_heavy(arguments: list[str]) -> None:
    heavy = HEAVY if arguments[0] != "task" else ("rich", "apsw")
    script = f"import sys; from taskmill.cli import main; main({arguments!r}); print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
