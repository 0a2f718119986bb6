"""Those who wait for work, for tasks to end, and for events.

Work is a token in a list, one for each queue, that a blocking read takes on a connection of its own; ends and events are hints on a channel. All of them may be
missed, so everybody also looks without one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from redis.exceptions import RedisError

from taskmill.clock import SECOND
from taskmill.engines.redis import inspect
from taskmill.engines.redis.store import Store, translate
from taskmill.errors import NotFound, StoreError
from taskmill.events import Event, Kind
from taskmill.task import State

__all__ = ["Events", "Hints", "Waiters", "Wakes", "listen"]

POLL = 0.5
BLOCK = 0.5
"""Seconds of one blocking read: so long does its end take."""
DEAF = 5.0
"""Seconds after which a server that has not even said that there is nothing is looked for anew."""
KEPT = 60 * SECOND

_decode = msgspec.msgpack.Decoder().decode
_KINDS = {kind.value: kind for kind in Kind}


class Wakes:
    """The one in this process that takes tokens, for everybody who wants a hint."""

    def __init__(self, store: Store, queues: Callable[[], Sequence[str]]) -> None:
        self._store = store
        self._queues = queues
        self._hints: set[Hints] = set()
        self._reader: asyncio.Task[None] | None = None

    def listen(self, heard: asyncio.Event | None = None) -> Hints:
        hints = Hints(self, heard or asyncio.Event())
        self._hints.add(hints)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        return hints

    async def leave(self, hints: Hints) -> None:
        self._hints.discard(hints)
        if not self._hints:
            await self.close()

    async def close(self) -> None:
        """The reader is not stopped in the middle of a command that is answered: an answer that nobody reads would be a token that nobody has. A server that is
        away answers nothing, and nobody waits for it."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.wait([reader], timeout=2 * BLOCK)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        connection: Any = None
        try:
            while self._reader is not None and self._hints:
                try:
                    connection = connection or await self._store.connection()
                    found = await self._take(connection)
                except (RedisError, StoreError, OSError, TimeoutError):
                    await _dropped(connection)
                    connection = None
                    await asyncio.sleep(POLL)
                    found = True  # what was said meanwhile was not heard
                if found:
                    for hints in self._hints:
                        hints.tell()
        finally:
            await _dropped(connection)

    async def _take(self, connection: Any) -> bool:
        keys = [self._store.key(f"wake:{queue}") for queue in await self._known()]
        if not keys:
            await asyncio.sleep(0.05)
            return False
        async with asyncio.timeout(DEAF):
            return await connection.blpop(keys, timeout=BLOCK) is not None

    async def _known(self) -> Sequence[str]:
        queues = self._queues()
        return queues or sorted(queue.decode() for queue in await self._store.ask("SMEMBERS", self._store.key("queues")))


async def _dropped(connection: Any) -> None:
    if connection is not None:
        with contextlib.suppress(RedisError, OSError):
            await connection.aclose()


class Hints:
    """That there may be work."""

    def __init__(self, wakes: Wakes, heard: asyncio.Event) -> None:
        self._wakes = wakes
        self._heard = heard

    def tell(self) -> None:
        self._heard.set()

    def __aiter__(self) -> Hints:
        return self

    async def __anext__(self) -> None:
        await self._heard.wait()
        self._heard.clear()

    async def aclose(self) -> None:
        await self._wakes.leave(self)


class Waiters:
    """Everybody in this process who waits for a task to end; one read looks for all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Future[tuple[str, State]]]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        future: asyncio.Future[tuple[str, State]] = asyncio.get_running_loop().create_future()
        for task in ids:
            self._waiting.setdefault(task, set()).add(future)
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        try:
            found = await inspect.ended(self._store, ids)
            for task in ids:
                if task not in found:
                    raise NotFound(f"there is no task {task}", field="ids")
            there = {task: state for task, state in found.items() if state is not None}
            if there or timeout <= 0:
                return there
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout / SECOND):
                    task, state = await future
                return {task: state}
            return {}
        finally:
            for task in ids:
                others = self._waiting.get(task)
                if others is not None:
                    others.discard(future)
                    if not others:
                        del self._waiting[task]

    async def _look(self) -> None:
        store = self._store
        hints: Any = None
        renewed = 0.0
        try:
            while self._waiting:
                try:
                    if hints is None:
                        hints = (await store.client()).pubsub(ignore_subscribe_messages=True)
                        await hints.subscribe(store.key("hints"))
                    now = asyncio.get_running_loop().time()
                    if now - renewed > KEPT / SECOND / 4:
                        renewed = now
                        await store.ask("SET", store.key("waited"), await inspect.now_of(store) + KEPT)
                    for task, state in (await inspect.ended(store, list(self._waiting))).items():
                        if state is not None:
                            self._tell(task, state)
                    await hints.get_message(timeout=POLL)
                except (RedisError, StoreError, OSError):
                    await _dropped(hints)
                    hints = None
                    await asyncio.sleep(POLL)
        finally:
            self._watch = None
            await _dropped(hints)

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


async def listen(store: Store) -> Events:
    """Register; from now on the stream keeps what happens."""
    return Events(store, await store.run("listen", [KEPT]))


class Events:
    """The stream, read from where the listener came in."""

    def __init__(self, store: Store, last: int) -> None:
        self._store = store
        self._last = last
        self._told: deque[Event] = deque()
        self._connection: Any = None
        self._renewed = asyncio.get_running_loop().time()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._told:
            now = asyncio.get_running_loop().time()
            if now - self._renewed > KEPT / SECOND / 4:
                self._renewed = now
                await self._store.run("listen", [KEPT])
            await self._look()
        return self._told.popleft()

    async def _look(self) -> None:
        key = self._store.key("events")
        try:
            self._connection = self._connection or await self._store.connection()
            found = await self._connection.xread({key: f"{self._last}-1"}, count=100, block=int(POLL * 1_000))
        except (RedisError, OSError) as error:
            await _dropped(self._connection)
            self._connection = None
            raise translate(error, self._store.target) from error
        entries = found[0][1] if found else []
        for number, fields in entries:
            told = _decode(fields[b"e"])
            place = int(number.partition(b"-")[0])
            if place - len(told) > self._last:
                self._told.append(Event(kind=Kind.RESYNC, subject=""))
            self._last = place
            for kind, subject, version, at, data in told:
                self._told.append(Event(kind=_KINDS[kind], subject=subject, version=version, at=at, data=data or {}))

    async def aclose(self) -> None:
        await _dropped(self._connection)
