"""Everything that the surfaces of one server process share: the open store, who may call, what they may do, and how it goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import msgspec

from taskmill.clock import SECOND, Clock, SystemClock
from taskmill.config import Settings
from taskmill.engine import Engine
from taskmill.errors import StoreError, TaskmillError
from taskmill.operations import Operations
from taskmill.server.access import Keys
from taskmill.server.audit import Audit
from taskmill.server.crew import Crew
from taskmill.server.desk import Desk
from taskmill.server.hub import Hub
from taskmill.server.pages import Pages
from taskmill.server.quotas import Quotas
from taskmill.telemetry import CONTENT_TYPE, Metrics

__all__ = ["Place", "Service", "Supervisor"]

T = TypeVar("T")

STORE_PATIENCE = 1.0


class Supervisor(Protocol):
    """Who can be asked what keeps it from being ready (`missing`) and what its workers counted (`metrics`)."""

    async def ask(self, question: str) -> bytes: ...


class Place(NamedTuple):
    """Where a server can be reached."""

    http: str
    grpc: str | None = None

    def __str__(self) -> str:
        return self.http if self.grpc is None else f"{self.http} and, over gRPC, at {self.grpc}"


class Service:
    """One server process over one store. `open`: whoever reaches it may do everything while the store has no keys."""

    def __init__(self, engine: Engine, settings: Settings, *, audit: Path, open: bool = False, clock: Clock | None = None) -> None:
        self.metrics = Metrics()
        self.engine = self.metrics.watch(engine)
        self.new_id = engine.new_id
        self.settings = settings
        self.clock = clock or SystemClock()
        self.operations = Operations(self.engine)
        self.keys = Keys(self.engine, clock=self.clock, open=open)
        self.quotas = Quotas(self.engine, self.clock)
        noted = Audit(audit, self.clock)
        self.desk = Desk(self.operations, self.keys, self.quotas, noted, self.clock)
        self.crew = Crew(self.engine, self.keys, lambda leases: self.metrics.count("taskqueue_leases_lost_total", times=leases), settings, noted)
        self.hub = Hub(self.operations, self.keys, clock=self.clock)
        self.pages = Pages()
        self.place = Place("")
        self._looking = asyncio.Lock()
        self._looked: tuple[int, bool] | None = None
        """When the store was last asked, and whether it answered."""
        self.started = False
        self.draining = False
        self._stopping = asyncio.Event()
        self.supervisor: Supervisor | None = None
        """Whoever started this process, under `taskmill up`."""

    async def __aenter__(self) -> Self:
        await self.engine.open()
        self.started = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.hub.close()
        await self.crew.close()
        await self.operations.drain()
        await self.engine.close()

    def drain(self) -> None:
        """No new work is to be sent here; what is under way ends, and those who only wait are answered now."""
        self.draining = True
        self._stopping.set()
        self.crew.drain()
        self.hub.drain()

    async def unless_draining(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """What is waited for, or None when this server is to stop before it comes; whoever asked may ask another."""
        coming, stopping = asyncio.create_task(waiting), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()

    scrape_type = CONTENT_TYPE

    async def scrape(self) -> bytes:
        """The metrics of this process and of the workers beside it, and what the store says of queues and workers."""
        others: list[bytes] = []
        if self.supervisor is not None:
            with contextlib.suppress(StoreError):  # its own are told all the same
                others.append(await self.supervisor.ask("metrics"))
        return await self.metrics.scrape(others)

    async def missing(self) -> list[str]:
        """What keeps it from being ready."""
        found = ["it is stopping"] if self.draining else []
        if not await self._store_answers():
            found.append("the store does not answer")
        if self.supervisor is not None:
            told = msgspec.json.decode(await self.supervisor.ask("missing"), type=list[str])
            found += [reason for reason in told if reason not in found]
        return found

    async def _store_answers(self) -> bool:
        """Looked at once a second, for however many ask."""
        async with self._looking:
            if self._looked is None or self.clock.monotonic() - self._looked[0] >= SECOND:
                self._looked = (self.clock.monotonic(), await self._look())
            return self._looked[1]

    async def _look(self) -> bool:
        """Whether it can be read and written: dropping what is not there takes the locks of a write and changes nothing."""
        try:
            async with asyncio.timeout(STORE_PATIENCE):
                await self.engine.drop("access", "probe")
        except (TaskmillError, TimeoutError, OSError):
            return False
        return True
