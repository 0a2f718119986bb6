"""The body of a request: read within bounds, or not at all.

Bounded are one body, packed and unpacked; what a packed one grows by; all that are held at once, until each is answered; and how many values one makes, since a
byte of JSON can cost thirty bytes of memory. Large ones are unpacked and parsed beside the loop, one at a time: a parser holds the interpreter, so two of them
would hold everyone else up for twice as long.

A caller that is refused before its body was read is answered at once, but a connection that is closed with bytes unread is reset, and the answer with it: so
what still comes is thrown away for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Self

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.errors import InvalidInput, RateLimited
from taskmill.server.problem import Refused

__all__ = ["LARGE", "Body", "Held", "Share", "Unpacking", "check_values"]

MOST_HELD = 48 << 20
"""Bytes of all bodies over `SMALL` that are read, parsed or answered now."""
SMALL = 64 << 10
"""Bytes of a body that are not counted: they wait for nobody."""
LARGE = 256 << 10
"""Bytes of a body that is unpacked and parsed beside the loop: others are answered meanwhile."""
FREE, MOST_GROWTH = 1 << 20, 20
"""A packed body may unpack to so many bytes, and beyond them to so many times its size."""
PIECE = 1 << 20
"""Bytes that are unpacked at once."""
MOST_VALUES = 250_000
LINGER = 5.0
MOST_THROWN_AWAY = 64 << 20


class Held:
    """Bytes of bodies that this process holds, over all callers."""

    def __init__(self) -> None:
        self.size = 0
        self.large = asyncio.Lock()
        """Held by the one large body that is unpacked and parsed now."""


class Share:
    """What one request holds of them, from its first byte until it is answered."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.grow(-self.size)

    def grow(self, by: int) -> None:
        before, self.size = max(0, self.size - SMALL), self.size + by
        more = max(0, self.size - SMALL) - before
        if more > 0 and self.held.size + more > MOST_HELD:
            self.size -= by
            error = RateLimited("this server reads as many large bodies as it can", code="too_many_bodies", hint="send again in a second, or less at once")
            error.retry_after = SECOND
            raise error
        self.held.size += more


class Body:
    """What a request brings beside its head."""

    __slots__ = ("_headers", "packed", "receive", "whole")

    def __init__(self, headers: Mapping[bytes, bytes], receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        self._headers = headers
        self.receive = receive
        self.packed = False
        self.whole = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"
        """Nothing of it is still to come."""

    async def read(self, limit: int, share: Share) -> bytes:
        """All of it as it came, never more than allowed."""
        self.packed = self._check(limit)
        parts: list[bytes] = []
        while not self.whole:
            part = await self._part()
            if share.size + len(part) > limit:
                raise _too_large(limit)
            share.grow(len(part))
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check(self, limit: int) -> bool:
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        encoding = self._headers.get(b"content-encoding", b"identity").lower()
        if encoding not in {b"identity", b"gzip"}:
            raise Refused(
                415, "unsupported_encoding", "this content encoding is not known", "send it as it is, or with Content-Encoding: gzip", field="Content-Encoding"
            )
        return encoding == b"gzip"

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.whole = True
            raise Refused(400, "disconnected", "the caller went away", "send the request again")
        self.whole = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def throw_away(self) -> None:
        """What still comes, for a while."""
        left = MOST_THROWN_AWAY
        with contextlib.suppress(TimeoutError, Refused):
            async with asyncio.timeout(LINGER):
                while not self.whole and left > 0:
                    left -= len(await self._part())


class Unpacking:
    """A body in gzip, taken apart piece by piece."""

    def __init__(self, data: bytes, limit: int) -> None:
        self._limit = limit
        self._allowed = min(limit, max(FREE, MOST_GROWTH * len(data)))
        self._rest = data
        self._stream = zlib.decompressobj(wbits=31)
        self._parts: list[bytes] = []
        self._size = 0
        self.ended = not data

    def step(self, most: int = PIECE) -> int:
        """The next piece; answers how many bytes it has."""
        try:
            part = self._stream.decompress(self._rest, most)
        except zlib.error:
            raise InvalidInput("the body is not gzip", code="invalid_encoding", field="body", hint="pack it again, or send it as it is") from None
        self._rest = self._stream.unconsumed_tail
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._allowed:
            raise _too_large(self._limit) if self._size > self._limit else _grows_too_much()
        self.ended = self._stream.eof or (not self._rest and len(part) < most)
        return len(part)

    def whole(self) -> bytes:
        if self._parts and (not self._stream.eof or self._stream.unused_data):
            raise InvalidInput("the body is cut off, or something follows it", code="invalid_encoding", field="body", hint="send one whole gzip member")
        return b"".join(self._parts)


def _grows_too_much() -> Refused:
    hint = f"send it as it is, or in several requests; over {FREE} bytes gzip may save at most {MOST_GROWTH - 1} of {MOST_GROWTH} bytes"
    return Refused(413, "body_too_packed", "the body unpacks to far more than was sent", hint, field="body")


def _too_large(limit: int) -> Refused:
    return Refused(
        413,
        "body_too_large",
        f"the body has more than {limit} bytes",
        "send less, or in several requests; a large payload is best stored elsewhere and pointed to",
        field="body",
    )


def check_values(data: bytes) -> None:
    """Refuse, before it is parsed, text that makes more values than one request may."""
    if len(data) > MOST_VALUES and codec.has_more_values(data, MOST_VALUES):
        raise Refused(413, "too_many_values", f"the body has more than {MOST_VALUES} values", "send it in several requests", field="body")
