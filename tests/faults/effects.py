"""What handlers did, written down by themselves: one line each in a file that all processes append to, so that even a killed one has said it.

The store says what counts; these lines say what happened. A begin without its end is an attempt that was cut off, and two begins of one
task are two attempts, whatever the store made of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from taskmill.clock import SECOND, SystemClock

__all__ = ["Effects", "Line", "note", "percentile", "until"]

PATIENCE = 60.0
"""Seconds after which what has not come never will; nothing is judged by it."""
LOOK = 0.01

Found = TypeVar("Found")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a process did; `at` is the monotonic clock, which all processes share."""

    what: Literal["process", "joined", "begin", "end"]
    pid: int
    parent: int
    at: int
    task: str = ""
    attempt: int = 0
    token: int = 0
    worker: str = ""


def note(path: Path, what: Literal["process", "joined", "begin", "end"], *, task: str = "", attempt: int = 0, token: int = 0, worker: str = "") -> None:
    """A single write: a line is there as a whole or not at all."""
    line = Line(what, os.getpid(), os.getppid(), SystemClock().monotonic(), task, attempt, token, worker)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(file)


class Effects:
    """The lines that are there, read as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        with self._path.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]
        return self._lines

    def of(self, what: str, *, tasks: Collection[str] | None = None, pids: Collection[int] | None = None) -> list[Line]:
        return [line for line in self.lines() if line.what == what and (tasks is None or line.task in tasks) and (pids is None or line.pid in pids)]

    async def count(self, n: int, what: str, *, tasks: Collection[str] | None = None, pids: Collection[int] | None = None) -> list[Line]:
        """Wait for this many of them."""
        return await until(lambda: found if len(found := self.of(what, tasks=tasks, pids=pids)) >= n else None, f"{n} lines of {what}")

    def reruns(self, dead: Iterable[int], since: int) -> list[int]:
        """How long after this moment each task that had begun in one of these processes began again elsewhere, in microseconds."""
        gone = frozenset(dead)
        last: dict[str, Line] = {}
        found: dict[str, int] = {}
        for line in self.of("begin"):
            if line.at > since and line.task not in found and line.task in last and last[line.task].pid in gone:
                found[line.task] = line.at - since
            last[line.task] = line
        return list(found.values())


async def until(look: Callable[[], Found | None], what: str, patience: float = PATIENCE) -> Found:
    """The first answer that is not None; for what other processes do without telling anybody."""
    deadline = time.monotonic() + patience
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:.0f} s: {what}")
        await asyncio.sleep(LOOK)
    return found


def percentile(times: list[int], part: float) -> float:
    """In seconds."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] / SECOND
