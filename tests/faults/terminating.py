"""Backends that end between COMMIT and its answer.

Commits are told to wait for a standby that there is not: what is written is written and visible after a crash, and its caller has not been told. Whoever waits
there is terminated by the administrator's own function, or let go with the answer that it is due.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from random import Random

import asyncpg

from taskmill.engines.postgres.target import parse
from tests.faults.effects import until
from tests.faults.processes import GENEROUS
from tests.servers.postgres import Postgres

__all__ = ["Terminating", "terminating"]

LOOK = 0.002
WAITING = "SELECT pid, query_start FROM pg_stat_activity WHERE wait_event = 'SyncRep' ORDER BY query_start"


class Terminating:
    """Ends the `left`-th of the commits from now on, or each with a chance, and lets all others go."""

    def __init__(self, db: asyncpg.Connection) -> None:
        self._db = db
        self._dealt: set[tuple[int, datetime]] = set()
        self.left = 0
        self.chance = 0.0
        self.random = Random(0)
        self.ended = 0
        self.let_go = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for pid, since in await self._db.fetch(WAITING):
                if (pid, since) not in self._dealt:
                    self._dealt.add((pid, since))
                    await self._deal(pid)
            await asyncio.sleep(LOOK)

    async def _deal(self, pid: int) -> None:
        self.left -= 1
        if self.left == 0 or self.random.random() < self.chance:
            self.ended += 1
            await self._db.fetch("SELECT pg_terminate_backend($1)", pid)
        else:
            self.let_go += 1
            await self._db.fetch("SELECT pg_cancel_backend($1)", pid)

    async def until_ended(self, n: int) -> None:
        """So many more."""
        n += self.ended
        await until(lambda: True if self.ended >= n else None, f"{n} backends that ended", GENEROUS)


@contextlib.asynccontextmanager
async def terminating(server: Postgres, url: str) -> AsyncIterator[Terminating]:
    """From the moment when commits wait until they no longer do."""
    watch, probe = [await asyncpg.connect(**parse(url).arguments()) for _ in range(2)]
    server.configure(synchronous_standby_names="nobody")
    fault = Terminating(watch)
    dealing = asyncio.create_task(fault.run())
    try:
        async with asyncio.timeout(GENEROUS):
            while not fault.let_go:
                await probe.fetch("SELECT pg_logical_emit_message(true, 'probe', 'a commit that writes')")
        yield fault
    finally:
        dealing.cancel()
        await asyncio.gather(dealing, return_exceptions=True)
        server.configure(synchronous_standby_names="")
        for connection in (watch, probe):
            connection.terminate()
