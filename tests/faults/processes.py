"""Starting the programs of `program.py` and waiting for their words."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["GENEROUS", "Program", "started"]

GENEROUS = 300.0
"""Seconds after which a word that has not come never will; nothing is judged by it."""
ROOT = Path(__file__).parents[2]


class Program:
    """A running program of ours."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.heard: list[str] = []

    async def hear(self, word: str) -> list[str]:
        """The rest of the next line that begins with this word."""
        assert self.process.stdout is not None
        async with asyncio.timeout(GENEROUS):
            while line := await self.process.stdout.readline():
                self.heard.append(line.decode().rstrip())
                first, *rest = line.decode().split()
                if first == word:
                    return rest
        raise AssertionError(f"it ended without {word!r}; last words {self.heard[-5:]}, errors {await self._errors()}")

    async def _errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()[-4_000:]

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def done(self) -> list[str]:
        """Let it come to its end, which must be a good one; all that it said."""
        self.end_input()
        async with asyncio.timeout(GENEROUS):
            said, errors = await self.process.communicate()
        assert self.process.returncode == 0, f"it failed: {errors.decode()[-4_000:]}\n{said.decode()[-2_000:]}"
        return [*self.heard, *said.decode().splitlines()]


@contextlib.asynccontextmanager
async def started(what: str, store: Path | str, history: Path, *options: object, module: str = "tests.faults.program") -> AsyncIterator[Program]:
    """A program that does not outlive the test."""
    command = [sys.executable, "-m", module, what, str(store), str(history), *map(str, options)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        await process.communicate()
