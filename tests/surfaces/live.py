"""A server over a store, and clients of its live events: real sockets on loopback, real WebSocket and HTTP clients."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from taskmill.config import Settings
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.server.access import create_key
from taskmill.server.hub import Hub
from taskmill.server.listening import bound
from taskmill.server.running import run
from taskmill.server.service import Service

__all__ = ["STORES", "Client", "Event", "Live", "Stream", "eventually", "live", "served", "store_url", "until"]

STORES = ("sqlite", "postgres", "redis")
PATIENCE = 30.0
"""Seconds after which what has not come never will."""

Event = dict[str, Any]


def store_url(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}" if name == "sqlite" else str(request.getfixturevalue(f"{name}_url"))


class Live:
    """A server that runs in this loop, and an engine of somebody else on its store."""

    def __init__(self, port: int, service: Service, engine: Engine, stop: asyncio.Event) -> None:
        self.port = port
        self.service = service
        self.engine = engine
        self.stop = stop

    @property
    def hub(self) -> Hub:
        return self.service.hub

    async def key(self, *scopes: str, tenant: str | None = None) -> str:
        token, _ = await create_key(self.engine, name="a key", scopes=scopes or ("read",), tenant=tenant)
        self.service.keys._read_at = None  # known here at once, not after two seconds
        return token

    @asynccontextmanager
    async def client(self, query: str = "", *, key: str | None = None, **options: Any) -> AsyncIterator[Client]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        options = {"compression": None, "max_queue": None, "additional_headers": headers, **options}
        async with connect(f"ws://127.0.0.1:{self.port}/ws{query}", **options) as socket:
            yield Client(socket)

    @asynccontextmanager
    async def stream(self, query: str = "", *, key: str | None = None, after: str | None = None) -> AsyncIterator[Stream]:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        if after is not None:
            headers["Last-Event-ID"] = after
        async with (
            aiohttp.ClientSession(read_bufsize=1 << 20) as session,
            session.get(f"http://127.0.0.1:{self.port}/api/v1/events{query}", headers=headers) as response,
        ):
            yield Stream(response)


class Client:
    """A WebSocket client that keeps what it has heard."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: list[Event] = []

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            event: Event = json.loads(await self.socket.recv())
        self.heard.append(event)
        return event

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        return await until(self.next, wanted)

    async def say(self, **words: object) -> Event:
        """Send, and take the answer; events that came before it are heard."""
        await self.socket.send(json.dumps(words))
        return await self.until(lambda event: event["type"] in {"subscribed", "unsubscribed", "pong", "error"})

    async def settled(self) -> list[Event]:
        """What has been heard when everything before this moment has been."""
        await self.say(action="ping")
        return [event for event in self.heard if event["type"] != "pong"]

    async def closed(self) -> tuple[int, str]:
        """How the server ended it."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as end:
            return (1006, "") if end.rcvd is None else (end.rcvd.code, end.rcvd.reason)

    def of(self, task: str) -> list[tuple[str, int]]:
        return [(event["type"], event["data"]["sequence"]) for event in self.heard if event["data"].get("task_id") == task]


class Stream:
    """A client of server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.heard: list[Event] = []
        self.id: str | None = None

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            while True:
                line = await self.response.content.readline()
                if not line:
                    raise EOFError
                if line.startswith(b"id: "):
                    self.id = line[4:].decode().strip()
                elif line.startswith(b"data: "):
                    event: Event = json.loads(line[6:])
                    self.heard.append(event)
                    return event

    async def until(self, wanted: Callable[[Event], bool]) -> Event:
        return await until(self.next, wanted)


async def until(next: Callable[[], Any], wanted: Callable[[Event], bool]) -> Event:
    while True:
        event: Event = await next()
        if wanted(event):
            return event


async def eventually(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 -- it becomes so by itself
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(url: str, base: Path) -> AsyncIterator[Live]:
    """The server of `taskmill api`, on a port of its own."""
    engine = create(url)
    await engine.open()
    stop, began = asyncio.Event(), asyncio.get_running_loop().create_future()
    with bound("127.0.0.1", 0) as sock:
        running = asyncio.create_task(run(create(url), Settings(), sock, stop, base=base, began=began.set_result))
        try:
            await asyncio.wait({running, began}, return_when=asyncio.FIRST_COMPLETED)
            yield Live(sock.getsockname()[1], began.result(), engine, stop)
        finally:
            stop.set()
            await running
            await engine.close()


@asynccontextmanager
async def live(url: str, base: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Live]:
    """The same, and nothing that it meets may be an error to it."""
    async with served(url, base) as server:
        yield server
    wrong = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert not wrong, [record.getMessage() for record in wrong]
