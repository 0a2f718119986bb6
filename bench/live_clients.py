"""The other side of bench/live.py, in processes of its own: a thousand WebSocket clients, or 32 connections that submit as fast as they are answered.

    python bench/live_clients.py listen URL CLIENTS PATH    says `ready`, and for every line it reads what was heard since the last one, as JSON
    python bench/live_clients.py submit URL SECONDS         submits, and says how many a second were accepted

They do as little as can be for what they get, because they share the machine with what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from datetime import datetime
from urllib.parse import urlsplit

import uvloop

CONNECTIONS = 32
MARK = b'"type":"task.submitted","timestamp":"'
RESYNC = b'"type":"resync"'


class Heard:
    def __init__(self) -> None:
        self.delays: list[float] = []
        self.events = self.resyncs = self.bytes = 0


class Client(asyncio.Protocol):
    """It takes messages apart no further than to find when each was made."""

    def __init__(self, heard: Heard, request: bytes, upgraded: asyncio.Future[None]) -> None:
        self._heard = heard
        self._request = request
        self._upgraded = upgraded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._upgraded.done():
            if not data.startswith(b"HTTP/1.1 101"):
                raise RuntimeError(data)
            self._upgraded.set_result(None)
            return
        heard, now = self._heard, time.time()
        heard.bytes += len(data)
        heard.resyncs += data.count(RESYNC)
        at = data.find(MARK)
        if at >= 0 and at + len(MARK) + 27 <= len(data):  # one sample of what came together
            made = datetime.fromisoformat(data[at + len(MARK) : at + len(MARK) + 27].decode()).timestamp()
            heard.delays.append((now - made) * 1e3)
        heard.events += data.count(MARK)


async def listen(url: str, clients: int, path: str) -> None:
    where = urlsplit(url)
    heard = Heard()
    head = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    request = f"{head}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    for _ in range(clients):
        upgraded: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(lambda upgraded=upgraded: Client(heard, request, upgraded), str(where.hostname), where.port or 80)  # type: ignore[misc]
        await upgraded
    print("ready", flush=True)
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), os.fdopen(0, "rb"))
    while await asked.readline():
        print(json.dumps({"delays": heard.delays, "events": heard.events, "resyncs": heard.resyncs, "bytes": heard.bytes}), flush=True)
        heard.delays, heard.events, heard.resyncs, heard.bytes = [], 0, 0, 0


async def submit(url: str, seconds: float) -> None:
    where = urlsplit(url)
    body = b'{"type":"load","queue":"load","payload":{"n":1}}'
    request = b"POST /api/v1/tasks HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        where.netloc.encode(), len(body), body,
    )  # fmt: skip
    end = time.monotonic() + seconds

    async def one() -> int:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        accepted = 0
        while time.monotonic() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 202"):
                raise RuntimeError(head)
            accepted += 1
        writer.close()
        return accepted

    began = time.monotonic()
    accepted = sum(await asyncio.gather(*(one() for _ in range(CONNECTIONS))))
    print(json.dumps({"rate": accepted / (time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    verb, url, *rest = sys.argv[1:]
    uvloop.run(listen(url, int(rest[0]), rest[1]) if verb == "listen" else submit(url, float(rest[0])))
