"""Those who wait for tasks to end, and those who listen to events: one reader per process for all of the first, a ring in the store for the second."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec

from taskmill.clock import SECOND, Clock
from taskmill.engines.sqlite import inspect
from taskmill.engines.sqlite.sql import Database, load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.wake import Listener, Waker
from taskmill.errors import NotFound, StoreError
from taskmill.events import Event, Kind
from taskmill.task import State

__all__ = ["Waiters", "listen"]

queries = load("inspect.sql")

Answer = TypeVar("Answer")

POLL = 0.5
"""Seconds between two looks when no hint comes."""
LISTEN = 60 * SECOND
"""How long events are kept for a listener that has not been heard of."""


class Read(Protocol):
    def __call__(self, read: Callable[[Database], Answer]) -> Awaitable[Answer]: ...


class Write(Protocol):
    def __call__(self, step: Callable[[Step], Answer]) -> Awaitable[Answer]: ...


class Waiters:
    """Everybody in this process who waits for a task to end; one query looks for all of them."""

    def __init__(self, read: Read, waker: Waker) -> None:
        self._read = read
        self._waker = waker
        self._waiting: dict[str, set[asyncio.Future[tuple[str, State]]]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def wait(self, ids: Sequence[str], timeout: int, clock: Clock) -> dict[str, State]:
        future: asyncio.Future[tuple[str, State]] = asyncio.get_running_loop().create_future()
        for task in ids:
            self._waiting.setdefault(task, set()).add(future)
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        try:
            now = clock.now()
            found = await self._read(lambda db: inspect.ended(db, ids, now))
            for task in ids:
                if task not in found:
                    raise NotFound(f"there is no task {task}", field="ids")
            there = {task: state for task, state in found.items() if state is not None}
            if there or timeout <= 0:
                return there
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout / 1e6):
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

    async def _look(self) -> None:
        listener = self._waker.listen("wait")
        try:
            while self._waiting:
                await listener.wait(POLL)
                try:
                    found = await self._read(self._ended)
                except StoreError:  # those who wait go on waiting; the next look may see
                    continue
                for task, state in found.items():
                    if state is not None:
                        self._tell(task, state)
        finally:
            listener.close()
            self._watch = None

    def _ended(self, db: Database) -> dict[str, State | None]:
        return inspect.ended(db, list(self._waiting), 0)

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


async def listen(write: Write, read: Read, waker: Waker) -> Events:
    """Register; from now on the ring keeps what happens."""
    listener = waker.listen("events")
    try:
        return Events(write, read, listener, await write(_register))
    except BaseException:
        listener.close()
        raise


def _register(step: Step) -> int:
    """Events are kept for a while more. If nobody had asked for them until now, something may have gone untold: everybody who listened is told so."""
    if not step.listening:
        step.listening = True
        step.event(Kind.RESYNC, "", 0)
    last = step.db.execute(queries.last_event).fetchone()
    step.db.execute(queries.listen_until, (step.now + LISTEN,))
    return int(max(last)) + step.events


_KINDS = {kind.value: kind for kind in Kind}


@lru_cache(maxsize=1_024)
def _said(data: str | None) -> Mapping[str, Any]:
    """Most events of a busy store say the same: of which type and queue a task is."""
    return MappingProxyType({} if data is None else msgspec.json.decode(data))


class Events:
    """The ring, read from where the listener came in."""

    def __init__(self, write: Write, read: Read, listener: Listener, last: int) -> None:
        self._write = write
        self._read = read
        self._listener = listener
        self._last = last
        self._renewed = asyncio.get_running_loop().time()
        self._told: deque[Event] = deque()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._told:
            await self._renew()
            await self._look()
            if not self._told:
                await self._listener.wait(POLL)
        return self._told.popleft()

    async def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._renewed > LISTEN / SECOND / 4:
            self._renewed = now
            await self._write(_register)

    async def _look(self) -> None:
        rows: list[tuple[Any, ...]] = await self._read(lambda db: db.execute(queries.events, (self._last,)).fetchall())
        if rows and rows[0][0] > self._last + 1:
            self._told.append(Event(kind=Kind.RESYNC, subject=""))
        for number, kind, subject, version, at, data in rows:
            self._last = number
            self._told.append(Event(kind=_KINDS[kind], subject=subject, version=version, at=at, data=_said(data)))

    async def aclose(self) -> None:
        self._listener.close()
