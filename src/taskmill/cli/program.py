"""The program `taskmill`: its table of commands, and how it ends.

Whatever a command raises becomes one line on stderr and an exit code: 2 when the caller must write something else (usage,
InvalidInput), 1 when the step failed, 130 on Ctrl-C. A reader that went away (`| head`) is no error worth a word.
An exception that is none of these is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from taskmill.cli.groups import LazyCommand, LazyGroup
from taskmill.errors import InvalidInput, TaskmillError

__all__ = ["COMMANDS", "main", "program"]

FAILED = 1
USAGE = 2
INTERRUPTED = 130

COMMANDS = {
    "api": LazyCommand("taskmill.cli.api", "api", "Serve a store over HTTP and gRPC."),
    "bench": LazyCommand("taskmill.cli.bench", "bench", "Measure submits, drains and waits on a store."),
    "check": LazyCommand("taskmill.cli.check", "check", "Say what the store cannot promise and what holds work up."),
    "config": LazyCommand("taskmill.cli.config", "config", "Show the settings in force."),
    "db": LazyCommand("taskmill.cli.db", "db", "Make, upgrade and verify the schema of a store."),
    "dead": LazyCommand("taskmill.cli.dead", "dead", "Look at dead letters, run them again, throw them away."),
    "dev": LazyCommand("taskmill.cli.dev", "dev", "Run an app, and again whenever its files change."),
    "init": LazyCommand("taskmill.cli.init", "init", "Write an app to start from, and taskmill.toml."),
    "key": LazyCommand("taskmill.cli.key", "key", "Make, list and revoke API keys."),
    "kit": LazyCommand("taskmill.cli.kit", "kit", "Test workers in other languages against the protocol."),
    "leader": LazyCommand("taskmill.cli.leader", "leader", "Show which process leads."),
    "limit": LazyCommand("taskmill.cli.limit", "limit", "List, put and drop limits."),
    "queue": LazyCommand("taskmill.cli.queue", "queue", "List, set, pause, resume and purge queues."),
    "schedule": LazyCommand("taskmill.cli.schedule", "schedule", "List, put, pause and trigger schedules."),
    "scheduler": LazyCommand("taskmill.cli.scheduler", "scheduler", "Look after a store without running tasks."),
    "submit": LazyCommand("taskmill.cli.submit", "submit", "Submit a task by the name of its type."),
    "task": LazyCommand("taskmill.cli.task", "task", "Look at tasks, wait for them, follow them, change them."),
    "type": LazyCommand("taskmill.cli.type", "type_", "List, pause and resume types."),
    "up": LazyCommand("taskmill.cli.up", "up", "Run an app: its workers, its schedules, all upkeep, and the API."),
    "version": LazyCommand("taskmill.cli.version", "version", "Show the version of Taskmill and of Python."),
    "worker": LazyCommand("taskmill.cli.worker", "worker", "Run the tasks of an app."),
    "workers": LazyCommand("taskmill.cli.workers", "workers", "List workers; let them pause, go quiet, stop, resume."),
}


def program() -> LazyGroup:
    """The top group; its summaries come from the table, so that help imports no command."""
    return LazyGroup("taskmill", COMMANDS, summary="Background tasks: one model, one API, real stores behind it.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit code."""
    _speak_any_language()
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        answer = program().main(args=arguments, prog_name="taskmill", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except click.Abort:
        return _complain("interrupted", INTERRUPTED)
    except TaskmillError as error:
        return _complain(str(error), USAGE if isinstance(error, InvalidInput) else FAILED)
    return answer if isinstance(answer, int) else 0


def _complain(message: str, code: int) -> int:
    """One line, whatever the message holds: what came from outside must not draw on the terminal."""
    line = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in " ".join(message.split()))
    click.echo(f"taskmill: {line}", err=True)
    return code


def _speak_any_language() -> None:
    """What a stream of another encoding cannot say is written as an escape, never a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Python flushes stdout once more on its way out; give it somewhere to write to."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
