"""The connections of live events, as this server needs them from uvicorn: what a stream of many listeners asks of HTTP and WebSocket beyond ASGI.

* A message for all is framed once and written as it is to every connection that can take it (`Socket.write`), instead of once for each through ASGI.
* A connection whose client does not read can be ended (`Socket.end`, `abort`): its buffer would never empty, and a polite close would wait for that.
* Floods that never reach the application end here: pings, fragments; and what is refused is refused with its code, before the client has sent the rest.

An application finds these under `extensions` of its scope, and does without where another server runs it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol

from taskmill.server.crowd import CROWD

__all__ = ["ABORT", "ANSWER", "SOCKET", "Socket"]

SOCKET, ABORT, ANSWER = "taskmill.socket", "taskmill.abort", "taskmill.answer"
"""The names of what an application finds in its scope."""
MOST_PINGS = 20
"""Pings of a client in a second."""
MOST_FRAGMENTS = 64
"""Pieces of one message."""
SEND_BUFFER = 256 << 10
"""Bytes that the system holds for a client; left alone it takes megabytes, for each of them."""
GRACE = 3.0
"""Seconds for a client to read why it was refused."""


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.config.ws_per_message_deflate:
            # Nothing is kept between messages: a thousand idle clients would hold a thousand windows.
            bounded = ServerPerMessageDeflateFactory(
                server_no_context_takeover=True,
                client_no_context_takeover=True,
                server_max_window_bits=12,
                client_max_window_bits=12,
                compress_settings={"memLevel": 5},
            )
            self.conn = ServerProtocol(extensions=[bounded], max_size=self.config.ws_max_size, logger=self.logger)
        self._pings = 0
        self._pings_since = 0.0
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            cast("dict[str, Any]", self.scope["extensions"])[SOCKET] = self

    # Writing

    def write(self, frames: bytes) -> bool:
        """Whole messages, framed; False: not now, the client has not read what it was sent before."""
        if not self.handshake_complete or self.close_sent or self.disconnected or not self.writable.is_set():
            return False
        self.transport.write(frames)
        return True

    async def write_when_possible(self, frames: bytes) -> bool:
        """False: the connection is over."""
        await self.writable.wait()
        return self.write(frames)

    async def end(self, code: int, reason: str) -> None:
        """Close it, whether or not the client reads: one that does finds the reason behind what it was sent before."""
        self.writable.set()  # what is said now does not wait for room
        self.loop.call_later(GRACE, self.transport.abort)
        await self.send({"type": "websocket.close", "code": code, "reason": reason})

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused with an answer of HTTP: that is all there is to it

    # Refusing

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)
            if self.conn.handshake_exc is not None:  # a head that the library does not even answer
                self.transport.close()

    def shutdown(self) -> None:
        if self.conn.eof_sent:  # all that could be said was said
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def handle_ping(self) -> None:
        now = self.loop.time()
        if now - self._pings_since > 1.0:
            self._pings, self._pings_since = 0, now
        self._pings += 1
        if self._pings > MOST_PINGS:
            self._refuse(1008, "too many pings")
        elif not self._refused:
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MOST_FRAGMENTS:
            self._refuse(1008, "too many fragments")
        elif not self._refused:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self._refuse(1007, "a text is not UTF-8")
                return
        if not self._refused:
            super().send_receive_event_to_app()

    def _refuse(self, code: int, reason: str) -> None:
        if not self._refused and not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """The client learns why. What it still sends is thrown away for a while: closed with bytes unread, it would be told of a reset instead."""
        self._refused = True
        closing = self.conn.close_sent
        code, reason = (closing.code, closing.reason) if closing is not None else (1002, "")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(GRACE, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        CROWD.leave(self)
        if self.read_paused:  # a message that nobody took yet must not be looked at on a transport that is gone
            self.read_paused = False
        super().connection_lost(exc)
