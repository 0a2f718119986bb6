"""A server over a store, in a thread with a loop of its own, so that tests may block, close loops and fork; and a wire to it that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from taskmill.config import Settings
from taskmill.engines import create
from taskmill.server.access import create_key
from taskmill.server.http import Http
from taskmill.server.listening import bound, serve_http
from taskmill.server.rest import ROUTES
from taskmill.server.service import Service

__all__ = ["Server", "Wire", "serving", "wire"]

T = TypeVar("T")


class Server:
    """What `taskmill api` runs, and how often each route was asked for."""

    def __init__(self, store: str, folder: Path, port: int = 0) -> None:
        self.requests: Counter[str] = Counter()
        self._store = store
        self._folder = folder
        self._sock = bound("127.0.0.1", port)
        self.port: int = self._sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60)

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        settings = Settings()
        async with Service(create(self._store), settings, audit=self._folder / "audit.jsonl", open=True) as self.service:
            app = Http(self.service, ROUTES, observed=self._observed)
            self._ready.set()
            await serve_http(app, self._sock, self._stop, grace=settings.grace_period)

    def _observed(self, surface: str, route: str, status: str, micros: int) -> None:
        self.requests[route] += 1
        self.requests[status] += 1

    def drain(self) -> None:
        """As a SIGTERM does."""

        def both() -> None:
            self.service.drain()
            self._stop.set()

        self.loop.call_soon_threadsafe(both)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.drain()
            self._thread.join(60)
        self._sock.close()

    def at_server(self, make: Callable[[Service], Coroutine[Any, Any, T]]) -> T:
        """Something done on the server's own store."""
        return asyncio.run_coroutine_threadsafe(make(self.service), self.loop).result(60)

    def key(self, *scopes: str, **more: Any) -> str:
        """A new API key; from now on the server wants one."""

        async def make(service: Service) -> str:
            token, _ = await create_key(service.engine, name="", scopes=scopes or ("admin",), **more)
            service.keys._read_at = None  # known now, not in two seconds
            return token

        return self.at_server(make)


@contextlib.contextmanager
def serving(store: str, folder: Path, port: int = 0) -> Iterator[Server]:
    server = Server(store, folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Wire:
    """Between a client and a server. `cut`: so many answers to come are swallowed, and their connections with them, when the server has given them; `spared`:
    so many arrive before that."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut = 0
        self.spared = 0
        self.lost = 0
        self.connections = 0
        self._flows: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for flow in self._flows:
            flow.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._flows, return_exceptions=True)

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            to_client.transport.abort()
            return
        self._writers += [to_client, to_server]
        for flow in (self._forth(client, to_server), self._back(server, to_client)):
            task = asyncio.create_task(flow)
            self._flows.add(task)
            task.add_done_callback(self._flows.discard)

    async def _forth(self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await client.read(65_536):
                to_server.write(data)
                await to_server.drain()
        to_server.close()

    async def _back(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(65_536):
                if self.spared > 0:
                    self.spared -= 1
                elif self.cut > 0:
                    self.cut -= 1
                    self.lost += 1
                    to_client.transport.abort()
                    return
                to_client.write(data)
                await to_client.drain()
        to_client.close()


@contextlib.asynccontextmanager
async def wire(server: Server) -> AsyncIterator[tuple[Wire, str]]:
    made = Wire(server.port)
    url = await made.listen()
    try:
        yield made, url
    finally:
        await made.close()
