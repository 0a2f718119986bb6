"""A wire to PostgreSQL that breaks at the COMMIT of a handler's transaction: before the server has it, after it has answered, or while nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

__all__ = ["AFTER", "BEFORE", "LATE", "CommitWire", "commit_wire"]

BEFORE, AFTER, LATE = "before", "after", "late"
COMMIT = b"COMMIT;"


class CommitWire:
    """Of each connection that has said `mark`, the first COMMITs are cut, `cuts` in all."""

    def __init__(self, url: str, when: str, mark: bytes, cuts: int = 1) -> None:
        self._parts = urlsplit(url)
        self._when = when
        self._mark = mark
        self._flows: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._broken: set[asyncio.StreamWriter] = set()
        self.left = cuts
        self.cut = asyncio.Event()
        """Set when it has broken."""
        self.arrive = asyncio.Event()
        """LATE: when this is set, the COMMIT goes on to the server."""

    async def listen(self) -> str:
        """The URL of the same database by this wire."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1")
        port = self._server.sockets[0].getsockname()[1]
        user, _, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}"))

    async def close(self) -> None:
        self._server.close()
        for flow in self._flows:
            flow.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._flows, return_exceptions=True)

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._writers += [to_client, to_server]
        kept = asyncio.Queue[bytes]()
        """What the server answered to a COMMIT that is cut after it."""
        asking = asyncio.create_task(self._ask(client, to_server, to_client, kept))
        answering = asyncio.create_task(self._answer(server, to_client, kept))
        for flow in (asking, answering):
            self._flows.add(flow)
            flow.add_done_callback(self._flows.discard)

    async def _ask(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, to_client: asyncio.StreamWriter, kept: asyncio.Queue[bytes]) -> None:
        marked = False
        while data := await client.read(65_536):
            marked = marked or self._mark in data
            if not (marked and COMMIT in data and self.left > 0):
                to_server.write(data)
                continue
            self.left -= 1
            self._broken.add(to_client)
            if self._when == AFTER:
                to_server.write(data)
                await kept.get()
            to_client.transport.abort()
            self.cut.set()
            if self._when == LATE:
                await self.arrive.wait()
                to_server.write(data)
                await to_server.drain()
            break
        to_server.close()

    async def _answer(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, kept: asyncio.Queue[bytes]) -> None:
        while data := await server.read(65_536):
            if to_client in self._broken:
                kept.put_nowait(data)
            else:
                to_client.write(data)
        to_client.close()


@asynccontextmanager
async def commit_wire(url: str, when: str, mark: bytes) -> AsyncIterator[tuple[CommitWire, str]]:
    wire = CommitWire(url, when, mark)
    by_wire = await wire.listen()
    try:
        yield wire, by_wire
    finally:
        await wire.close()
