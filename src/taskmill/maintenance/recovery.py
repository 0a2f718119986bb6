"""Recovery: tasks of workers that no longer beat run elsewhere. Every process does it; it needs no leader, so no leader's death delays it."""

from __future__ import annotations

import logging

from taskmill.clock import SECOND
from taskmill.engine import Engine, Moved
from taskmill.maintenance.loop import Loop, Outage, tick

__all__ = ["Recovery"]

logger = logging.getLogger("taskmill")


class Recovery:
    """Looks for what is lost at short intervals, and at once again while there is more."""

    def __init__(self, engine: Engine, *, interval: int = SECOND // 2, batch: int = 500, outage: Outage | None = None) -> None:
        self._engine = engine
        self._interval = interval
        self._batch = batch
        self._loop = Loop("recovery", self._turn, outage or Outage(engine.clock))

    async def run(self) -> None:
        await self._loop.run()

    async def once(self) -> Moved:
        moved = await self._engine.recover_lost(self._batch)
        if moved.lost:
            logger.warning("no longer heard of, their tasks run elsewhere: %s", ", ".join(moved.lost))
        return moved

    async def _turn(self) -> int:
        return 0 if (await self.once()).more else tick(self._engine.clock, self._interval)
