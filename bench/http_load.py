"""A load of HTTP requests from a process of its own: so many connections, each sends its next request when the last is answered.

It writes bytes that were made once and looks at nothing of an answer but its status and its length, so that the server is what is measured.

    python bench/http_load.py 127.0.0.1 8080 /api/v1/tasks 32 5 < body.json
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import cast

import uvloop

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, request: bytes, until: float) -> None:
        self._request = request
        self._until = until
        self._buffer = b""
        self.took: list[float] = []
        self.statuses: dict[str, int] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        found = _LENGTH.search(self._buffer, 0, head) if head >= 0 else None
        if found is None or len(self._buffer) < head + 4 + int(found[1]):
            return
        now = time.perf_counter()
        self.took.append(now - self._began)
        status = self._buffer[9:12].decode()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self._buffer = b""
        if now < self._until:
            self._send()
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server hung up"))


async def main(host: str, port: str, path: str, connections: str, seconds: str) -> None:
    body = sys.stdin.buffer.read()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    until = began + float(seconds)
    made = [await loop.create_connection(lambda: Connection(head.encode() + body, until), host, int(port)) for _ in range(int(connections))]
    await asyncio.gather(*(connection.done for _, connection in made))
    took = sorted(one for _, connection in made for one in connection.took)
    statuses: dict[str, int] = {}
    for _, connection in made:
        for status, times in connection.statuses.items():
            statuses[status] = statuses.get(status, 0) + times

    def at(part: float) -> float:
        return took[min(len(took) - 1, int(len(took) * part))] * 1e3

    rate = len(took) / (time.perf_counter() - began)
    print(json.dumps({"rate": rate, "statuses": statuses, "p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}))


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(*sys.argv[1:6]))
