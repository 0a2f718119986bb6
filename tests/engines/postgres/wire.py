"""A wire to a server that a test can cut: what has passed has passed, what comes back does not arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["Wire", "wire"]


class Wire:
    """Connections through it go to `host` and `port`."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._flows: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.port = 0
        self.answers = asyncio.Event()
        """Cleared: what the server says is kept from its clients."""
        self.answers.set()
        self.asked = asyncio.Event()
        """Set when a client says something while the answers are kept back."""

    async def listen(self) -> None:
        """At the same port each time."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Connections are broken, and no new one is taken."""
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self._to)
        self._writers += [writer, to_server]
        for flow in (self._ask(reader, to_server), self._answer(from_server, writer)):
            task = asyncio.create_task(flow)
            self._flows.add(task)
            task.add_done_callback(self._flows.discard)

    async def _ask(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(65_536):
            server.write(data)
            if not self.answers.is_set():
                self.asked.set()
        server.close()

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65_536):
            await self.answers.wait()
            client.write(data)
        client.close()

    def cut(self) -> None:
        """Every client sees its connection broken."""
        for flow in self._flows:
            flow.cancel()
        for writer in self._writers:
            writer.transport.abort()

    async def gone(self) -> None:
        """Nothing of it is left."""
        await asyncio.gather(*self._flows, return_exceptions=True)
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def wire(host: str, port: int) -> AsyncIterator[Wire]:
    made = Wire(host, port)
    await made.listen()
    try:
        yield made
    finally:
        made.refuse()
        await made.gone()
