"""The server's clock, followed from here: times in records are the server's, and whoever sleeps until one of them must mean the same moment."""

from __future__ import annotations

import asyncio
import contextlib
import random

from taskmill.clock import SystemClock
from taskmill.engines.postgres.connecting import Pool
from taskmill.errors import TaskmillError

__all__ = ["ServerClock"]

LOOKS = 5
"""The quickest of so many answers is taken: its time is known best."""
REFRESH = 60
"""Seconds between two looks; a good clock drifts by less than a millisecond in them, and a server that was replaced may have another."""

_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class ServerClock:
    """Counted by this machine's steady clock, so that setting its wall clock changes nothing."""

    def __init__(self) -> None:
        self._own = SystemClock()
        self._ahead = self._own.now() - self._own.monotonic()
        self._following: asyncio.Task[None] | None = None

    def now(self) -> int:
        return self._own.monotonic() + self._ahead

    def monotonic(self) -> int:
        return self._own.monotonic()

    async def follow(self, pool: Pool) -> None:
        """Read it now, and again and again until `stop`."""
        await self._look(pool)
        self._following = asyncio.create_task(self._look_again(pool))

    async def stop(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    async def _look(self, pool: Pool) -> None:
        """The server read its clock somewhere between question and answer: the middle is wrong by half of that at most."""
        best: tuple[int, int] | None = None
        for _ in range(LOOKS):
            asked = self._own.monotonic()
            there = int(await pool.fetchval(_NOW))
            answered = self._own.monotonic()
            found = (answered - asked, there - (asked + answered) // 2)
            best = found if best is None else min(best, found)
        assert best is not None
        self._ahead = best[1]

    async def _look_again(self, pool: Pool) -> None:
        while True:
            await asyncio.sleep(REFRESH * random.uniform(0.8, 1.2))
            with contextlib.suppress(TaskmillError):  # a server that is away keeps its time
                await self._look(pool)
