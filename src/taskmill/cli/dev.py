"""`taskmill dev`: everything, started anew whenever a source file changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from taskmill.cli.options import example
from taskmill.cli.serving import up_options
from taskmill.config import FILE_NAME

__all__ = ["dev"]

LOOK_EVERY = 0.5
MOST_FILES = 10_000
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}


@example("taskmill dev app.py")
@click.command()
@up_options
def dev(target: str, **options: Any) -> int:
    """Run an app, and again whenever its files change.

    It runs as with `taskmill up`. Watched are the .py files and taskmill.toml in the folder of the app and below.
    A change that does not import is reported, and the next one is waited for.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    folder = _folder(target)
    arguments = [sys.executable, "-m", "taskmill", "up", "--with-parent", target, *_flags(options)]
    # What Python compiled it takes again if the file is as long and of the same second, so that a quick change would not be seen.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    while not stop.is_set():
        seen = _stamps(folder)
        # A session of its own: Ctrl-C in the terminal means this process, which passes it on once.
        process = subprocess.Popen(arguments, env=environment, start_new_session=True)
        _wait_for_change(folder, seen, stop)
        _end(process)
        if not stop.is_set():
            click.echo("taskmill: a file has changed, starting anew", err=True)
    return 0


def _folder(target: str) -> Path:
    path = Path(target.split(":", maxsplit=1)[0])
    return path.resolve().parent if path.suffix == ".py" else Path.cwd()


def _flags(options: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in options.items():
        flag = "--queue" if name == "queues" else f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif isinstance(value, tuple):
            flags += [part for one in value for part in (flag, one)]
        elif value is not None and value is not False:
            flags += [flag, str(value)]
    return flags


def _wait_for_change(folder: Path, seen: dict[Path, int], stop: threading.Event) -> None:
    while not stop.wait(LOOK_EVERY):
        if _stamps(folder) != seen:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait()


def _stamps(folder: Path) -> dict[Path, int]:
    """When each source file was last written; bounded, for a folder that is somebody's whole disk."""
    stamps: dict[Path, int] = {}
    for path in islice(_sources(folder), MOST_FILES):
        with contextlib.suppress(OSError):
            stamps[path] = path.stat().st_mtime_ns
    return stamps


def _sources(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        yield from (Path(parent, name) for name in files if name.endswith(".py") or name == FILE_NAME)
