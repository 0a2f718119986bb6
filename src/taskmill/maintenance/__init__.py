"""Maintenance: what keeps a store in order while others work on it, one loop per file.

    recovery    every process, twice a second   tasks of lost workers run elsewhere
    schedules   whoever leads "schedules"       each fire time makes one task
    pruning     whoever leads "pruning"         what has ended is removed when its retention is over
    outbox      whoever leads "outbox"          what steps owe to other places is delivered

Any number of processes may run it on one store: every worker does, unless told not to, and `taskmill scheduler` does nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from taskmill.config import Settings
from taskmill.engine import Engine
from taskmill.engines import deliverers as deliverers_of
from taskmill.maintenance.loop import Outage
from taskmill.maintenance.outbox import Deliverer, Outbox
from taskmill.maintenance.pruning import Pruning, retention_of
from taskmill.maintenance.recovery import Recovery
from taskmill.maintenance.schedules import Schedules

__all__ = ["Deliverer", "Maintenance"]

_NOBODY: Mapping[str, Deliverer] = MappingProxyType({})


class Maintenance:
    """All loops of one process; `holder` names it among those that would lead, `deliverers` are those beside the engine's own."""

    def __init__(self, engine: Engine, settings: Settings, holder: str, deliverers: Mapping[str, Deliverer] = _NOBODY) -> None:
        outage, beat = Outage(engine.clock), settings.beat
        self.recovery = Recovery(engine, interval=settings.recovery_interval, outage=outage)
        self.schedules = Schedules(engine, holder, beat=beat, outage=outage)
        self.pruning = Pruning(engine, holder, retention_of(settings), beat=2 * beat, outage=outage)  # nobody misses a pruner for seconds
        self.outbox = Outbox(engine, holder, {**deliverers_of(engine), **deliverers}, beat=beat, outage=outage)

    async def run(self) -> None:
        """Until cancelled; then what it leads is given up, so that a successor begins at once."""
        async with asyncio.TaskGroup() as group:
            for loop in (self.recovery, self.schedules, self.pruning, self.outbox):
                group.create_task(loop.run())

    async def once(self) -> bool:
        """One bounded round of everything by the present clock; whether anything was done, so that a caller who drains goes on."""
        recovered = await self.recovery.once()
        made = await self.schedules.once()
        pruned = await self.pruning.once()
        delivered = await self.outbox.once()
        return bool(recovered.moved or made or pruned.moved or delivered)

    async def next_at(self) -> int | None:
        """The earliest time at which a schedule fires: how far a clock that is moved by hand may go without missing one."""
        return await self.schedules.next_at()
