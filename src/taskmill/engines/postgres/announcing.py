"""After a user's transaction has committed: those who wait for work are told, and edges that it let fall are followed. A hint only, so nobody waits for it, and
where it cannot be given the next poll finds the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from taskmill.engines.postgres.store import Store
from taskmill.errors import TaskmillError

__all__ = ["Announcer"]


class Announcer:
    """One at a time; what comes meanwhile goes together with the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._queues: set[str] = set()
        self._owes = False
        self._telling: asyncio.Task[None] | None = None

    def tell_from_anywhere(self, queues: Iterable[str], *, owes: bool = False) -> None:
        """From whichever thread; a loop that has ended tells nobody."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.tell, frozenset(queues), owes)

    def tell(self, queues: Iterable[str], owes: bool) -> None:
        self._queues |= set(queues)
        self._owes |= owes
        if self._telling is None and (self._queues or self._owes):
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._queues or self._owes:
                queues, self._queues = self._queues, set()
                owes, self._owes = self._owes, False
                with contextlib.suppress(TaskmillError):
                    if owes:
                        await self._store.settle(wait=False)
                    if queues:
                        await self._store.pool.fetch(self._store.load("transaction.sql").hint_work, sorted(queues))
        finally:
            self._telling = None

    async def close(self) -> None:
        """What is not told yet is left to the polls."""
        if self._telling is not None:
            self._telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._telling
