"""What a supervisor and its children say to each other: small JSON messages, one a line, over a socket pair.

Its end is a message too: a child whose supervisor is gone exits, and a supervisor whose child is gone reports what it held.
"""

from __future__ import annotations

import asyncio
import socket

import msgspec

__all__ = ["Channel", "Message"]

_LONGEST = 1 << 26


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing said; which fields have a meaning depends on `kind`."""

    kind: str
    tokens: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()
    text: str = ""
    number: int | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


class Channel:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end, limit=_LONGEST))

    def say(self, message: Message) -> None:
        """Never waits: what is said is small, and a listener that is gone shows at the reading end."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def hear(self) -> Message | None:
        """The next message; None when the other side is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        return msgspec.json.decode(line, type=Message) if line.endswith(b"\n") else None

    async def flush(self) -> None:
        """Until what was said has left this process."""
        if not self._writer.is_closing():
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()
