"""Peers that send without end, byte by byte, or nothing; that do not read; that are too many. None of them costs more than its bound, and all are closed."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from taskmill.config import load
from taskmill.engines import create
from taskmill.server import connection, incoming, listening
from taskmill.server.crowd import CROWD
from taskmill.server.listening import bound
from taskmill.server.running import run
from tests.surfaces.bad_bodies import GOOD, task
from tests.surfaces.bad_http import TASKS, Server, request, serving, upgraded
from tests.surfaces.cli_tools import PATIENCE

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Peer:
    """A server in this process, and connections to it."""

    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def said(self, data: bytes) -> bytes:
        """What comes back until the server closes the connection."""
        async with self.connect() as (reader, writer):
            writer.write(data)
            return await ended(reader)

    async def ask(self, data: bytes) -> bytes:
        """One answer, on a connection that the server is asked to close."""
        return await self.said(data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    async def stored(self) -> bytes:
        return await self.ask(request("GET", f"{TASKS}:count"))


async def ended(reader: asyncio.StreamReader) -> bytes:
    found = b""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionResetError):
            while part := await reader.read(65_536):
                found += part
    return found


def served(folder: Path, act: Callable[[Peer], Awaitable[None]], **settings: object) -> None:
    url = upgraded(f"sqlite:///{folder}/store.db")

    async def both() -> None:
        stop = asyncio.Event()
        with bound("127.0.0.1", 0) as sock:
            serving = asyncio.create_task(run(create(url), load({"url": url, **settings}, {}).settings, sock, stop, base=folder))
            try:
                await act(Peer(sock.getsockname()[1]))
            finally:
                stop.set()
                await serving

    asyncio.run(both())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.5)


POST = request("POST", TASKS, headers={"Content-Type": "application/json", "Content-Length": "100000"})


@pytest.mark.parametrize(
    "data",
    [
        b"G",
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"\r\n\r\n",
        POST,
        POST + b'{"type":',
        request("GET", "/healthz")[:-1],
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_request_that_never_comes_whole(tmp_path: Path, data: bytes) -> None:
    async def act(peer: Peer) -> None:
        found = await peer.said(data)
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"too_slow"' in found
        assert found.count(b"HTTP/1.1 408") == 1
        assert b'"count":0' in await peer.stored()

    served(tmp_path, act)


@pytest.mark.usefixtures("impatient")
def test_a_peer_that_says_nothing(tmp_path: Path) -> None:
    async def act(peer: Peer) -> None:
        assert await peer.said(b"") == b""

    served(tmp_path, act)


@pytest.mark.usefixtures("impatient")
def test_the_second_head_of_a_connection_has_no_more_time(tmp_path: Path) -> None:
    async def act(peer: Peer) -> None:
        found = await peer.said(request("GET", "/healthz") + b"GET /healthz HTT")
        assert found.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in found

    served(tmp_path, act)


@pytest.mark.parametrize("start", [b"GET /healthz HTTP/1.1\r\nX: ", POST], ids=["head", "body"])
@pytest.mark.usefixtures("impatient")
def test_byte_by_byte_is_not_progress(tmp_path: Path, start: bytes) -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.02)

    async def act(peer: Peer) -> None:
        async with peer.connect() as (reader, writer):
            writer.write(start)
            dripping = asyncio.create_task(drip(writer))
            found = await ended(reader)
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
        assert found.startswith(b"HTTP/1.1 408 ")

    served(tmp_path, act)


def test_a_slow_body_that_goes_on_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all it takes longer than the server waits for one piece."""
    monkeypatch.setattr(connection, "PATIENCE", 3.0)
    monkeypatch.setattr(connection, "LEAST_BODY", 1)
    head, _, body = request("POST", TASKS, task(), {"Connection": "close"}).partition(b"\r\n\r\n")
    step = len(body) // 16

    async def act(peer: Peer) -> None:
        async with peer.connect() as (reader, writer):
            writer.write(head + b"\r\n\r\n")
            for start in range(0, len(body), step):
                writer.write(body[start : start + step])
                await asyncio.sleep(0.2)
            assert (await ended(reader)).startswith(b"HTTP/1.1 202 ")

    served(tmp_path, act)


@pytest.mark.usefixtures("impatient")
def test_whoever_waits_for_an_answer_has_all_the_time(tmp_path: Path) -> None:
    async def act(peer: Peer) -> None:
        made = await peer.ask(request("POST", TASKS, task(id="0189abcd-0000-7000-8000-00000000000a")))
        assert made.startswith(b"HTTP/1.1 202 ")
        found = await peer.ask(request("GET", f"{TASKS}/0189abcd-0000-7000-8000-00000000000a?wait=2s"))
        assert found.startswith(b"HTTP/1.1 200 ")
        assert b'"state":"pending"' in found

    served(tmp_path, act)


def test_a_peer_that_does_not_read_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at the server: the peer itself would have to read to learn it."""
    monkeypatch.setattr(connection, "WRITE_PATIENCE", 0.3)
    lost = asyncio.Event()

    class Watched(connection.Connection):
        def connection_lost(self, exc: Exception | None) -> None:
            if self.flow.write_paused:
                lost.set()
            super().connection_lost(exc)

    monkeypatch.setattr(listening, "Connection", Watched)

    async def act(peer: Peer) -> None:
        body = b'{"tasks":[' + b",".join([task(payload="x" * 250_000)] * 60) + b"]}"
        assert (await peer.ask(request("POST", f"{TASKS}:batch", body))).startswith(b"HTTP/1.1 202 ")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect(("127.0.0.1", peer.port))
            deaf.sendall(request("GET", f"{TASKS}?limit=60"))
            async with asyncio.timeout(PATIENCE):
                await lost.wait()
        assert (await peer.ask(request("GET", "/healthz"))).startswith(b"HTTP/1.1 200 ")

    served(tmp_path, act)


def test_too_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmill.server.listening.seats", lambda: 3)

    async def act(peer: Peer) -> None:
        async with contextlib.AsyncExitStack() as held:
            streams = [await held.enter_async_context(peer.connect()) for _ in range(3)]
            for reader, writer in streams:
                writer.write(request("GET", "/healthz"))
                assert await reader.readuntil(b"}")
            found = await peer.said(request("GET", TASKS))
            assert found.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"too_many_connections"' in found
            for path in ("/healthz", "/readyz"):
                assert (await peer.said(request("GET", path))).startswith(b"HTTP/1.1 200 ")
            for reader, writer in streams:
                writer.write(request("GET", "/healthz"))
                assert await reader.readuntil(b"}")
        while not (found := await peer.ask(request("GET", TASKS))).startswith(b"HTTP/1.1 200 "):
            assert found.startswith(b"HTTP/1.1 503 ")

    served(tmp_path, act)


def test_silent_connections_keep_no_probe_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they have taken the reserve: the oldest of them makes room."""
    monkeypatch.setattr("taskmill.server.listening.seats", lambda: 3)
    monkeypatch.setattr("taskmill.server.crowd.RESERVE", 5)
    monkeypatch.setattr(connection, "PROBE_PATIENCE", PATIENCE)

    async def act(peer: Peer) -> None:
        async with contextlib.AsyncExitStack() as held:
            for _ in range(12):
                await held.enter_async_context(peer.connect())
            for _ in range(3):
                assert (await peer.said(request("GET", "/livez"))).startswith(b"HTTP/1.1 200 ")

    served(tmp_path, act)


def test_connections_of_one_address(tmp_path: Path) -> None:
    async def act(peer: Peer) -> None:
        async with contextlib.AsyncExitStack() as held:
            for _ in range(2):
                reader, writer = await held.enter_async_context(peer.connect())
                writer.write(request("GET", "/healthz"))
                assert await reader.readuntil(b"}")
            assert (await peer.said(request("GET", TASKS))).startswith(b"HTTP/1.1 503 ")

    served(tmp_path, act, connections_per_address=2)


def test_a_peer_that_closes_its_side_is_answered(tmp_path: Path) -> None:
    async def act(peer: Peer) -> None:
        async with peer.connect() as (reader, writer):
            writer.write(request("POST", TASKS, task()) * 3)
            writer.write_eof()
            assert (await ended(reader)).count(b"HTTP/1.1 202 ") == 3
        async with peer.connect() as (reader, writer):
            writer.write(request("POST", TASKS, task())[:-3])
            writer.write_eof()
            assert await ended(reader) == b""
        assert b'"count":3' in await peer.stored()

    served(tmp_path, act)


def test_an_upgrade_behind_a_request_waits_for_no_turn(tmp_path: Path) -> None:
    """Its bytes would stand before the answer of the request that was sent first."""
    upgrade = request(
        "GET", "/ws", headers={"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a" * 22 + "=="}
    )

    async def act(peer: Peer) -> None:
        found = await peer.said(request("GET", "/readyz") + upgrade)
        assert found.startswith(b"HTTP/1.1 200 ")
        assert b"101" not in found
        assert found.count(b"HTTP/1.1 ") == 1

    served(tmp_path, act)


def test_a_broken_body_takes_no_answer_from_those_before_it(tmp_path: Path) -> None:
    broken = CHUNKED + b"zz\r\n"

    async def act(peer: Peer) -> None:
        found = await peer.said(request("GET", "/readyz") * 2 + broken)
        assert found.count(b"HTTP/1.1 200 ") == 2

    served(tmp_path, act)


def test_requests_sent_together_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No line of the log, let alone a traceback, for a caller that does not wait."""

    async def act(peer: Peer) -> None:
        for _ in range(20):
            async with peer.connect() as (_, writer):
                writer.write(request("GET", "/readyz") * 3)
                await writer.drain()
                writer.transport.abort()
        assert (await peer.ask(request("GET", "/healthz"))).startswith(b"HTTP/1.1 200 ")

    served(tmp_path, act)
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


def test_garbage_behind_answers_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_PATIENCE", 0.5)

    async def act(peer: Peer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.port, limit=1)
        cast("asyncio.Transport", writer.transport).pause_reading()
        writer.write(request("GET", "/docs") * 60 + b"\x00garbage")
        async with asyncio.timeout(PATIENCE):
            while CROWD.seated:  # noqa: ASYNC110 - nothing tells of a connection that has ended
                await asyncio.sleep(0.05)
        assert reader is not None
        writer.transport.abort()

    served(tmp_path, act)


def test_bodies_that_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MOST_HELD", 100_000)
    large = task(payload="x" * 160_000)

    async def act(peer: Peer) -> None:
        async with peer.connect() as (_, writer):
            writer.write(request("POST", TASKS, large)[:-10])
            await writer.drain()
            while not (found := await peer.ask(request("POST", TASKS, large))).startswith(b"HTTP/1.1 429 "):
                assert found.startswith(b"HTTP/1.1 202 ")
            assert b'"code":"too_many_bodies"' in found
            assert b"retry-after: 1" in found
            assert (await peer.ask(request("POST", TASKS, task()))).startswith(b"HTTP/1.1 202 ")
        while not (found := await peer.ask(request("POST", TASKS, large))).startswith(b"HTTP/1.1 202 "):
            assert found.startswith(b"HTTP/1.1 429 ")

    served(tmp_path, act)


# Without end

CHUNKED = b"POST /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header": (b"GET /healthz HTTP/1.1\r\nX: ", b"a" * 65_536),
    "headers": (b"GET /healthz HTTP/1.1\r\n", b"X-Header: value\r\n" * 4_096),
    "a header's name": (b"GET /healthz HTTP/1.1\r\n", b"a" * 65_536),
    "a path": (b"GET /", b"a" * 65_536),
    "blank lines": (b"", b"\r\n" * 32_768),
    "a body in chunks": (CHUNKED, b"10000\r\n" + b" " * 65_536 + b"\r\n"),
    "a body in chunks of one": (CHUNKED, b"1\r\n \r\n" * 10_000),
    "a note of a chunk": (CHUNKED + b"1;", b"a" * 65_536),
    "what follows the chunks": (CHUNKED + b"0\r\n", b"X-Header: value\r\n" * 4_096),
    "a body that nobody wants": (CHUNKED.replace(b"POST /api/v1/tasks", b"GET /healthz"), b"10000\r\n" + b" " * 65_536 + b"\r\n"),
    "a body for nobody": (CHUNKED.replace(b"/api/v1/tasks", b"/nowhere"), b"10000\r\n" + b" " * 65_536 + b"\r\n"),
    "a body of 10 GiB": (request("POST", TASKS, headers={"Content-Type": "application/json", "Content-Length": str(10 << 30)}), b" " * 65_536),
    "garbage": (b"\x00", b"\x00" * 65_536),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_ended(server: Server, name: str) -> None:
    """The server closes the connection after a bound that is far from what it could hold, and holds no more than before."""
    start, part = ENDLESS[name]
    before = server.memory()
    most = before
    with server.connect() as peer, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        peer.sendall(start)
        for number in range(4_000):
            peer.sendall(part)
            if number % 50 == 0:
                most = max(most, server.memory())
        pytest.fail("it reads on")
    assert most - before < 40 * 1024
    server.alive()


def test_many_peers_that_each_stay_below_their_bound(server: Server) -> None:
    before = server.memory()
    with contextlib.ExitStack() as held:
        for _ in range(200):
            peer = held.enter_context(server.connect())
            peer.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 60_000)
        server.alive()
        assert server.memory() - before < 60 * 1024
    server.alive()


def test_more_peers_than_the_system_gives_files_for(tmp_path: Path) -> None:
    """Who comes when none is left waits or is turned away; the server goes on, and is there again for others."""
    with serving(upgraded(f"sqlite:///{tmp_path}/store.db"), tmp_path) as server:
        server.post(GOOD)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        with contextlib.ExitStack() as held:
            for _ in range(100):
                held.enter_context(server.connect())
            assert server.process.poll() is None
        while True:
            with contextlib.suppress(ConnectionResetError):  # until it has noticed that they are gone
                server.alive()
                break
        assert len(server.ids()) == 1


@pytest.mark.parametrize("size", [1, 10, 1_000])
def test_peers_that_go_away(server: Server, size: int) -> None:
    before = server.ids()
    data = request("POST", TASKS, task())
    for _ in range(50):
        with server.connect() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.sendall(data[: min(size, len(data) - 1)])
    server.alive()
    assert server.ids() == before
