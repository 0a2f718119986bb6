"""Pruning: what ended longer ago than its retention is removed, a bounded batch at a time, so that nobody waits long for the store."""

from __future__ import annotations

from taskmill.clock import MINUTE, SECOND
from taskmill.config import Settings
from taskmill.engine import Engine, Moved, Retention
from taskmill.errors import StaleTerm
from taskmill.maintenance.leader import Leader
from taskmill.maintenance.loop import Loop, Outage, tick

__all__ = ["Pruning", "retention_of"]

NOTHING = Moved(0, False)


def retention_of(settings: Settings) -> Retention:
    history = settings.history_retention
    return Retention(completed=history, dead=settings.dead_retention, cancelled=history, results=settings.result_retention, inbox=settings.inbox_retention)


class Pruning:
    """Prunes every minute while it leads; while there is more, it leaves the store to others for as long as each batch took."""

    def __init__(
        self,
        engine: Engine,
        holder: str,
        retention: Retention,
        *,
        interval: int = MINUTE,
        batch: int = 500,
        beat: int = SECOND,
        outage: Outage | None = None,
    ) -> None:
        self._engine = engine
        self._retention = retention
        self._interval = interval
        self._batch = batch
        self._beat = beat
        self._due_at: int | None = None
        self.leader = Leader(engine, "pruning", holder, beat=beat)
        self._loop = Loop("pruning", self._turn, outage or Outage(engine.clock))

    async def run(self) -> None:
        try:
            await self._loop.run()
        finally:
            await self.leader.resign()

    async def once(self) -> Moved:
        """One batch, whenever the last one was."""
        term = await self.leader.lead()
        if term is None:
            return NOTHING
        try:
            return await self._engine.prune(self._batch, term, self._retention)
        except StaleTerm:
            self.leader.deposed()
            return NOTHING

    async def _turn(self) -> int:
        now = self._engine.clock.monotonic()
        if await self.leader.lead() is None:
            self._due_at = None  # whoever leads now does it; a later term of ours begins with a round
        elif self._due_at is None or now >= self._due_at:
            if (await self.once()).more:
                return self._engine.clock.monotonic() - now
            self._due_at = now + self._interval
        return tick(self._engine.clock, self._beat)
