"""What the tests of maintenance share: stores, schedules, and a way to let time pass as the loop would."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

from taskmill.clock import Clock, ManualClock
from taskmill.cron import Cron
from taskmill.engine import Engine, Joining
from taskmill.engines import create
from taskmill.maintenance.schedules import Schedules
from taskmill.schedule import SCHEDULE, Schedule
from taskmill.task import TypeSettings
from tests.conformance.tools import all_tasks

HANGS = 60.0
"""Seconds of real time after which something that should have come never will."""


@contextlib.asynccontextmanager
async def opened(path: Path | None = None, clock: Clock | None = None, *, busy_timeout: int = 30_000_000, knows: str = "work") -> AsyncIterator[Engine]:
    """An engine on a file, or on a store of its own in memory, that knows one type."""
    engine = create("sqlite://:memory:" if path is None else f"sqlite:///{path}", clock=clock, busy_timeout=busy_timeout)
    await engine.open()
    try:
        if knows:
            await engine.join(Joining(worker="somebody", queues=("default",), types={knows: TypeSettings()}, lease=86_400_000_000))
        yield engine
    finally:
        await engine.close()


def schedule(expression: str, timezone: str = "UTC", *, type: str = "work", **fields: Any) -> bytes:
    return Schedule(type=type, cron=Cron.parse(expression, timezone), **fields).encode()


async def made(engine: Engine) -> dict[str, list[int]]:
    """The fire times that have a task, by schedule; one that has two stands there twice."""
    found: dict[str, list[int]] = {}
    for task in await all_tasks(engine):
        found.setdefault(task.headers[SCHEDULE], []).append(task.run_at)
    return {name: sorted(times) for name, times in found.items()}


async def play(schedules: Schedules, clock: ManualClock, until: int) -> None:
    """Let time pass up to an instant, from fire time to fire time, as the loop sleeps."""
    await schedules.once()
    while (next_at := await schedules.next_at()) is not None and next_at <= until:
        clock.advance((next_at - clock.now()) / 1_000_000)
        await schedules.once()
    clock.advance((until - clock.now()) / 1_000_000)


class Log(logging.Handler):
    """What was logged, and a way to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._news.set()

    def lines(self, part: str = "") -> list[str]:
        return [text for record in self.records if part in (text := record.getMessage())]

    async def until(self, part: str) -> None:
        async with asyncio.timeout(HANGS):
            while not self.lines(part):
                self._news.clear()
                await self._news.wait()


@contextlib.contextmanager
def logged() -> Iterator[Log]:
    log = Log()
    logger = logging.getLogger("taskmill")
    logger.addHandler(log)
    try:
        yield log
    finally:
        logger.removeHandler(log)


@contextlib.asynccontextmanager
async def running(run: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A loop that runs beside the test and is cancelled behind it; one that ended by itself has failed."""
    task = asyncio.create_task(run)
    try:
        yield task
        assert not task.done(), "it ended by itself"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
