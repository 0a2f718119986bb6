"""One HTTP connection of a stranger: what it may send before it is understood, and how long it may take.

    head, at most 64 KiB within 30 s ──▶ body, at least 32 KiB in each 30 s ──▶ answer, read within 60 s ──▶ the next head

uvicorn bounds what an application does not read yet; these bounds are about what never reaches the application: a head without an end, one that comes byte by
byte, requests sent on without reading answers. Who exceeds one is told so in problem+json where a place for it is left, and is closed.

Closed at once, with bytes unread, a connection is reset, and the peer may never see why. So what a refused peer still sends is thrown away for a moment.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from taskmill.server.problem import CONTENT_TYPE, LONGEST_URL, Refused, problem_of, url_too_long
from taskmill.server.sockets import ABORT, ANSWER

__all__ = ["MOST_CONNECTIONS", "Connection"]

MOST_HEAD = 65_536
"""Bytes in which nothing is understood: a head, the line of a chunk, what follows the last of them. What is over 32 KiB is refused by the app, with words."""
PATIENCE = 30.0
"""Seconds for a caller to send the head of a request, and then for each part of its body."""
LEAST_BODY = 32_768
"""Bytes of a body that have to come in that time."""
WRITE_PATIENCE = 60.0
"""Seconds for a caller to read what it was answered."""
LONGEST_LINE, MOST_LINES = 8_000, 100
"""Of a head that asks for a WebSocket, whose library does not answer what is larger."""
LINGER = 2.0
MOST_IGNORED = 8 << 20
"""How long, and how much, a refused peer may still send."""
LEAST_PIECE = 64
MOST_PIECES = 4_096
"""Chunks of fewer bytes than that in one body: a megabyte of single bytes costs seconds to take apart."""
MOST_PIPELINED = 64
"""Requests that are sent before the first is answered."""
MOST_CONNECTIONS = 10_000


class Connection(HttpToolsProtocol):
    """Bounded in what it keeps, and in the time it waits."""

    _unread = 0
    """Bytes since the parser last made something of them."""
    _partial = True
    """A request is not whole yet."""
    _in_body = False
    _arrived = 0
    """Bytes of the body since the last look."""
    _pieces = 0
    """Calls that a body may still cost, beside those that its bytes pay for."""
    _refused = False
    _ignored = 0
    _slow: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._slow = self.loop.call_later(PATIENCE, self._late)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(Refused(503, "too_many_connections", "this server has as many connections as it takes", "keep connections open and use them again"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._ignore(len(data))
            return
        self._unset_keepalive_if_required()
        self._unread += len(data)
        self._partial = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:  # of a URL over 64 KiB too, which httptools does not take apart
            self._refuse(url_too_long() if len(self.url or b"") > LONGEST_URL else _unreadable())
        except httptools.HttpParserUpgrade:
            self._upgrade()
        else:
            self._judge()

    def _judge(self) -> None:
        """Whether what has come so far may go on."""
        if self._unread > MOST_HEAD:
            self._refuse(_too_large())
        elif self._partial and self._slow is None:
            self._slow = self.loop.call_later(PATIENCE, self._late)
        elif not self._partial and self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _upgrade(self) -> None:
        if self._should_upgrade():
            self._forget()
            if max([len(self.url), *(len(name) + len(value) for name, value in self.headers)]) > LONGEST_LINE or len(self.headers) > MOST_LINES:
                self._refuse(_too_large())
            else:
                self.handle_websocket_upgrade()
        else:  # it is answered as if it had not asked; what follows may be in any protocol
            self._refused = True
            self._forget()
            if self.cycle is not None:
                self.cycle.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # what follows a body in chunks is no header: nobody checked it where headers are checked
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        self._partial = True
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {ABORT: self.transport.abort}

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in {"1.0", "1.1"}:
            raise ValueError("another version of HTTP")
        super().on_headers_complete()
        cast("dict[str, Any]", self.scope)["extensions"][ANSWER] = partial(self._answer, self.cycle)
        self._unread = 0
        self._pieces = MOST_PIECES
        self._in_body = True
        if len(self.pipeline) > MOST_PIPELINED:
            raise ValueError("too many requests before the first answer")

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._arrived += len(body)
        if len(body) < LEAST_PIECE:
            self._pieces -= 1
            if self._pieces < 0:
                raise ValueError("a body in too many pieces")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self._partial = self._in_body = False
        super().on_message_complete()

    # Answering

    def _answer(self, cycle: RequestResponseCycle, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """A whole answer in one write: through ASGI its head and its body are two, each a call of the system and a packet. False: say it through ASGI."""
        if cycle.response_started or cycle.disconnected or cycle.waiting_for_100_continue or not cycle.keep_alive or self.flow.write_paused:
            return False
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
        if not head.count(b"\n") == head.count(b"\r") == len(lines) + 2:  # a value that would begin a line of its own
            return False
        cycle.response_started = cycle.response_complete = True
        self.transport.write(head + body)
        cycle.message_event.set()
        cycle.on_response()
        return True

    # Waiting

    def _late(self) -> None:
        self._slow = None
        if self.flow.read_paused or self._arrived >= LEAST_BODY:
            self._arrived = 0
            self._slow = self.loop.call_later(PATIENCE, self._late)
        elif self._unread or cast("object", self.scope) is not None:
            self._refuse(Refused(408, "too_slow", "the request did not come in time", f"send a head within {PATIENCE:.0f} s, and a body without long pauses"))
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(WRITE_PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _forget(self) -> None:
        for timer in (self._slow, self._stuck):
            if timer is not None:
                timer.cancel()
        self._slow = self._stuck = None

    # Refusing

    def _refuse(self, why: Refused) -> None:
        """The last that this peer hears. Requests before this one are answered first; whose body is broken has no answer to wait for."""
        self._refused = True
        self._forget()
        cycle: RequestResponseCycle | None = self.cycle  # there is none before the first request
        if cycle is not None and self._in_body and (cycle.response_started or self.pipeline):
            self.transport.close()
        elif self._in_body or cycle is None or cycle.response_complete:
            if cycle is not None and self._in_body:
                cycle.disconnected = True  # whoever reads this body waits for nothing, and answers nobody
                cycle.message_event.set()
            self.transport.write(_written(why))
            self._end()
        else:
            cycle.keep_alive = False

    def _end(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._slow = self.loop.call_later(LINGER, self.transport.abort)

    def _ignore(self, size: int) -> None:
        self._ignored += size
        if self._ignored > MOST_IGNORED:
            self.transport.abort()


def _unreadable() -> Refused:
    return Refused(400, "invalid_request", "this is not a request of HTTP/1.1", "see RFC 9112; HTTP/2 and TLS are not spoken on this port")


def _too_large() -> Refused:
    return Refused(431, "headers_too_large", "the headers are too many or too large", "at most 100, and 32 KiB in all; of a WebSocket, 8,000 bytes a line")


def _written(why: Refused) -> bytes:
    request_id = secrets.token_hex(8)
    body = msgspec.json.encode(problem_of(why, request_id))
    return STATUS_LINE[why.status] + (
        b"content-type: %b\r\ncontent-length: %d\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n"
        b"x-request-id: %b\r\nconnection: close\r\n\r\n%b" % (CONTENT_TYPE, len(body), request_id.encode(), body)
    )
