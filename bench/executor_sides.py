"""The four sides of `executor.py`: tasks a second for n no-ops, each in a loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from taskmill import App
from taskmill.clock import SystemClock
from taskmill.engine import Claimed, Ending, Outcome
from taskmill.retry import Retry
from taskmill.task import new_id
from taskmill.worker.attempt import Running
from taskmill.worker.board import Board
from taskmill.worker.executor import Executor
from taskmill.worker.stats import Stats

__all__ = ["BATCH", "CONCURRENCY", "bare", "executed", "hops"]

CONCURRENCY = 10
BATCH = 500

app = App("sqlite://:memory:")


def plain() -> None:
    """A no-op."""


async def asynchronous() -> None:
    """A no-op."""


app.task(name="sync")(plain)
app.task(name="async")(asynchronous)


class Feed:
    """A claimer and a finisher without a store: two batches in hand, the next when one has ended."""

    def __init__(self, tasks: list[Claimed]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._board = Board()
        self._executor = Executor(app, self._board, self._finish, _nothing, Alone(), SystemClock(), Stats(), concurrency=CONCURRENCY)
        self._batches = [tasks[start : start + BATCH] for start in range(0, len(tasks), BATCH)][::-1]
        self._request = 0
        self._left = len(tasks)
        self._done: list[int] = []

    def offer(self) -> None:
        if self._batches:
            batch = self._batches.pop()
            self._request += 1
            self._board.hold(batch, self._request)
            self._executor.offer(batch)

    def _finish(self, outcome: Outcome) -> None:
        assert outcome.ending is Ending.COMPLETED, outcome
        self._left -= 1
        self._done.append(outcome.token)
        if len(self._done) == BATCH or not self._left:
            self._board.clear(self._done)
            self._done.clear()
            asyncio.get_running_loop().call_soon(self.offer)
        if not self._left:
            self.ended.set_result(None)


class Alone:
    """No task here runs in a process of its own."""

    async def attempt(self, running: Running, begin: Callable[[], bool]) -> NoReturn:
        raise AssertionError(running.claimed.type)


def _nothing() -> None:
    """Nobody claims more."""


async def executed(mode: str, n: int) -> float:
    """Through the worker's executor; `mode` names the type, "async" or "sync"."""
    feed = Feed([_claimed(mode, number) for number in range(1, n + 1)])
    began = time.perf_counter()
    feed.offer()
    feed.offer()
    await feed.ended
    return n / (time.perf_counter() - began)


async def bare(n: int) -> float:
    """A task of the loop for each, by the batch."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for _ in range(0, n, BATCH):
        await asyncio.gather(*[loop.create_task(asynchronous()) for _ in range(BATCH)])
    return n / (time.perf_counter() - began)


async def hops(n: int) -> float:
    """A hop to a thread and back for each, by the batch."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(CONCURRENCY) as threads:
        began = time.perf_counter()
        for _ in range(0, n, BATCH):
            await asyncio.gather(*[loop.run_in_executor(threads, plain) for _ in range(BATCH)])
        return n / (time.perf_counter() - began)


def _claimed(type: str, number: int) -> Claimed:
    return Claimed(
        id=new_id(), type=type, queue="default", payload=b"{}", worker="bench", token=number, attempt=1, claimed_at=0, priority=1, failures=0, crashes=0,
        max_crashes=3, version=2, created_at=0, retry=Retry.exponential(), timeout=3_600_000_000, expires_at=None, tenant="", limits=(), unwind=False,
        must_end=None, phase=None, headers={}, checkpoints={}, signals=(), results=(),
    )  # fmt: skip
