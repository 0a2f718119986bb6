"""The body of a request: read within bounds, or not at all.

Bounded are one body, packed and unpacked; all that are held at once; and how many values one makes, since a byte of JSON can cost thirty bytes of memory. A
caller that is refused before its body was read is answered at once, but a connection that is closed with bytes unread is reset, and the answer with it: so
what still comes is thrown away for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.errors import InvalidInput, RateLimited
from taskmill.server.problem import Refused

__all__ = ["Body", "Held", "check_values"]

MOST_HELD = 256 << 20
MOST_VALUES = 250_000
LINGER = 5.0
MOST_THROWN_AWAY = 64 << 20


class Held:
    """Bytes of bodies that this process has read in part."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, size: int) -> None:
        if self.size + size > MOST_HELD:
            error = RateLimited("this server reads as many large bodies as it can", code="too_many_bodies", hint="send again in a second, or less at once")
            error.retry_after = SECOND
            raise error
        self.size += size


class Body:
    """What a request brings beside its head."""

    __slots__ = ("_headers", "receive", "whole")

    def __init__(self, headers: Mapping[bytes, bytes], receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        self._headers = headers
        self.receive = receive
        self.whole = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"
        """Nothing of it is still to come."""

    async def read(self, limit: int, held: Held) -> bytes:
        """All of it, never more than allowed; a packed one is judged by its unpacked size."""
        packed = self._check(limit)
        parts: list[bytes] = []
        size = 0
        try:
            while not self.whole:
                part = await self._part()
                if size + len(part) > limit:
                    raise _too_large(limit)
                held.take(len(part))
                size += len(part)
                parts.append(part)
        finally:
            held.size -= size
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return _unpacked(data, limit) if packed else data

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


def _unpacked(data: bytes, limit: int) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)
    try:
        found = unpacking.decompress(data, limit + 1)
    except zlib.error:
        raise InvalidInput("the body is not gzip", code="invalid_encoding", field="body", hint="pack it again, or send it as it is") from None
    if len(found) > limit:
        raise _too_large(limit)
    if data and (not unpacking.eof or unpacking.unused_data):
        raise InvalidInput("the body is cut off, or something follows it", code="invalid_encoding", field="body", hint="send one whole gzip member")
    return found


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
