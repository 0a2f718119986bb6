"""Those who listen to a store on a Cluster: each shard is heard by itself, and told as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from taskmill.engines.redis.store import Shards
from taskmill.engines.redis.waiting import Events, Hints, listen
from taskmill.errors import StoreError
from taskmill.events import Event

if TYPE_CHECKING:
    from taskmill.engines.redis.engine import RedisEngine

__all__ = ["ClusterEvents", "ClusterHints"]

LOOK = 0.25
"""Seconds between two looks for shards that nobody used before."""
MOST = 10_000


class ClusterHints:
    """That there may be work in one of the shards."""

    def __init__(self, listeners: set[ClusterHints]) -> None:
        self._listeners = listeners
        self._heard = asyncio.Event()
        self._hints: dict[RedisEngine, Hints] = {}
        self._looking: asyncio.Task[None] | None = None
        listeners.add(self)

    def hear(self, parts: Iterable[RedisEngine]) -> None:
        for part in parts:
            if part not in self._hints:
                self._hints[part] = part.hints(self._heard)

    def look(self, parts: Callable[[], Awaitable[Iterable[RedisEngine]]], now: Iterable[RedisEngine]) -> None:
        """Hear these, and what is used later."""
        self.hear(now)
        self._looking = asyncio.create_task(self._look(parts))

    async def _look(self, parts: Callable[[], Awaitable[Iterable[RedisEngine]]]) -> None:
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(StoreError):
                known = len(self._hints)
                self.hear(await parts())
                if len(self._hints) > known:
                    self._heard.set()

    def __aiter__(self) -> ClusterHints:
        return self

    async def __anext__(self) -> None:
        await self._heard.wait()
        self._heard.clear()

    async def aclose(self) -> None:
        self._listeners.discard(self)
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        for hints in self._hints.values():
            await hints.aclose()


class ClusterEvents:
    """The streams of all shards; of one that is new, from its beginning."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._told: asyncio.Queue[Event | BaseException] = asyncio.Queue(MOST)
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    async def opened(cls, shards: Shards) -> ClusterEvents:
        events = cls(shards)
        for store in await shards.in_use():
            events._read(store.number, await listen(store))
        events._looking = asyncio.create_task(events._look())
        return events

    def _read(self, shard: int, stream: Events) -> None:
        self._readers[shard] = asyncio.create_task(self._reader(stream))

    async def _reader(self, stream: Events) -> None:
        try:
            async for event in stream:
                await self._told.put(event)
        except StoreError as error:
            await self._told.put(error)
        finally:
            await stream.aclose()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(StoreError):
                for store in await self._shards.in_use():
                    if store.number not in self._readers:
                        await listen(store)
                        self._read(store.number, Events(store, 0))

    def __aiter__(self) -> ClusterEvents:
        return self

    async def __anext__(self) -> Event:
        told = await self._told.get()
        if isinstance(told, BaseException):
            raise told
        return told

    async def aclose(self) -> None:
        tasks = [*self._readers.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
