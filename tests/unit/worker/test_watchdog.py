"""The watchdog: says what blocks the loop, once for each time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from taskmill import App
from taskmill.clock import SystemClock
from taskmill.engine import Outcome
from taskmill.worker import watchdog as module
from taskmill.worker.attempt import Running
from taskmill.worker.board import Board
from taskmill.worker.executor import Executor
from taskmill.worker.stats import Stats
from taskmill.worker.watchdog import Watchdog
from tests.unit.worker.parts import claimed


class Nowhere:
    async def attempt(self, running: Running, begin: Callable[[], bool]) -> Outcome:
        raise AssertionError(running)


class Heard(logging.Handler):
    """Sets an event when something is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self.said.append(record.getMessage())
            self.event.set()


async def test_a_handler_that_blocks_is_named_with_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 10_000)
    monkeypatch.setattr(module, "ROUND", 0.01)
    heard = Heard()
    logging.getLogger("taskmill").addHandler(heard)
    app = App("sqlite://:memory:")

    @app.task
    async def stubborn() -> None:
        heard.event.wait(30)

    board = Board()
    done: asyncio.Queue[Outcome] = asyncio.Queue()
    executor = Executor(app, board, done.put_nowait, lambda: None, Nowhere(), SystemClock(), Stats(), concurrency=1)
    try:
        watchdog = Watchdog(executor)
        watchdog.turned(time.monotonic_ns() // 1_000)
        watchdog.start()
        task = claimed("stubborn")
        board.hold([task], 1)
        executor.offer([task])
        async with asyncio.timeout(30):
            await done.get()
        watchdog.turned(0)
        assert heard.event.is_set()
        assert "is blocked" in heard.said[0]
        assert "by one of stubborn" in heard.said[0]
        assert "heard.event.wait(30)" in heard.said[0]
        assert len(heard.said) == 1
    finally:
        logging.getLogger("taskmill").removeHandler(heard)
        executor._timer.cancel()
        board.close()
