"""A `taskmill worker` that is measured from outside: started, watched with all its processes, stopped."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from taskmill.cli.bench_app import QUEUE, TARGET
from taskmill.errors import StoreError
from taskmill.operations import Operations

__all__ = ["Usage", "Worker", "working"]

PATIENCE = 60.0
"""Seconds for its processes to come up, and again for them to end."""

_PROC = Path("/proc")


class Usage(NamedTuple):
    """CPU in seconds so far and resident bytes now, of the supervisor and all that it started."""

    cpu: float
    memory: int


@asynccontextmanager
async def working(url: str, processes: int) -> AsyncIterator[Worker]:
    """A supervisor with so many processes, on the store of this URL; it ends with the block."""
    with tempfile.TemporaryFile() as words:
        program = _start(url, processes, words)
        try:
            yield Worker(program, words, processes)
        finally:
            program.terminate()
            await _gone(program)


def _start(url: str, processes: int, words: IO[bytes]) -> subprocess.Popen[bytes]:
    """A session of its own: Ctrl-C is for the bench, which then ends its worker."""
    command = [sys.executable, "-m", "taskmill", "worker", TARGET, "--processes", str(processes), "--log-level", "warning"]
    environ = {**os.environ, "TASKMILL_URL": url}
    return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True)


async def _gone(program: subprocess.Popen[bytes]) -> None:
    try:
        await asyncio.to_thread(program.wait, PATIENCE)
    except subprocess.TimeoutExpired:
        program.kill()
        await asyncio.to_thread(program.wait)


class Worker:
    """A worker that was started; its words are what it writes."""

    def __init__(self, program: subprocess.Popen[bytes], words: IO[bytes], processes: int) -> None:
        self._program = program
        self._words = words
        self._processes = processes

    async def joined(self, operations: Operations) -> None:
        """All its processes are registered."""
        async with asyncio.timeout(PATIENCE):
            while sum(QUEUE in worker.queues and worker.alive for worker in await operations.workers()) < self._processes:
                self.check()
                await asyncio.sleep(0.02)

    def check(self) -> None:
        """It still runs; otherwise its own words say why not."""
        if (code := self._program.poll()) is not None:
            self._words.seek(0)
            lines = self._words.read().decode(errors="replace").strip().splitlines()
            raise StoreError(f"the worker ended with {code}: {lines[-1][:500] if lines else 'it said nothing'}", code="worker_ended")

    def usage(self) -> Usage | None:
        """None where the system does not tell."""
        if not _PROC.is_dir():
            return None
        own = [_read(pid) for pid in _family(self._program.pid)]
        return Usage(sum(one.cpu for one in own), sum(one.memory for one in own))


def _family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                yield from _family(int(child))


def _read(pid: int) -> Usage:
    """Of one process, with the CPU of children that it has waited for; nothing when it has ended meanwhile."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return Usage(0.0, 0)
    return Usage(sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
