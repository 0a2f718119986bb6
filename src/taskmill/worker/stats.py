"""What a child counts for its supervisor's metrics: endings and durations by type, as sums since it last told."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from taskmill.engine import Ending

__all__ = ["BUCKETS", "Counted", "Stats"]

BUCKETS = (1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 60_000_000, 600_000_000)
"""Upper bounds of the durations, in microseconds; one bucket more has the rest."""


class Counted(msgspec.Struct):
    """One type's endings and durations."""

    endings: dict[str, int] = {}
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: int = 0


class Stats:
    """Counts in the executor's own thread, so without a lock."""

    def __init__(self) -> None:
        self._types: dict[str, Counted] = {}

    def count(self, type: str, ending: Ending, duration: int) -> None:
        counted = self._types.get(type)
        if counted is None:
            counted = self._types[type] = Counted()
        counted.endings[ending] = counted.endings.get(ending, 0) + 1
        counted.buckets[bisect_left(BUCKETS, duration)] += 1
        counted.total += duration

    def take(self) -> dict[str, Counted] | None:
        """What was counted since the last time; None when nothing was."""
        taken, self._types = self._types, {}
        return taken or None
