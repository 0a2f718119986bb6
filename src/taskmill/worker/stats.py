"""What a child counts for its supervisor's metrics: endings, durations and times in queue by type, as sums since it last told."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from taskmill.engine import Ending
from taskmill.telemetry.table import QUEUE, TASK

__all__ = ["BUCKETS", "Counted", "Stats"]

BUCKETS = TASK
"""Upper bounds of the durations, in microseconds; one bucket more has the rest."""


class Counted(msgspec.Struct):
    """One type's endings, durations, times in queue, and leases that were lost."""

    endings: dict[str, int] = {}
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: int = 0
    waits: list[int] = msgspec.field(default_factory=lambda: [0] * (len(QUEUE) + 1))
    waited: int = 0
    lost: int = 0


class Stats:
    """Counts in the executor's own thread, so without a lock."""

    def __init__(self) -> None:
        self._types: dict[str, Counted] = {}

    def count(self, type: str, ending: Ending, duration: int, waited: int | None = None) -> None:
        """An attempt that began and ended; `waited`: how long its task was ready before that, where it is known."""
        counted = self._of(type)
        counted.endings[ending] = counted.endings.get(ending, 0) + 1
        counted.buckets[bisect_left(BUCKETS, duration)] += 1
        counted.total += duration
        if waited is not None:
            counted.waits[bisect_left(QUEUE, waited)] += 1
            counted.waited += waited

    def lose(self, type: str) -> None:
        """A lease was taken away from us while we held it."""
        self._of(type).lost += 1

    def _of(self, type: str) -> Counted:
        counted = self._types.get(type)
        if counted is None:
            counted = self._types[type] = Counted()
        return counted

    def take(self) -> dict[str, Counted] | None:
        """What was counted since the last time; None when nothing was."""
        taken, self._types = self._types, {}
        return taken or None
