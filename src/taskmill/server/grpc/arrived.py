"""What has arrived of a stream of tasks and waits to be stored; bounded, so that who writes faster than the store is slowed down."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from taskmill.engine import Durability, Submitted
from taskmill.task import NewTask

__all__ = ["Arrived", "Taken"]

TAKEN = 2_000
"""Tasks and edges of a stream that are stored and answered together: what fits one by one is not refused for its company."""
MOST_WAITING = 10_000
MOST_BYTES = 4 << 20
"""Tasks that wait, and bytes of their payloads, before the stream is not read from."""
MOST_BYTES_OF_ALL = 64 << 20
"""Of all streams of this process."""
PAUSE = 0.05
"""Seconds between looks whether the other streams have made room."""


class Taken(NamedTuple):
    """Tasks to be stored together, and answers that are known already, in the order in which they came."""

    read: Sequence[NewTask | Submitted]
    level: Durability | None


class Arrived:
    """One reader fills it, one writer to the store takes from it."""

    bytes_of_all = 0

    def __init__(self, stopping: asyncio.Event) -> None:
        self._messages: deque[Taken] = deque()
        self._waiting = 0
        self._bytes = 0
        self._ended = False
        self._stopping = stopping
        self._stir = asyncio.Event()
        self._room = asyncio.Event()

    async def add(self, read: Sequence[NewTask | Submitted], level: Durability | None) -> None:
        size = _size(read)
        while self._waiting and (self._waiting + len(read) > MOST_WAITING or self._bytes + size > MOST_BYTES):
            self._room.clear()
            await self._room.wait()
        while Arrived.bytes_of_all + size > MOST_BYTES_OF_ALL and Arrived.bytes_of_all:  # noqa: ASYNC110 - the room is that of all streams
            await asyncio.sleep(PAUSE)
        self._messages.append(Taken(read, level))
        self._waiting += len(read)
        self._count(size)
        self._stir.set()

    def _count(self, size: int) -> None:
        self._bytes += size
        Arrived.bytes_of_all += size

    def close(self) -> None:
        """What still waits is stored by nobody."""
        self._count(-self._bytes)

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._stir.set()

    async def take(self) -> Taken | None:
        """All that is there and belongs together; None at the end, or when the server stops and nothing waits."""
        while not self._messages:
            if self._ended or self._stopping.is_set():
                return None
            await self._stirred()
        read, level = self._messages.popleft()
        together = list(read)
        weight = _weight(read)
        while self._messages and self._messages[0].level == level and weight + _weight(self._messages[0].read) <= TAKEN:
            weight += _weight(self._messages[0].read)
            together += self._messages.popleft().read
        self._waiting -= len(together)
        self._count(-_size(together))
        self._room.set()
        return Taken(together, level)

    async def _stirred(self) -> None:
        self._stir.clear()
        waits = {asyncio.ensure_future(self._stir.wait()), asyncio.ensure_future(self._stopping.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


def _size(read: Sequence[NewTask | Submitted]) -> int:
    return sum(len(each.payload) for each in read if isinstance(each, NewTask))


def _weight(read: Sequence[NewTask | Submitted]) -> int:
    return sum(1 + len(each.edges) if isinstance(each, NewTask) else 1 for each in read)
