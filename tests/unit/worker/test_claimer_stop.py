"""A claimer that sleeps is told to stop in the very moment a hint wakes it: the stop must not get lost, or a worker would never drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

import pytest

from taskmill import App
from taskmill.clock import SystemClock
from taskmill.engine import Claim
from taskmill.engines import create
from taskmill.worker.attempt import Running
from taskmill.worker.board import Board
from taskmill.worker.claimer import Claimer
from taskmill.worker.executor import Executor
from taskmill.worker.stats import Stats


class Alone:
    async def attempt(self, running: Running, begin: Callable[[], bool]) -> NoReturn:
        raise AssertionError(running)


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_that_comes_with_a_hint(turns: int) -> None:
    """However many turns of the loop lie between the two."""
    board = Board(rows=8)
    executor = Executor(App("sqlite://:memory:"), board, lambda _: None, lambda: None, Alone(), SystemClock(), Stats(), concurrency=1)
    claimer = Claimer(create("sqlite://:memory:"), "anna", ["default"], board, executor, {})
    asleep = asyncio.create_task(claimer._sleep(Claim(tasks=(), next_at=None, more=False)))
    for _ in range(5):
        await asyncio.sleep(0)
    claimer.resume()
    for _ in range(turns):
        await asyncio.sleep(0)
    awake = asleep.done()
    asleep.cancel()
    await asyncio.wait([asleep])
    assert awake or asleep.cancelled()
