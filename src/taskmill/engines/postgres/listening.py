"""One connection per process that listens. It hears hints, never facts: whoever needs to know looks into the tables.

While it is broken nothing is heard. It connects again by itself, at intervals that differ from process to process, and then tells everybody that
there was a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from taskmill.engines.postgres.connection import Connection, connect, hang_up
from taskmill.engines.postgres.errors import FAILURES, translate
from taskmill.engines.postgres.target import Target
from taskmill.errors import StoreError

__all__ = ["Listener"]

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds before the server is asked again."""


class _Ear(NamedTuple):
    heard: Callable[[str], None]
    lost: Callable[[], None]


class Listener:
    """The listening connection of a process, made when the first asks for it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ears: dict[str, list[_Ear]] = {}
        self._connection: Connection | None = None
        self._changing = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False

    async def listen(self, channel: str, heard: Callable[[str], None], lost: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        """`heard` is given what is said on the channel, from the moment this answers; `lost` is told after a gap. What it answers ends the
        listening."""
        ear = _Ear(heard, lost)
        async with self._changing:
            if self._closed:
                raise StoreError(f"{self._target} is not open", code="closed")
            try:
                await self._add(channel)
            except FAILURES as error:
                raise translate(error, self._target) from None
            self._ears.setdefault(channel, []).append(ear)

        async def close() -> None:
            await self._remove(channel, ear)

        return close

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait({self._again})
        async with self._changing:
            if self._connection is not None:
                await hang_up(self._connection)
                self._connection = None

    # Channels

    async def _add(self, channel: str) -> None:
        """The channel is listened to. If the connection is being made anew, that is left to whoever makes it."""
        if self._again is not None:
            return
        if self._connection is None:
            self._connection = await self._connected({channel, *self._ears})
        elif channel not in self._ears:
            await self._connection.add_listener(channel, self._hear)

    async def _remove(self, channel: str, ear: _Ear) -> None:
        async with self._changing:
            ears = self._ears.get(channel, [])
            if ear not in ears:
                return
            ears.remove(ear)
            if ears:
                return
            del self._ears[channel]
            connection = self._connection
            if connection is None or self._closed:
                return
            if not self._ears:
                self._connection = None
                await hang_up(connection)
                return
            with contextlib.suppress(*FAILURES):  # what is no longer listened to is not missed
                await connection.remove_listener(channel, self._hear)

    def _hear(self, _: object, __: int, channel: str, said: object) -> None:
        for ear in tuple(self._ears.get(channel, ())):
            ear.heard(str(said))

    # The connection

    async def _connected(self, channels: set[str]) -> Connection:
        connection = await connect(self._target)
        try:
            for channel in channels:
                await connection.add_listener(channel, self._hear)
            connection.add_termination_listener(self._broke)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _broke(self, connection: object) -> None:
        if connection is not self._connection or self._closed:
            return
        self._connection = None
        if self._ears:
            self._again = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        pause = FIRST_PAUSE
        while self._connection is None and self._ears:
            await asyncio.sleep(random.uniform(0.5, 1) * pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            async with self._changing:
                with contextlib.suppress(*FAILURES):
                    self._connection = await self._connected(set(self._ears)) if self._ears else None
        self._again = None
        for ears in tuple(self._ears.values()):
            for ear in tuple(ears):
                ear.lost()
