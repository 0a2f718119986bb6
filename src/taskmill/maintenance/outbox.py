"""Outbox: what steps owe to other places is brought there, in order, at least once.

Each kind has its own deliverer and its own loop, so one that is slow or broken holds up no other. Entries are cut from the store only
by the call that follows their delivery: a process that dies in between leaves them to its successor, who delivers them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Engine, Entry, Term
from taskmill.errors import StaleTerm, TaskmillError
from taskmill.maintenance.leader import Leader
from taskmill.maintenance.loop import Loop, Outage, backoff, tick

__all__ = ["Deliverer", "Outbox"]

logger = logging.getLogger("taskmill")

Deliverer = Callable[[Sequence[Entry]], Awaitable[None]]

FIRST_PAUSE = 50 * MILLISECOND
LONGEST_BACKOFF = 30 * SECOND


class Channel:
    """The entries of one kind on their way. `lag` is the age of the oldest one that was not delivered when last looked."""

    def __init__(self, engine: Engine, kind: str, deliver: Deliverer, batch: int) -> None:
        self.kind = kind
        self.lag = 0
        self.failures = 0
        self._engine = engine
        self._deliver = deliver
        self._batch = batch
        self._delivered = ""

    async def step(self, term: Term) -> int:
        """Cut what was delivered, deliver the next batch; how many entries that was. A failed delivery is counted in `failures`."""
        entries = await self._engine.outbox(self.kind, self._delivered, self._batch, term)
        self.lag = max(0, self._engine.clock.now() - entries[0].at) if entries else 0
        if not entries or not await self._delivers(entries):
            return 0
        self._delivered = entries[-1].cursor
        return len(entries)

    async def _delivers(self, entries: Sequence[Entry]) -> bool:
        try:
            await self._deliver(entries)
        except Exception as error:  # a deliverer is somebody else's code and speaks to somebody else's server
            self.failures += 1
            if self.failures == 1:
                expected = isinstance(error, TaskmillError)  # it says what to do; where it was raised helps nobody
                logger.warning("outbox: %s entries cannot be delivered, trying on: %s", self.kind, error if expected else repr(error), exc_info=not expected)
            return False
        if self.failures:
            logger.warning("outbox: %s entries are delivered again after %d failures", self.kind, self.failures)
            self.failures = 0
        return True


class Outbox:
    """The leader's loops, one for each kind that has a deliverer; without deliverers it does nothing and does not lead. A deliverer's own `batch` goes before
    that of all."""

    def __init__(
        self,
        engine: Engine,
        holder: str,
        deliverers: Mapping[str, Deliverer],
        *,
        batch: int = 100,
        beat: int = SECOND,
        outage: Outage | None = None,
    ) -> None:
        self._engine = engine
        self._beat = beat
        self._outage = outage or Outage(engine.clock)
        self._channels = [Channel(engine, kind, deliver, getattr(deliver, "batch", batch)) for kind, deliver in deliverers.items()]
        self._subscribed = False
        self.leader = Leader(engine, "outbox", holder, beat=beat)

    @property
    def lag(self) -> dict[str, int]:
        """By kind, how old the oldest undelivered entry is, in microseconds; meaningful while this process leads."""
        return {channel.kind: channel.lag for channel in self._channels}

    async def run(self) -> None:
        if not self._channels:
            return
        try:
            async with asyncio.TaskGroup() as group:
                # Apart from the deliveries, so that one that takes long does not cost the term.
                group.create_task(Loop("outbox", self._lead, self._outage).run())
                for channel in self._channels:
                    group.create_task(self._loop(channel).run())
        finally:
            await self.leader.resign()

    async def once(self) -> int:
        """One batch of each kind; how many entries were delivered."""
        if not self._channels:
            return 0
        await self._lead()
        return sum(await asyncio.gather(*map(self._step, self._channels)))

    async def _lead(self) -> int:
        if await self.leader.lead() is not None and not self._subscribed:
            await self._subscribe()
        return tick(self._engine.clock, self._beat)

    async def _subscribe(self) -> None:
        """Steps leave entries only of kinds that somebody asked for."""
        known = {item.name for item in await self._engine.items("outbox")}
        for channel in self._channels:
            if channel.kind not in known:
                await self._engine.put("outbox", channel.kind, b"{}", operator=False)
        self._subscribed = True

    def _loop(self, channel: Channel) -> Loop:
        pause = FIRST_PAUSE

        async def turn() -> int:
            nonlocal pause
            if await self._step(channel):
                pause = FIRST_PAUSE
                return 0
            if channel.failures:
                return backoff(channel.failures, LONGEST_BACKOFF)
            pause = min(2 * pause, self._beat)
            return pause if pause < self._beat else tick(self._engine.clock, self._beat)

        return Loop(f"outbox {channel.kind}", turn, self._outage)

    async def _step(self, channel: Channel) -> int:
        term = self.leader.term
        if term is None:
            return 0
        try:
            return await channel.step(term)
        except StaleTerm:
            self.leader.deposed()
            return 0
