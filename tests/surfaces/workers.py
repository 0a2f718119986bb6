"""Programs of ours that run until they are told to end, over a store in a file, and a client of that store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from taskmill.clock import SECOND
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.operations import Operations
from taskmill.task import Attempt, NewTask, Task

__all__ = ["GENEROUS", "Client", "Program", "client", "program", "until"]

GENEROUS = 60.0
"""Seconds after which something that has not come never will; nothing is judged by it."""
ROUND = 0.02


class Program:
    """A program under test; what it says goes to a file, which no copy of it can keep us waiting for."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def said(self) -> str:
        return self.log.read_text(errors="surrogateescape")

    def end(self) -> int:
        """As an operator would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(GENEROUS)


@contextlib.contextmanager
def program(*arguments: str, folder: Path, url: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[Program]:
    """`taskmill …` in this folder, gone afterwards whatever happens; its children go with it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}
    environment |= {f"TASKMILL_{name.upper()}": value for name, value in (settings or {}).items()}
    if url is not None:
        environment["TASKMILL_URL"] = url
    log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskmill", *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )
    try:
        yield Program(process, log)
    finally:
        process.kill()
        process.wait()


class Client:
    """Somebody who submits to the store and looks at it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.operations = Operations(engine)

    async def joined(self, workers: int = 1) -> tuple[str, ...]:
        """Until there are so many live workers; their ids."""
        deadline = time.monotonic() + GENEROUS
        while True:
            found = tuple(worker.id for worker in await self.operations.workers() if worker.alive)
            if len(found) == workers:
                return found
            assert time.monotonic() < deadline, f"there are {len(found)} workers, not {workers}"
            await asyncio.sleep(ROUND)

    async def submit(self, type: str, **arguments: object) -> str:
        return (await self.operations.submit(NewTask(type=type, payload=msgspec.json.encode(arguments)))).id

    async def submit_many(self, new: list[NewTask]) -> list[str]:
        return [answer.id for answer in await self.operations.submit_many(new)]

    async def ended(self, id: str) -> Task:
        return await self.operations.result(id, timeout=int(GENEROUS * SECOND))

    async def run(self, type: str, **arguments: object) -> Task:
        return await self.ended(await self.submit(type, **arguments))

    async def value(self, type: str, **arguments: object) -> object:
        """What it returned; it must have completed."""
        task = await self.run(type, **arguments)
        assert task.state == "completed", task.error
        assert task.result is not None
        return msgspec.json.decode(task.result)

    async def attempts(self, id: str) -> tuple[Attempt, ...]:
        return await self.operations.attempts(id)

    async def ended_attempts(self, id: str, n: int) -> tuple[Attempt, ...]:
        """Until so many of its attempts have ended."""
        deadline = time.monotonic() + GENEROUS
        while len(found := [attempt for attempt in await self.attempts(id) if attempt.ended_at is not None]) < n:
            assert time.monotonic() < deadline, f"{len(found)} attempts have ended, not {n}"
            await asyncio.sleep(ROUND)
        return tuple(found)


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    engine = create(url)
    await engine.open()
    try:
        yield Client(engine)
    finally:
        await engine.close()


async def until(holds: Callable[[], bool], what: str) -> None:
    """For what another process does without telling anybody."""
    deadline = time.monotonic() + GENEROUS
    while not holds():
        assert time.monotonic() < deadline, f"it never came to {what}"
        await asyncio.sleep(ROUND)
