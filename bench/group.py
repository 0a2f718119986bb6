"""Programs that are measured from outside: started together, watched through /proc with all their children, stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Group", "Usage", "cpu_of"]

PATIENCE = 30.0
"""Seconds for a program to end by itself, once it was asked to."""

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """Of a program and everything it started: CPU in seconds so far, resident bytes and processes now."""

    cpu: float
    memory: int
    processes: int


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    ticks: int
    pages: int
    ended: bool


class Group:
    """Each program is a session of its own; whatever it starts belongs to it, by session or by descent."""

    def __init__(self, commands: Sequence[Sequence[str]], environ: Mapping[str, str], folder: Path, log: Path) -> None:
        self.log = log
        settings = {**os.environ, **environ}
        with log.open("ab") as output:
            self.programs = [
                subprocess.Popen(command, env=settings, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
                for command in commands
            ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return all(program.poll() is None for program in self.programs)

    def usage(self) -> Usage:
        own = list(self._own())
        return Usage(sum(one.ticks for one in own) / TICKS, sum(one.pages for one in own) * PAGE, sum(not one.ended for one in own))

    def words(self) -> str:
        """The end of what the programs wrote: why one that ended has ended."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2_000:]

    def stop(self) -> None:
        """Asked first, killed when that does not help; nothing of the session is left."""
        for program in self.programs:
            if program.poll() is None:
                program.terminate()
        end = time.monotonic() + PATIENCE
        for program in self.programs:
            try:
                program.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                program.kill()
        left = [one.pid for one in self._own()]
        for pid in left:
            _kill(pid)
        for program in self.programs:
            program.wait()

    def _own(self) -> Iterator[_Process]:
        return _descended({program.pid for program in self.programs})


def cpu_of(leaders: set[int]) -> float:
    """Seconds so far, of these processes and all they started."""
    return sum(one.ticks for one in _descended(leaders)) / TICKS


def _descended(leaders: set[int]) -> Iterator[_Process]:
    everyone = list(_everyone())
    own = {one.pid for one in everyone if one.pid in leaders or one.session in leaders}
    grown = True
    while grown:
        more = {one.pid for one in everyone if one.parent in own} - own
        own |= more
        grown = bool(more)
    return (one for one in everyone if one.pid in own)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _everyone() -> Iterator[_Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            yield _parsed(int(folder.name), text)


def _parsed(pid: int, text: str) -> _Process:
    """The name of a program stands in parentheses and may hold anything; CPU includes that of children it has waited for."""
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    return _Process(pid, parent=int(fields[1]), session=int(fields[3]), ticks=ticks, pages=int(fields[21]), ended=fields[0] in "ZX")
