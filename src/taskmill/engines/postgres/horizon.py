"""Up to which number a log may be read: numbers are given before the commit, so a reader could pass by one whose transaction still runs.

The reader remembers what it saw: the last number given, and who had then written to the table and not ended. When those are gone, everything up to that
number is there or never will be. Where nobody is writing, that is at once. Only who writes to the log counts, so a long transaction elsewhere holds up nothing.
"""

from __future__ import annotations

from collections import deque

from taskmill.engines.postgres.store import Store

__all__ = ["Horizon"]

MOST_LOOKS = 64


class Horizon:
    """What one process knows of one log."""

    def __init__(self, store: Store, table: str, sequence: str) -> None:
        self._store = store
        self._log = (table, sequence)
        self._looks: deque[tuple[int, frozenset[str]]] = deque(maxlen=MOST_LOOKS)
        self.last = 0
        """The last number that was given when it was looked at."""
        self.safe = 0
        """Up to here nothing can appear any more."""

    async def look(self) -> int:
        """Look again; answers `safe`. A step that reads the log up to there must begin after this answered."""
        row = await self._store.pool.fetchrow(self._store.load("settings.sql").horizon, *self._log)
        assert row is not None
        self.last, writers = row[0], frozenset(row[1])
        self._looks.append((self.last, writers))
        for last, before in self._looks:
            if not before & writers:
                self.safe = max(self.safe, last)
        self._looks = deque((look for look in self._looks if look[0] > self.safe), maxlen=MOST_LOOKS)
        return self.safe
