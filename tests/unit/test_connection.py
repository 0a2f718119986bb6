"""How answers leave a connection: whole and in one write where they can, through ASGI otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from taskmill.server.connection import Connection
from taskmill.server.sockets import ANSWER

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class Recorded(asyncio.Transport):
    """What was written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self._closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self._closed = True

    def abort(self) -> None:
        self._closed = True

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


App = Callable[[Any, Any, Any], Awaitable[None]]


def connected(app: App) -> tuple[Connection, Recorded]:
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_config=None, server_header=False, date_header=False)
    config.load()
    connection, transport = Connection(config, ServerState(), {}), Recorded()
    connection.connection_made(transport)
    return connection, transport


async def written(request: bytes, app: App, number: int = 1) -> tuple[list[bytes], bool]:
    """What a connection writes until so many requests were answered, and whether it is closed then."""
    answers = asyncio.Semaphore(0)

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        answers.release()

    connection, transport = connected(counted)
    connection.data_received(request)
    async with asyncio.timeout(30):
        for _ in range(number):
            await answers.acquire()
    closed = transport.is_closing()
    connection.connection_lost(None)
    return transport.writes, closed


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """`{}` at once; through ASGI where it is told to."""
    headers = [(b"x-a", b"b"), (b"content-length", b"2")]
    if not scope["extensions"][ANSWER](202, headers, b"{}"):
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


WHOLE = b"HTTP/1.1 202 Accepted\r\nx-a: b\r\ncontent-length: 2\r\n\r\n{}"


async def test_a_whole_answer_is_one_write() -> None:
    assert await written(GET + b"\r\n", answer) == ([WHOLE], False)


async def test_requests_sent_together_are_answered_in_their_order() -> None:
    assert await written(3 * (GET + b"\r\n"), answer, number=3) == (3 * [WHOLE], False)


@pytest.mark.parametrize("how", [b"Connection: close\r\n", b"Expect: 100-continue\r\nContent-Length: 2\r\n"])
async def test_what_else_has_to_be_said_goes_through_asgi(how: bytes) -> None:
    writes, closed = await written(GET + how + b"\r\n{}", answer)
    assert len(writes) == 2
    assert writes[-1] == b"{}"
    assert closed == (b"close" in how)


async def test_a_value_cannot_begin_a_line_of_its_own() -> None:
    told: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.extend(scope["extensions"][ANSWER](202, [(b"x-a", value)], b"") for value in (b"b\r\nset-cookie: c", b"b\nc", b"b\rc"))
        await answer(scope, receive, send)

    assert await written(GET + b"\r\n", app) == ([WHOLE], False)
    assert told == [False, False, False]


@pytest.mark.parametrize("length", [66_000, 200_000])
async def test_a_url_that_nobody_takes_apart_is_told_what_it_is(length: int) -> None:
    """It came in one piece, so that all of it was read."""
    connection, transport = connected(answer)
    connection.data_received(b"GET /?a=" + length * b"b" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.connection_lost(None)
    [said] = transport.writes
    assert said.startswith(b"HTTP/1.1 414 ")
    assert b'"url_too_long"' in said
