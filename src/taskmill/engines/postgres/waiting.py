"""Those who wait for work, for tasks to end, and for events: one connection per process hears hints for all of them.

A hint says where to look, never what is there, and may be missed; so everybody also looks without one, at intervals that differ from process to process and
grow while nothing happens. Behind a pooler nobody can listen, and the looking is all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from taskmill.clock import SECOND
from taskmill.engines.postgres import inspect
from taskmill.engines.postgres.horizon import Horizon
from taskmill.engines.postgres.store import Store
from taskmill.errors import NotFound, StoreError
from taskmill.events import Event, Kind
from taskmill.task import State

__all__ = ["Events", "Hints", "Hub", "Waiters", "listen"]

KEPT = 60 * SECOND
"""How long ends are announced and events kept for one who has not been heard of since."""
RING = 10_000
"""Events kept for listeners; one that falls further behind is told to read anew."""
BATCH = 1_000
GRACE_LOOKS, GRACE = 20, 0.005
"""How long a new listener waits for steps that are under way and tell nothing, before it takes them for lost."""

FIRST, LONGEST, LONGEST_DEAF = 0.05, {"work": 5.0, "ended": 1.0, "event": 1.0}, 0.5
"""Seconds between two looks: the first, the longest, and the longest where no hints can come. Who claims polls by itself, and needs few that are made up."""


class Ear:
    """One who listens to one kind of hint."""

    def __init__(self, hub: Hub, kind: str) -> None:
        self._hub = hub
        self._kind = kind
        self._heard = asyncio.Event()
        self._pause = FIRST

    def tell(self) -> None:
        self._heard.set()

    def hurry(self) -> None:
        """Something happened: look soon, whether or not the hint comes."""
        self._pause = FIRST

    async def wait(self) -> None:
        """Until the next hint, or until it is time to look without one."""
        pause = self._pause * random.uniform(0.8, 1.2)
        self._pause = min(2 * self._pause, LONGEST_DEAF if self._hub.deaf else LONGEST[self._kind])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):  # not wait_for: in Python 3.11 it forgets a cancel that comes together with the hint
                await self._heard.wait()
        self._heard.clear()

    def close(self) -> None:
        self._hub.leave(self._kind, self)


class Hub:
    """The one that listens to the store and passes on what it hears."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ears: dict[str, set[Ear]] = {"work": set(), "ended": set(), "event": set()}
        self._end: Callable[[], Awaitable[None]] | None = None
        self._starting = asyncio.Lock()
        self.deaf = store.pool.pooled

    async def ear(self, kind: str) -> Ear:
        """From the moment this answers hints of this kind are heard."""
        async with self._starting:
            if self._end is None:
                self._end = await self._store.pool.listen(self._store.schema, self._hear, self._lost)
                self.deaf = self._end is None
        ear = Ear(self, kind)
        self._ears[kind].add(ear)
        return ear

    def leave(self, kind: str, ear: Ear) -> None:
        self._ears[kind].discard(ear)

    def _hear(self, said: str) -> None:
        for ear in self._ears.get(said, ()):
            ear.tell()

    def _lost(self) -> None:
        """There was a gap: anything may have been said in it."""
        for ears in self._ears.values():
            for ear in ears:
                ear.tell()

    def active(self) -> None:
        """This process has work: where no hints come, more of it is looked for soon."""
        if self.deaf:
            for ear in self._ears["work"]:
                ear.hurry()

    def changed(self) -> None:
        """A step of this process has left work for later: its own worker looks when that is due. A hint of the store may come before that commit."""
        for ear in self._ears["work"]:
            ear.tell()

    async def wakeups(self) -> Hints:
        return Hints(await self.ear("work"))

    async def close(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            await end()


class Hints:
    """That there may be work, as a stream. Nothing is asked of the store for it: who gets a hint claims, and that is the look."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear

    def __aiter__(self) -> Hints:
        return self

    async def __anext__(self) -> None:
        await self._ear.wait()

    async def aclose(self) -> None:
        self._ear.close()


class Waiters:
    """Everybody in this process who waits for a task to end; one query looks for all of them."""

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store = store
        self._hub = hub
        self._waiting: dict[str, set[asyncio.Future[tuple[str, State]]]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._ear: Ear | None = None
        self._asked: float | None = None

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        future: asyncio.Future[tuple[str, State]] = asyncio.get_running_loop().create_future()
        for task in ids:
            self._waiting.setdefault(task, set()).add(future)
        try:
            found = await inspect.ended(self._store, ids)
            for task in ids:
                if task not in found:
                    raise NotFound(f"there is no task {task}", field="ids")
            there = {task: state for task, state in found.items() if state is not None}
            if there or timeout <= 0:
                return there
            self._begin_to_look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout / SECOND):
                    task, state = await future
                return {task: state}
            return {}
        finally:
            self._leave(ids, future)

    def _leave(self, ids: Sequence[str], future: asyncio.Future[tuple[str, State]]) -> None:
        for task in ids:
            others = self._waiting.get(task)
            if others is not None:
                others.discard(future)
                if not others:
                    del self._waiting[task]

    def _begin_to_look(self) -> None:
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        elif self._ear is not None:  # whoever comes last is not kept waiting for longer than the first
            self._ear.hurry()
            self._ear.tell()

    async def _look(self) -> None:
        """Those who wait go on waiting when the store is away; the next look may see."""
        try:
            while self._waiting:
                try:
                    self._ear = self._ear or await self._hub.ear("ended")
                    await self._ask_for_hints()
                    for task, state in (await inspect.ended(self._store, self._waiting)).items():
                        if state is not None:
                            self._tell(task, state)
                            self._ear.hurry()
                except StoreError:
                    await asyncio.sleep(LONGEST["ended"] * random.uniform(0.5, 1))
                if self._ear is not None and self._waiting:
                    await self._ear.wait()
        finally:
            if self._ear is not None:
                self._ear.close()
            self._ear = self._watch = None

    async def _ask_for_hints(self) -> None:
        """Ends are announced only while somebody waits, and that is said now and then."""
        now = asyncio.get_running_loop().time()
        if self._hub.deaf or (self._asked is not None and now - self._asked < KEPT / SECOND / 4):
            return
        await self._store.pool.fetchval(self._store.load("waiting.sql").await_ends, KEPT, self._store.now())
        self._asked = now

    def _tell(self, task: str, state: State) -> None:
        for future in self._waiting.get(task, ()):
            if not future.done():
                future.set_result((task, state))

    async def close(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch


async def listen(store: Store, hub: Hub) -> Events:
    """Register; from now on events are kept."""
    ear = await hub.ear("event")
    try:
        return await Events(store, ear).begin()
    except BaseException:
        ear.close()
        raise


class Events:
    """The log of events, read from where the listener came in, each as it becomes visible.

    A transaction that began earlier may commit later, so up to the horizon everything was told, and behind it the numbers that were told are remembered.
    """

    def __init__(self, store: Store, ear: Ear) -> None:
        self._store = store
        self._ear = ear
        self._horizon = Horizon(store, "event", "event_number_seq")
        self._queries = store.load("waiting.sql")
        self._told: deque[Event] = deque()
        self._done = 0
        self._seen: set[int] = set()
        self._blind: frozenset[str] = frozenset()
        self._renewed = 0.0

    async def begin(self) -> Events:
        await self._renew()
        for _ in range(GRACE_LOOKS):
            if not self._blind:
                break
            await asyncio.sleep(GRACE)
            self._blind &= await self._writers()
        await self._horizon.look()
        # With somebody still writing, numbers that are not there yet may lie below those that are.
        self._done = self._horizon.safe or max(0, self._horizon.last - RING)
        self._seen = {row["number"] for row in await self._store.pool.fetch(self._queries.numbers, self._done)}
        return self

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._told:
            if asyncio.get_running_loop().time() - self._renewed > KEPT / SECOND / 4:
                await self._renew()
            if not await self._look():
                await self._ear.wait()
        return self._told.popleft()

    async def _renew(self) -> None:
        """Steps that were under way when nobody listened tell nothing, and are not over yet."""
        if await self._store.pool.fetchval(self._queries.hear, KEPT, RING, self._store.now()):
            self._blind = await self._writers()
        self._renewed = asyncio.get_running_loop().time()

    async def _writers(self) -> frozenset[str]:
        return frozenset(await self._store.pool.fetchval(self._queries.writers))

    async def _look(self) -> bool:
        """Whether there is anything to tell. What went untold, or is no longer in the ring, is told as `resync`."""
        if self._blind and not self._blind & await self._writers():
            self._blind = frozenset()
            self._told.append(Event(kind=Kind.RESYNC, subject=""))
        safe, most = await self._horizon.look(), BATCH + len(self._seen)
        rows = await self._store.pool.fetch(self._queries.events, self._done, most)
        last, numbered = rows[0]["last"], [row for row in rows if row["number"] is not None]
        fresh = [row for row in numbered if row["number"] not in self._seen]
        if self._done < last - RING:
            self._told.append(Event(kind=Kind.RESYNC, subject=""))
        self._told.extend(map(_event, fresh))
        self._seen.update(row["number"] for row in fresh)
        read = numbered[-1]["number"] if len(numbered) == most else safe
        self._done = max(self._done, min(safe, read), min(last - RING, read))
        self._seen = {number for number in self._seen if number > self._done}
        if fresh:
            self._ear.hurry()
        return bool(self._told)

    async def aclose(self) -> None:
        self._ear.close()


def _event(row: Any) -> Event:
    _, _, kind, subject, version, at, data = row
    return Event(kind=Kind(kind), subject=subject, version=version, at=at, data={} if data is None else msgspec.json.decode(data))
