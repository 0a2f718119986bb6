"""One HTTP connection of a stranger: what it may send before it is understood, and how long it may take.

    head, at most 64 KiB within 30 s ──▶ body, at least 32 KiB in each 30 s ──▶ answer, read within 60 s ──▶ the next head

uvicorn bounds what an application does not read yet; these bounds are about what never reaches the application: a head without an end, one that comes byte by
byte, requests sent on without reading answers. Who exceeds one is told so in problem+json where a place for it is left, and is closed.

Closed at once, with bytes unread, a connection is reset, and the peer may never see why. So what a refused peer still sends is thrown away for a moment.

How many there may be, in all and of one address, is `crowd`'s to say. Beyond that a few are let in for a moment, to ask for the health of this server: probes
that find no place would have it restarted.
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

from taskmill.server.crowd import CROWD, Place
from taskmill.server.problem import CONTENT_TYPE, LONGEST_URL, Refused, problem_of, url_too_long
from taskmill.server.sockets import ABORT, ANSWER

__all__ = ["Connection"]

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
HALF_CLOSED = 10.0
"""Seconds to answer a caller that has closed its side; most that do are gone."""
LINGER = 2.0
MOST_IGNORED = 8 << 20
"""How long, and how much, a refused peer may still send."""
LEAST_PIECE = 64
MOST_PIECES = 4_096
"""Chunks of fewer bytes than that in one body: a megabyte of single bytes costs seconds to take apart."""
MOST_PIPELINED = 64
"""Requests that are sent before the first is answered."""
PROBE_PATIENCE = 2.0
"""Seconds for a caller in the reserve to ask for health, and to be answered."""
HEALTH = frozenset({b"/healthz", b"/livez", b"/readyz", b"/startupz"})


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
    _running: RequestResponseCycle | None = None
    """The request that is answered now; others wait in the pipeline."""
    _half_closed = False
    """The peer sends nothing more, and may still read."""
    _place = Place.SEAT
    _full = False
    """It is in the reserve, and asks for something else than health."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.config.ssl is not None:  # its handshake is made before the connection is
            CROWD.arriving.add(self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._place = CROWD.enter(self, self.client[0] if self.client else "")
        if self._place is Place.RESERVE:
            self._slow = self.loop.call_later(PROBE_PATIENCE, self.transport.abort)
        else:
            self._slow = self.loop.call_later(PATIENCE, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        CROWD.leave(self)
        self._forget()
        self._tell_gone()
        super().connection_lost(exc)

    def _tell_gone(self) -> None:
        """Every request that is not answered yet learns that no answer is read."""
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A peer that has sent whole requests and closes its side is answered. Who waits for an event hears that it is gone, and answers with what there is."""
        answering = self._running is not None and not self._running.response_complete
        if not answering or self._partial or self._refused or cast("RequestResponseCycle", self._running).response_started or self.scheme == "https":
            return False
        self._half_closed = True
        running = cast("RequestResponseCycle", self._running)
        if not running.body:
            running.disconnected = True
            running.message_event.set()
        self._close_in(HALF_CLOSED)
        return True

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
            self._refuse(_too_many() if self._full else url_too_long() if len(self.url or b"") > LONGEST_URL else _unreadable())
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _upgrade(self) -> None:
        before: RequestResponseCycle | None = self.cycle
        if self._should_upgrade() and before is not None and not before.response_complete:
            # Its bytes would come before the answer to the request before it.
            self._refuse(_unreadable())
        elif self._should_upgrade():
            self._forget()
            if max([len(self.url), *(len(name) + len(value) for name, value in self.headers)]) > LONGEST_LINE or len(self.headers) > MOST_LINES:
                self._refuse(_too_large())
            else:
                self.handle_websocket_upgrade()
                CROWD.move(self, self.transport.get_protocol())
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
        if self._place is Place.RESERVE and self.url.partition(b"?")[0] not in HEALTH:
            self._full = True
            raise ValueError("no seat")
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
        if self.transport.is_closing():
            cycle.disconnected = True
        alive = self._half_closed or (cycle.keep_alive and not cycle.disconnected)
        if self.transport.is_closing() or not alive or cycle.response_started or cycle.waiting_for_100_continue or self.flow.write_paused:
            return False
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
        if not head.count(b"\n") == head.count(b"\r") == len(lines) + 2:  # a value that would begin a line of its own
            return False
        cycle.response_started = cycle.response_complete = True
        self.transport.write(head + body)
        cycle.message_event.set()
        cycle.on_response()
        if self._place is Place.RESERVE or (self._half_closed and self._running is cycle):
            self._close()
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
            self._close()

    def _close(self) -> None:
        """When all was read that was answered, or else after a while."""
        self.transport.close()
        self._close_in(WRITE_PATIENCE)

    def _close_in(self, seconds: float) -> None:
        if self._stuck is None:
            self._stuck = self.loop.call_later(seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        CROWD.wait(self, self.transport.get_write_buffer_size())
        self._close_in(WRITE_PATIENCE)

    def resume_writing(self) -> None:
        super().resume_writing()
        CROWD.read(self)
        if self._stuck is not None and not self._half_closed and not self._refused and not self.transport.is_closing():
            self._stuck.cancel()
            self._stuck = None

    def _forget(self) -> None:
        self._forget_slow()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _forget_slow(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    # Refusing

    def _refuse(self, why: Refused) -> None:
        """The last that this peer hears. Requests before this one are answered first; whose body is broken has no answer to wait for."""
        self._refused = True
        self._forget_slow()
        cycle: RequestResponseCycle | None = self.cycle  # there is none before the first request
        if cycle is not None and self._in_body and self.pipeline:
            self.pipeline.popleft()  # the broken one; those before it are answered, and then the connection is closed
            cycle = self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._running)
            cycle.keep_alive = False
            self._close_in(WRITE_PATIENCE)
        elif cycle is not None and self._in_body and cycle.response_started:
            self._close()
        elif self._in_body or cycle is None or cycle.response_complete:
            if cycle is not None and self._in_body:
                cycle.disconnected = True  # whoever reads this body waits for nothing, and answers nobody
                cycle.message_event.set()
            self.transport.write(_written(why))
            self._end()
        else:
            cycle.keep_alive = False
            self._close_in(WRITE_PATIENCE)

    def _end(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._slow = self.loop.call_later(LINGER, self.transport.abort)

    def _ignore(self, size: int) -> None:
        self._ignored += size
        if self._ignored > MOST_IGNORED:
            self.transport.abort()


def _too_many() -> Refused:
    return Refused(503, "too_many_connections", "this server has as many connections as it takes", "keep connections open and use them again")


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
