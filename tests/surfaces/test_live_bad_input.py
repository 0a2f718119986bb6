"""WebSocket clients that do not keep to the rules: each gets its answer and its end, the server and everybody else go on."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from taskmill.server.access import Forbidden
from taskmill.server.live import check_origin
from tests.conformance.tools import submit_one
from tests.surfaces.live import Live, eventually, live

TEXT, BINARY, PING = 0x1, 0x2, 0x9


@pytest.fixture
async def server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Live]:
    """Somebody else listens all the time, and hears what happens afterwards as if nothing had been."""
    async with live(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, caplog) as served:
        served.hub._linger = 0.0
        async with served.client("?event=task.submitted") as witness:
            yield served
            if not served.stop.is_set():
                id = await submit_one(served.engine)
                await witness.until(lambda event: event["data"].get("task_id") == id)
        await eventually(lambda: not served.hub.listeners and not served.hub._tasks)


class Raw:
    """A client that sends whatever bytes it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, opcode: int, data: bytes, *, fin: bool = True, rsv1: bool = False, length: int | None = None) -> None:
        size = len(data) if length is None else length
        head = bytes([opcode | (0x80 if fin else 0) | (0x40 if rsv1 else 0)])
        head += bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + struct.pack("!H", size) if size < 65_536 else bytes([0xFF]) + struct.pack("!Q", size)
        self.writer.write(head + b"\0\0\0\0" + data)

    async def frames(self) -> AsyncIterator[tuple[int, bytes]]:
        while True:
            try:
                first, second = await self.reader.readexactly(2)
                size = second & 0x7F
                if size == 126:
                    [size] = struct.unpack("!H", await self.reader.readexactly(2))
                elif size == 127:
                    [size] = struct.unpack("!Q", await self.reader.readexactly(8))
                yield first & 0x0F, await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return

    async def closed(self) -> tuple[int, list[dict[str, Any]]]:
        """The code of the end, and the texts before it."""
        texts = []
        async with asyncio.timeout(20):
            async for opcode, data in self.frames():
                if opcode == TEXT:
                    texts.append(json.loads(data))
                elif opcode == 0x8:
                    return struct.unpack("!H", data[:2])[0], texts
        return 1006, texts


@asynccontextmanager
async def raw(server: Live, path: str = "/ws?event=worker.lost", *headers: str) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    writer.write("\r\n".join([*lines, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *headers, "", ""]).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


# Messages that cannot be understood


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "body_required"),
        ("{", "invalid_json"),
        ('{"action": "ping"', "invalid_json"),
        ('{"action": NaN}', "not_finite"),
        ('{"action": "ping", "action": "ping"}', "duplicate_key"),
        ("[" * 10_000, "too_deep"),
        ("1" * 5_000, "integer_too_large"),
    ],
)
async def test_what_is_not_json_is_told_and_ends_it(server: Live, text: str, code: str) -> None:
    async with server.client("?event=worker.lost") as client:
        await client.socket.send(text)
        assert (await client.closed())[0] == 1008
        assert [event["type"] for event in client.heard] == ["error"]
        assert client.heard[0]["data"]["code"] == code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "unknown_action"),
        ("subscribe", "unknown_action"),
        ({}, "unknown_action"),
        ({"action": "drop"}, "unknown_action"),
        ({"action": ["subscribe"]}, "unknown_action"),
        ({"action": "subscribe", "filters": {}}, "unknown_field"),
        ({"action": "subscribe", "filter": []}, "invalid_filter"),
        ({"action": "subscribe", "filter": {"quene": "a"}}, "unknown_field"),
        ({"action": "subscribe", "filter": {"queue": "../../etc"}}, "invalid_name"),
        ({"action": "subscribe", "filter": {"queue": 1}}, "invalid_name"),
        ({"action": "subscribe", "filter": {"queue": []}}, "invalid_value"),
        ({"action": "subscribe", "filter": {"task": "7"}}, "invalid_id"),
        ({"action": "subscribe", "filter": {"tenant": "a\nb"}}, "invalid_key"),
        ({"action": "subscribe", "filter": {"event": "task.complete"}}, "unknown_event"),
        ({"action": "subscribe", "filter": {"event": {"a": 1}}}, "unknown_event"),
        ({"action": "subscribe", "filter": {"queue": [f"q{n}" for n in range(101)]}}, "too_many_names"),
    ],
)
async def test_what_means_nothing_is_told_and_the_client_may_go_on(server: Live, words: object, code: str) -> None:
    async with server.client("?event=worker.lost") as client:
        await client.socket.send(json.dumps(words))
        answer = await client.next()
        assert answer["type"] == "error"
        assert answer["data"]["code"] == code
        assert answer["data"]["hint"]
        assert (await client.say(action="ping"))["type"] == "pong"


@pytest.mark.parametrize("query", ["?quene=a", "?queue=", "?queue", "?queue=%ff", "?event=nothing", "?task=1", "?" + "&".join(["queue=a"] * 300), "?queue=é"])
async def test_a_query_that_means_nothing_is_refused_before_the_upgrade(server: Live, query: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with server.client(query):
            pass
    assert refused.value.response.status_code in {400, 422}
    async with server.stream(query) as stream:
        assert stream.response.status in {400, 422}


async def test_another_path_is_not_there(server: Live) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"GET /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    assert b"application/problem+json" in await reader.read()
    writer.close()


# Bytes


async def test_binary_garbage(server: Live) -> None:
    async with server.client("?event=worker.lost") as client:
        await client.socket.send(os.urandom(1_000))
        assert (await client.closed())[0] == 1008
        assert client.heard[0]["data"]["code"] == "binary_message"


@pytest.mark.parametrize("data", [b"\xff\xfe\xfd", b'"\xed\xa0\x80"', '{"action": "ping"}'.encode("utf-16")], ids=["no start", "surrogate", "utf-16"])
async def test_a_text_that_is_not_utf_8(server: Live, data: bytes) -> None:
    async with raw(server) as client:
        client.send(TEXT, data)
        assert (await client.closed())[0] == 1007


async def test_bytes_that_are_no_frames(server: Live) -> None:
    async with raw(server) as client:
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert (await client.closed())[0] == 1002


async def test_a_frame_without_a_mask(server: Live) -> None:
    async with raw(server) as client:
        client.writer.write(b"\x81\x02{}")
        assert (await client.closed())[0] == 1002


async def test_a_frame_of_16_mib(server: Live) -> None:
    """The client learns why, although it is still sending."""
    async with raw(server) as client:
        client.send(BINARY, b"\0" * (16 << 20))
        assert (await client.closed())[0] == 1009


async def test_a_frame_that_says_it_is_enormous(server: Live) -> None:
    async with raw(server) as client:
        client.send(BINARY, b"", length=1 << 62)
        assert (await client.closed())[0] == 1009


@pytest.mark.parametrize("size", [0, 1, 900])
async def test_a_flood_of_fragments(server: Live, size: int) -> None:
    async with raw(server) as client:
        client.send(TEXT, b"a" * size, fin=False)
        for _ in range(10_000 if size < 10 else 200):
            client.send(0, b"a" * size, fin=False)
        assert (await client.closed())[0] in {1008, 1009}


async def test_a_bomb_that_unpacks(server: Live) -> None:
    packing = zlib.compressobj(wbits=-12)
    bomb = packing.compress(b"\0" * (64 << 20)) + packing.flush(zlib.Z_SYNC_FLUSH)
    assert len(bomb) < 1 << 17
    async with raw(server, "/ws?event=worker.lost", "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits") as client:
        client.send(TEXT, bomb[: 60 << 10], fin=False, rsv1=True)
        assert (await client.closed())[0] == 1009


async def test_packed_messages_are_understood(server: Live) -> None:
    async with server.client("?event=task.submitted", compression="deflate") as client:
        assert client.socket.protocol.extensions
        assert (await client.say(action="ping"))["type"] == "pong"
        id = await submit_one(server.engine)
        assert (await client.next())["data"]["task_id"] == id


# Floods


async def test_a_flood_of_pings(server: Live) -> None:
    async with raw(server) as client:
        for _ in range(10_000):
            client.send(PING, b"12345678")
        assert (await client.closed())[0] == 1008


async def test_a_flood_of_messages(server: Live) -> None:
    async with raw(server) as client:
        for _ in range(10_000):
            client.send(TEXT, b'{"action": "ping"}')
        code, texts = await client.closed()
    assert code == 1008
    assert 0 < len(texts) < 1_000


async def test_10_000_subscriptions(server: Live) -> None:
    async with raw(server) as client:
        for number in range(10_000):
            client.send(TEXT, b'{"action": "subscribe", "filter": {"queue": "q%d"}}' % number)
        code, texts = await client.closed()
    assert code == 1008
    subscribed = [text for text in texts if text["type"] == "subscribed"]
    refused = {text["data"]["code"] for text in texts if text["type"] == "error"}
    assert len(subscribed) == 99  # one it had from its URL
    assert refused == {"too_many_subscriptions"}


# Origin


@pytest.mark.parametrize(
    ("headers", "host", "right"),
    [
        ({}, "a.example", True),
        ({"origin": "http://a.example"}, "a.example", True),
        ({"origin": "https://A.example:8080", "cookie": "s=1"}, "a.example:8080", True),
        ({"origin": "https://friend.example", "cookie": "s=1"}, "a.example", True),
        ({"cookie": "s=1"}, "a.example", False),
        ({"origin": "http://b.example"}, "a.example", False),
        ({"origin": "http://b.example", "cookie": "s=1"}, "a.example", False),
        ({"origin": "http://a.example.b.example"}, "a.example", False),
        ({"origin": "http://a.example@b.example"}, "a.example", False),
        ({"origin": "null"}, "a.example", False),
        ({"origin": ""}, "", False),
        ({"origin": "http://["}, "a.example", False),
        ({"origin": "http://a.example:81"}, "a.example", False),
    ],
)
def test_origins(headers: dict[str, str], host: str, right: bool) -> None:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    if right:
        check_origin(given, host, ["https://friend.example/"])
    else:
        with pytest.raises(Forbidden):
            check_origin(given, host, ["https://friend.example/"])


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "http://evil.example", "Cookie": "s=1"}, {"Cookie": "s=1"}])
async def test_a_foreign_page_is_refused_before_the_upgrade(server: Live, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with server.client(additional_headers=headers):
            pass
    assert refused.value.response.status_code == 403
    assert json.loads(refused.value.response.body or b"")["code"] in {"foreign_origin", "origin_required", "invalid_origin"}
