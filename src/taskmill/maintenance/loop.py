"""A loop that outlives what goes wrong in it.

The store may be locked, full, gone or failing over for seconds or for a night; when it is back, work goes on by itself. So a loop
ends only when it is cancelled: an error of the store makes it wait and try again, and any other error, which is a mistake of ours or of
a deliverer, is logged with its traceback, because a loop that died in silence is found days later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable

from taskmill.clock import MILLISECOND, SECOND, Clock
from taskmill.errors import StoreError

__all__ = ["Loop", "Outage", "backoff", "tick"]

logger = logging.getLogger("taskmill")

FIRST_WAIT = 100 * MILLISECOND
LONGEST_WAIT = 2 * SECOND


def backoff(failures: int, longest: int = LONGEST_WAIT) -> int:
    """How long to wait after so many failures: doubling and bounded, and spread, so that those who failed together do not come back together."""
    return int(min(longest, FIRST_WAIT << min(failures - 1, 20)) * random.uniform(0.5, 1.0))


def tick(clock: Clock, period: int) -> int:
    """How long until the next beat of this process. Its loops wake together, which costs half as much as waking one by one; processes wake apart."""
    return period - (clock.monotonic() + os.getpid() * 104_729) % period


class Outage:
    """Tells of the store's absence once when it begins and once when it is over, however many loops notice it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missing: set[str] = set()
        self._since = 0

    def noticed(self, loop: str, error: StoreError) -> None:
        if not self._missing:
            self._since = self._clock.monotonic()
            logger.warning("the store does not answer; maintenance waits for it: %s", error)
        self._missing.add(loop)

    def over(self, loop: str) -> None:
        if loop in self._missing:
            self._missing.remove(loop)
            if not self._missing:
                logger.warning("the store answers again after %.1f s", (self._clock.monotonic() - self._since) / SECOND)


class Loop:
    """Takes a turn, waits as long as the turn asks for (microseconds), and takes the next one, for ever."""

    def __init__(self, name: str, turn: Callable[[], Awaitable[int]], outage: Outage) -> None:
        self.name = name
        self._turn = turn
        self._outage = outage
        self._failures = 0
        self._told = ""

    async def run(self) -> None:
        while True:
            wait = await self._next()
            await asyncio.sleep(wait / SECOND)

    async def _next(self) -> int:
        try:
            wait = await self._turn()
        except StoreError as error:
            self._outage.noticed(self.name, error)
        except Exception as error:  # whatever it is, the loop must go on
            self._tell(error)
        else:
            self._outage.over(self.name)
            self._failures, self._told = 0, ""
            return wait
        self._failures += 1
        return backoff(self._failures)

    def _tell(self, error: Exception) -> None:
        """Once for each error, not once for each turn that ends in it."""
        told = f"{type(error).__qualname__}: {error}"
        if told != self._told:
            logger.error("unexpected error in the loop of %s, it goes on: %s", self.name, told, exc_info=error)
        self._told = told
