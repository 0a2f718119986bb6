"""The store under test, seen through: every verb goes to the real engine, and what passes is noted.

A test asks at once, without awaiting, what was submitted; so submits are noted where all of them pass, those of children and schedules too.
What a transaction submits is noted when it has committed. And since nobody else writes to this store, settings that did not pass here
have not changed: schedules need not be read again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Any

from msgspec.structs import replace

from taskmill.clock import HOUR, Clock
from taskmill.engine import Changes, Durability, Engine, Filter, Finished, Fired, Item, Joining, Outcome, Status, Submitted, Target, Term, Transaction
from taskmill.errors import ResultTimeout
from taskmill.task import TERMINAL, NewTask, State
from taskmill.testing.submissions import Noted

__all__ = ["Recorder"]


class Recorder:
    """An engine that notes. `work` runs what is ready for somebody who waits; `asked` hears of running tasks that somebody cancels."""

    def __init__(self, engine: Engine, work: Callable[[Sequence[str]], Awaitable[None]], asked: Callable[[Iterable[str]], None]) -> None:
        self._engine = engine
        self._work = work
        self._asked = asked
        self._clock: Clock = engine.clock
        self._uncommitted: dict[Transaction, list[tuple[NewTask, Submitted]]] = {}
        self._expiries: list[int] = []
        self.submitted: dict[str, Noted] = {}
        """By id, in the order of submission."""
        self.queues: dict[str, None] = {}
        self.changed = True
        """Whether schedules may have changed since they were read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    # Submits

    async def submit(
        self,
        tasks: Sequence[NewTask],
        *,
        unseal: Sequence[str] = (),
        reserved: bool = False,
        durability: Durability | None = None,
        tx: Transaction | None = None,
    ) -> tuple[Submitted, ...]:
        answers = await self._engine.submit(tasks, unseal=unseal, reserved=reserved, durability=durability, tx=tx)
        pairs = list(zip(tasks, answers, strict=True))
        if tx is None:
            self._note(pairs)
        else:
            self._uncommitted.setdefault(tx, []).extend(pairs)
        return answers

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        mine: list[tuple[NewTask, Submitted]] = []
        async with self._engine.transaction() as tx:
            try:
                yield tx
            finally:
                mine = self._uncommitted.pop(tx, [])
        self._note(mine)

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        fired = await self._engine.fire(schedule, version, tasks, next_at, term)
        if fired.tasks:
            self._note(zip(tasks, fired.tasks, strict=True))
        return fired

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        finished = await self._engine.finish(outcomes, tx=tx)
        if any(outcome.then for outcome in outcomes):
            stale = {refusal.token for refusal in finished.refused}
            then = [new for outcome in outcomes if outcome.token not in stale for new in outcome.then]
            self._note((new, Submitted(Status.CREATED, new.id, Durability.LOCAL)) for new in then if new.id not in self.submitted)
        return finished

    def _note(self, pairs: Iterable[tuple[NewTask, Submitted]]) -> None:
        for new, answer in pairs:
            if answer.status in (Status.CREATED, Status.REPLACED):
                self.submitted[answer.id] = Noted(replace(new, id=answer.id), self._clock.now())
                if new.queue is not None:
                    self.queues[new.queue] = None
                if new.expires_at is not None:
                    heappush(self._expiries, new.expires_at)

    # What only time decides

    def expires_at(self) -> int | None:
        """When the next task expires that has not ended meanwhile, or had."""
        return self._expiries[0] if self._expiries else None

    async def expire(self) -> None:
        """A worker leaves it to recovery to cancel them."""
        due = False
        while self._expiries and self._expiries[0] <= self._clock.now():
            heappop(self._expiries)
            due = True
        while due:
            due = (await self._engine.recover_lost()).more

    # Settings

    async def join(self, joining: Joining) -> None:
        await self._engine.join(joining)
        self.changed = True

    async def put(self, kind: str, name: str, value: bytes, *, version: int | None = None, operator: bool = True) -> Item:
        item = await self._engine.put(kind, name, value, version=version, operator=operator)
        self.changed = True
        return item

    async def drop(self, kind: str, name: str, *, version: int | None = None) -> bool:
        dropped = await self._engine.drop(kind, name, version=version)
        self.changed = True
        return dropped

    # What a worker would hear and do

    async def cancel(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        changes = await self._engine.cancel(which, after=after, n=n)
        self._asked(changed.task for changed in changes.tasks if changed.requested)
        return changes

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        """Whoever waits would wait for a worker, so what is ready runs now. The clock stays: who waits for more than that has waited in vain."""
        ended = await self.ended(ids)
        if not ended and timeout > 0:
            await self._work(ids)
            ended = await self.ended(ids)
            if not ended and timeout < HOUR:
                raise TimeoutError
            if not ended:
                raise ResultTimeout(
                    "the task has not ended, and nothing that is ready would end it",
                    hint='a delay, a retry or a limit holds it up: move the clock, for example await test.advance("1h")',
                    task_id=ids[0],
                )
        return ended

    async def ended(self, ids: Sequence[str]) -> dict[str, State]:
        """Those that have ended; NotFound for one that never was."""
        found = await self._engine.get(ids)
        if None in found:
            return await self._engine.wait(ids, 0)
        return {each.id: each.state for each in found if each is not None and each.state in TERMINAL}
