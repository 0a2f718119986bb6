"""What a key may use up: requests in a second, and room in the queues it submits to.

Both are judged in this process and cost no call of the store for a request: a rate is a bucket that fills by the clock, and how deep queues are is read at
most once a second, for all callers together, and only while somebody submits under such a quota.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from taskmill.clock import SECOND, Clock
from taskmill.engine import Engine
from taskmill.errors import RateLimited
from taskmill.operations.types import settings_of
from taskmill.server.access import Caller
from taskmill.task import LIVE, NewTask

__all__ = ["Quotas"]

FRESH = SECOND
MOST_KEYS = 10_000


class Quotas:
    """The buckets of this process."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._buckets: dict[str, tuple[float, int]] = {}
        """By key: what was left in its bucket, and when."""
        self._depths: Counter[str] = Counter()
        self._queues: dict[str, str] = {}
        self._looked_at: int | None = None
        self._looking = asyncio.Lock()

    def request(self, caller: Caller) -> None:
        """One more request of this caller; a burst of one second's worth is let through."""
        if caller.rate is None:
            return
        now = self._clock.monotonic()
        left, at = self._buckets.get(caller.key, (float(caller.rate), now))
        left = min(float(caller.rate), left + (now - at) * caller.rate / SECOND)
        if left < 1:
            error = RateLimited(f"this key may make {caller.rate} requests a second", code="request_quota", hint="wait, or send tasks in batches")
            error.retry_after = int((1 - left) * SECOND / caller.rate)
            raise error
        if len(self._buckets) >= MOST_KEYS and caller.key not in self._buckets:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[caller.key] = (left - 1, now)

    async def submit(self, caller: Caller, tasks: Iterable[NewTask]) -> None:
        """Refused when one of the queues holds as many live tasks as the key allows; what was counted may be a few seconds old."""
        if caller.depth is None:
            return
        await self._look()
        for queue in {task.queue or self._queues.get(task.type, "default") for task in tasks}:
            if self._depths[queue] >= caller.depth:
                error = RateLimited(
                    f"the queue {queue} holds {self._depths[queue]} tasks", code="queue_quota", field="queue",
                    hint=f"this key may submit while there are fewer than {caller.depth}; wait until workers have caught up",
                )  # fmt: skip
                error.retry_after = FRESH
                raise error

    async def _look(self) -> None:
        async with self._looking:
            now = self._clock.monotonic()
            if self._looked_at is not None and now - self._looked_at < FRESH:
                return
            depths: Counter[str] = Counter()
            for count in await self._engine.counts():
                if count.state in LIVE:
                    depths[count.queue] += count.tasks
            self._depths = depths
            self._queues = {name: settings.queue for name, settings in (await settings_of(self._engine)).items()}
            self._looked_at = now
