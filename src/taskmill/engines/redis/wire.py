"""One connection to a server, for all commands of this process at once: they are sent as they come, and answers come in the same order.

Redis-py's own connections are asked one command at a time, and a command through them costs a client several times what it costs here; hiredis, which reads and
writes for both, is the same. Whoever stops waiting for an answer harms nobody: it is read and dropped.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, cast

import hiredis
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError, InvalidResponse

from taskmill.engines.redis.target import Target

__all__ = ["Wire", "connect"]


class Wire(asyncio.Protocol):
    """Sends commands and reads answers, until it is cut."""

    def __init__(self) -> None:
        self.cut = False
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)
        self._transport: asyncio.Transport | None = None

    async def ask(self, *command: Any) -> Any:
        if self.cut or self._transport is None:
            raise ConnectionError("the connection is closed")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(hiredis.pack_command(command))
        return await answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._fail(ConnectionError("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                self._answer(answer)
        except Exception as error:  # what comes is no answer of a Redis server: nothing behind it can be read
            self._fail(error)
            self.close()

    def _answer(self, answer: Any) -> None:
        if not self._waiting:
            raise InvalidResponse("an answer that nobody asked for")
        waiting = self._waiting.popleft()
        if waiting.done():  # nobody waits any more
            return
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error if isinstance(error, OSError) else ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        self.cut = True
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)


async def connect(host: str, port: int, target: Target) -> Wire:
    """Known to the server, and in the database that the URL names."""
    secure = ssl.create_default_context() if target.tls else None
    _, wire = await asyncio.get_running_loop().create_connection(Wire, host, port, ssl=secure)
    try:
        if target.password is not None:
            name = () if target.user is None else (target.user,)
            await wire.ask("AUTH", *name, target.password.reveal())
        if target.database and not target.cluster:
            await wire.ask("SELECT", target.database)
    except BaseException:
        wire.close()
        raise
    return wire
