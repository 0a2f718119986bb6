"""Tells the store which handlers have begun and still run, so that people can tell a claimed task from a running one.

Once a second, one step for all of them, each attempt once. Attempts that are over before that cost nothing: their end says when they began.
"""

from __future__ import annotations

import asyncio
import logging

from taskmill.clock import MILLISECOND
from taskmill.engine import Checkpoint, Engine
from taskmill.errors import StoreError
from taskmill.worker.attempt import Running
from taskmill.worker.executor import Executor

__all__ = ["Begun"]

log = logging.getLogger("taskmill")

EVERY = 1.0
SHORT = 500 * MILLISECOND
"""Attempts that are younger are not worth a write: most of them end before the next round."""


class Begun:
    """The attempts of one process that the store knows to have begun."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine = engine
        self._executor = executor
        self._told: set[int] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.tell()
            except StoreError as error:
                log.debug("the store was not told what has begun: %s", error)
            # It is told so that people see it, and no task is to suffer for it.
            except Exception:
                log.exception("what has begun cannot be told")

    async def tell(self) -> None:
        """What it could not tell it tells the next time."""
        held = self._executor.held
        self._told &= held.keys()
        before = self._engine.clock.monotonic() - SHORT
        fresh = [running for token, running in held.items() if 0 < running.started <= before and token not in self._told]
        if fresh:
            await self._engine.checkpoint([_entry(running) for running in fresh])
            self._told.update(running.claimed.token for running in fresh)


def _entry(running: Running) -> Checkpoint:
    claimed = running.claimed
    return Checkpoint(task=claimed.id, worker=claimed.worker, token=claimed.token, started_after=max(0, running.started - running.received))
