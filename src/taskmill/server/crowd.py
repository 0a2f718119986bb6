"""How many connections a server process takes: in all as many as it has files for, of one address a part of them, and a few more for those who ask for health.

arriving (TLS) ──▶ enter ──▶ a seat, up to `most`, and of one address up to its share
                         ──▶ the reserve, for a moment, where all seats are taken: the oldest who says nothing makes room for the next
                         ──▶ none
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
from collections import Counter
from enum import Enum
from typing import Any
from weakref import WeakSet

from taskmill.server.access import network

__all__ = ["CROWD", "Crowd", "Place", "seats"]

MOST_CONNECTIONS = 10_000
FILES = 256
"""Descriptors that are kept for the store, the log and whatever else is opened."""
RESERVE = 64
"""Connections beyond the seats."""
MOST_UNREAD = 64 << 20
"""Bytes of answers that callers have not read, over all of them."""
SHARE = 4
"""One part of so many is for one address of another machine; callers on this machine may have all."""


class Place(Enum):
    """Where a connection is."""

    SEAT = "seat"
    RESERVE = "reserve"


class Crowd:
    """The connections of this process. `of_an_address`: how many one may have, instead of its share."""

    def __init__(self, most: int = MOST_CONNECTIONS, of_an_address: int = 0) -> None:
        self.most = most
        self.of_an_address = of_an_address
        self.arriving: WeakSet[Any] = WeakSet()
        """Those whose handshake is not over."""
        self._seats: dict[Any, str] = {}
        self._addresses: Counter[str] = Counter()
        self._reserve: dict[Any, None] = {}
        self._unread: dict[Any, int] = {}
        """Bytes that were answered and not read yet, by connection, the longest first."""
        self.unread = 0

    @property
    def seated(self) -> int:
        return len(self._seats)

    def enter(self, connection: Any, address: str) -> Place:
        self.arriving.discard(connection)
        address = network(address)
        if self._addresses[address] < self._share(address) and len(self._seats) + len(self.arriving) < self.most:
            self._seats[connection] = address
            self._addresses[address] += 1
            return Place.SEAT
        if len(self._reserve) >= RESERVE:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            oldest.transport.abort()
        self._reserve[connection] = None
        return Place.RESERVE

    def move(self, connection: Any, to: Any) -> None:
        """It goes on as another, on the same seat."""
        if connection in self._seats:
            self._seats[to] = self._seats.pop(connection)

    def wait(self, connection: Any, size: int) -> None:
        """It does not read as fast as it is answered. Where too much waits in all, those who have read nothing for longest are let go."""
        self.read(connection)
        self._unread[connection] = size
        self.unread += size
        while self.unread > MOST_UNREAD and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            self.read(slowest)
            slowest.transport.abort()

    def read(self, connection: Any) -> None:
        self.unread -= self._unread.pop(connection, 0)

    def leave(self, connection: Any) -> None:
        self.arriving.discard(connection)
        self.read(connection)
        self._reserve.pop(connection, None)
        address = self._seats.pop(connection, None)
        if address is not None:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _share(self, address: str) -> int:
        if self.of_an_address:
            return self.of_an_address
        return self.most if _is_local(address) else max(1, self.most // SHARE)


def _is_local(address: str) -> bool:
    try:
        return not address or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "0"  # the network of ::1


def seats() -> int:
    """Every client is an open file, and systems start programs with a bound of 1,024: as many as the system lets us have, less those for the store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + RESERVE + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft - RESERVE - FILES))


CROWD = Crowd()
"""That of this process."""
