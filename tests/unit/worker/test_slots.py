"""A long handler holds its own slot and nobody else's: what comes after it begins at once, as long as a slot is free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from taskmill import App
from taskmill.clock import SystemClock
from taskmill.engine import Claimed, Outcome
from taskmill.retry import Retry
from taskmill.task import new_id
from taskmill.worker.attempt import Running
from taskmill.worker.board import Board
from taskmill.worker.executor import Executor
from taskmill.worker.stats import Stats


def claimed(type: str, token: int) -> Claimed:
    return Claimed(
        id=new_id(), type=type, queue="default", payload=b"{}", worker="anna", token=token, attempt=1, claimed_at=0, priority=1, failures=0, crashes=0,
        max_crashes=3, version=2, created_at=0, retry=Retry(), timeout=3_600_000_000, expires_at=None, tenant="", limits=(), unwind=False,
        must_end=None, phase=None, headers={}, checkpoints={}, signals=(), results=(),
    )  # fmt: skip


class Alone:
    async def attempt(self, running: Running, begin: Callable[[], bool]) -> NoReturn:
        raise AssertionError(running.claimed.type)


class Hall:
    """An executor without a store; `ended` has the tokens of what has ended."""

    def __init__(self, app: App, concurrency: int) -> None:
        self.board = Board()
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        self.executor = Executor(app, self.board, self._finish, lambda: None, Alone(), SystemClock(), Stats(), concurrency=concurrency)

    def _finish(self, outcome: Outcome) -> None:
        self.board.clear([outcome.token])
        self.ended.put_nowait(outcome.token)

    def offer(self, type: str, token: int) -> None:
        task = claimed(type, token)
        self.board.hold([task], token)
        self.executor.offer([task])


def declared(begun: Callable[[], object], release: asyncio.Event, let_go: threading.Event) -> App:
    app = App("sqlite://:memory:")

    async def long_async() -> None:
        begun()
        await release.wait()

    def long_sync() -> None:
        begun()
        let_go.wait(30)

    async def short_async() -> None:
        pass

    def short_sync() -> None:
        pass

    for function in (long_async, long_sync, short_async, short_sync):
        app.task(function)
    return app


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("long_ones", [1, 3])
async def test_a_short_task_does_not_wait_for_long_ones(kind: str, long_ones: int) -> None:
    loop = asyncio.get_running_loop()
    began: asyncio.Queue[None] = asyncio.Queue()
    release, let_go = asyncio.Event(), threading.Event()
    hall = Hall(declared(lambda: loop.call_soon_threadsafe(began.put_nowait, None), release, let_go), concurrency=long_ones + 1)
    try:
        for token in range(1, long_ones + 1):
            hall.offer(f"long_{kind}", token)
            assert hall.executor.waiting == 0, "its slot is on its way, so there is room for the next claim"
            await asyncio.wait_for(began.get(), 10)
        for token in (11, 12):
            hall.offer(f"short_{kind}", token)
            assert await asyncio.wait_for(hall.ended.get(), 10) == token
    finally:
        release.set()
        let_go.set()
    assert {await asyncio.wait_for(hall.ended.get(), 10) for _ in range(long_ones)} == set(range(1, long_ones + 1))
