"""Ways in which a Redis server comes back without its last writes: from a snapshot, from a file whose end never reached the disk, as a replica that lags.

Each has a URL that stays the same, `mark`, behind which everything may be lost, and `lose`, which kills the server and lets what is left take its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Protocol

from tests.engines.postgres.wire import Wire
from tests.faults.processes import GENEROUS
from tests.servers import redis as servers
from tests.servers.redis import RedisServer

__all__ = ["WAYS", "Losing", "Switching", "losing", "switching"]

WAYS = ("snapshot", "file", "replica")


def _until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GENEROUS
    while not look():
        assert time.monotonic() < deadline, "it never writes its file"
        time.sleep(0.01)


class Losing(Protocol):
    url: str
    server: RedisServer

    def mark(self) -> None: ...

    def lose(self) -> None: ...


class Snapshot:
    """No append-only file: back to the last snapshot."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = server.url()

    def mark(self) -> None:
        with self.server.client() as client:
            client.save()

    def lose(self) -> None:
        self.server.stop("kill")
        self.server.start()


class File:
    """`appendfsync everysec`: the machine dies, and the end of the file was not on its disk; where it ends nobody chose.

    Redis leaves the half transaction at its end in the file, and would replay that half with the next restart; so the file is written anew, as
    docs/engines/redis.md says."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = server.url()
        self._random = Random(0)
        self._kept = 0

    @property
    def _path(self) -> Path:
        return max((self.server.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)

    def mark(self) -> None:
        with self.server.client() as client:
            _until(lambda: not client.info("persistence")["aof_buffer_length"])
        self._kept = self._path.stat().st_size

    def lose(self) -> None:
        self.server.stop("kill")
        size = self._path.stat().st_size
        assert size > self._kept
        os.truncate(self._path, self._random.randrange(self._kept, size))
        self.server.start()
        with self.server.client() as client:
            client.bgrewriteaof()
            _until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


class Switching(Wire):
    """Goes to another server when told to; what was connected is cut."""

    def to(self, server: RedisServer) -> None:
        self._to = ("127.0.0.1", server.port)
        self.cut()


class Replica:
    """A replica whose link is cut at the mark, and that is promoted; whoever asks comes to it by the same address."""

    def __init__(self, primary: RedisServer, replica: RedisServer, wire: Switching) -> None:
        self.server = primary
        self._replica = replica
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self.url = primary.url().replace(f":{primary.port}/", f":{wire.port}/")

    def mark(self) -> None:
        with self.server.client() as client:
            assert client.execute_command("WAIT", 1, int(GENEROUS * 1_000)) == 1
        with self._replica.client() as client:
            client.replicaof("127.0.0.1", "1")

    def lose(self) -> None:
        self.server.stop("kill")
        with self._replica.client() as client:
            client.replicaof("NO", "ONE")
        self.server = self._replica
        self._loop.call_soon_threadsafe(self._wire.to, self._replica)


@contextlib.asynccontextmanager
async def switching(server: RedisServer) -> AsyncIterator[Switching]:
    wire = Switching("127.0.0.1", server.port)
    await wire.listen()
    try:
        yield wire
    finally:
        wire.refuse()
        await wire.gone()


@contextlib.asynccontextmanager
async def losing(way: str) -> AsyncIterator[Losing]:
    if way == "snapshot":
        with servers.started() as server:
            yield Snapshot(server)
    elif way == "file":
        with servers.started(appendonly="yes", appendfsync="everysec", auto_aof_rewrite_percentage=0) as server:
            yield File(server)
    else:
        with servers.started(repl_diskless_sync_delay=0) as primary, servers.started(replica_of=primary) as replica:
            async with switching(primary) as wire:
                yield Replica(primary, replica, wire)
