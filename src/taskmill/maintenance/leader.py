"""Leadership: which of many processes does what only one should do.

    lead() ──▶ term 7 ──lead() each beat──▶ term 7 … ──resign()──▶ somebody else's term 8, at once
                 └── silent for a term's length ──▶ somebody else's term 8; every write under 7 is refused (StaleTerm)

A leader never knows that it still leads: it may have been paused since it last asked. So it does not try to know. It writes under its
term's number, the store compares, and a refusal means only "not any more": no error, no line in the log, it asks again a beat later.
"""

from __future__ import annotations

import asyncio
import contextlib

from taskmill.clock import SECOND
from taskmill.engine import Engine, Term
from taskmill.errors import TaskmillError

__all__ = ["Leader"]

PATIENCE = 2.0
"""Seconds that a process which stops may wait for the store to hear that it resigns; otherwise the term runs out by itself."""


class Leader:
    """One role of one process; `term` is what it last was given, None when it does not lead."""

    def __init__(self, engine: Engine, role: str, holder: str, *, beat: int = SECOND) -> None:
        self.role = role
        self.holder = holder
        self.term: Term | None = None
        self._engine = engine
        self._fresh = beat * 3 // 4  # less than a beat, so that a loop which wakes once a beat asks each time
        self._renewed_at = 0

    async def lead(self) -> Term | None:
        """Go on leading or try to begin; asks the store about once a beat while it leads, however often it is called."""
        now = self._engine.clock.monotonic()
        if self.term is None or not 0 <= now - self._renewed_at < self._fresh:
            self.term = await self._engine.lead(self.role, self.holder)
            self._renewed_at = now
        return self.term

    def deposed(self) -> None:
        """The store refused a write: another leads."""
        self.term = None

    async def resign(self) -> None:
        """Let a successor begin at once."""
        term, self.term = self.term, None
        if term is not None:
            with contextlib.suppress(TaskmillError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._engine.resign(term)
