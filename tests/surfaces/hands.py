"""An app on a store, with a table of the user's own beside it, and a worker by hand: it claims, and the test runs the attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from taskmill import App, Context
from taskmill.engine import Outcome, Refusal, Room
from taskmill.task import Task
from taskmill.worker.attempt import Running, attempt_async, attempt_sync
from tests.conformance.tools import execute

__all__ = ["Hands", "hands"]


class Hands:
    """One worker whose handlers the test declares as it needs them."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.requests = 0
        self.made = 0

    async def next(self, handler: Callable[..., Any], **payload: object) -> Running:
        """A task of this handler, claimed."""
        self.made += 1
        declared: Any = self.app.task(name=f"work-{self.made}", queue=f"work-{self.made}")(handler)
        await self.app.engine.join(self.app.joining("anna"))
        await self.app.submit(declared, payload)
        return await self.again()

    async def again(self, worker: str = "anna") -> Running:
        """The task that is next in the queue of the last handler."""
        if worker not in {each.id for each in await self.app.engine.workers()}:
            await self.app.engine.join(self.app.joining(worker))
        self.requests += 1
        [claimed] = (await self.app.engine.claim(worker, self.requests, [f"work-{self.made}"], Room(1))).tasks
        received = self.app.clock.monotonic()
        running = Running(claimed, self.app.types[claimed.type], received, asyncio.get_running_loop())
        running.started, running.deadline = received, received + claimed.timeout
        return running

    async def attempt(self, running: Running) -> Outcome:
        """As the executor does it, on the loop or in a thread."""
        if running.declared.is_async:
            return await attempt_async(self.app, running)
        return await asyncio.to_thread(attempt_sync, self.app, running)

    async def run(self, handler: Callable[..., Any], **payload: object) -> tuple[Outcome, Task]:
        """Claimed, attempted, and what the store holds of it then; nobody has finished it."""
        running = await self.next(handler, **payload)
        outcome = await self.attempt(running)
        return outcome, await self.task(running)

    async def task(self, running: Running) -> Task:
        [found] = await self.app.engine.get([running.claimed.id])
        assert isinstance(found, Task)
        return found

    def context(self, running: Running) -> Context:
        return Context(self.app, running.claimed, running)

    async def finish(self, outcome: Outcome) -> tuple[Refusal, ...]:
        return (await self.app.engine.finish([outcome])).refused

    async def rows(self) -> list[int]:
        """What the handlers have written, for others to see."""
        async with self.app.transaction() as tx:
            return [row[0] for row in await execute(tx, "SELECT number FROM effect ORDER BY number")]


@asynccontextmanager
async def hands(url: str) -> AsyncIterator[Hands]:
    async with App(url) as app:
        async with app.transaction() as tx:
            await execute(tx, "CREATE TABLE effect (number integer)")
        try:
            yield Hands(app)
        finally:
            async with app.transaction() as tx:
                await execute(tx, "DROP TABLE effect")
