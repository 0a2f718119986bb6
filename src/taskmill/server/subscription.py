"""Listeners: each with what it has coming, bounded; and groups of those that get the same."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

from taskmill.server.access import Caller, Scope
from taskmill.server.news import Form, News
from taskmill.server.wanted import Wanted

__all__ = ["Ended", "Group", "Subscription"]

MOST_EVENTS, MOST_BYTES = 20_000, 1 << 20
"""What waits for a listener that does not read, before it is dropped."""
MOST_AT_ONCE = 32 << 20
"""Bytes to all listeners of a group in one go; what is more is told as `resync`."""


class Listened(Protocol):
    """The hub, as its listeners know it."""

    def leave(self, subscription: Subscription) -> None: ...

    async def change(self, subscription: Subscription, wanted: frozenset[Wanted]) -> None: ...


class Ended(Enum):
    """Why a server ends a subscription: the WebSocket's code, and the reason."""

    REVOKED = (1008, "revoked", "the key was revoked")
    SLOW = (1013, "too_slow", "events came faster than they were read")
    DRAINING = (1012, "draining", "the server is stopping; connect again")
    REFUSED = (1008, "refused", "")

    def __init__(self, status: int, code: str, text: str) -> None:
        self.status = status
        self.code = code
        self.text = text


class Subscription:
    """What one listener has coming: an iterator of bytes as its connection sends them."""

    def __init__(self, hub: Listened, caller: Caller, form: Form) -> None:
        self.caller = caller
        self.form = form
        self.wanted: frozenset[Wanted] = frozenset()
        self.ended: Ended | None = None
        self.write: Callable[[bytes], bool] | None = None
        """Takes bytes at once if the connection can; else they wait here."""
        self.cut: Callable[[], object] | None = None
        """Called when nothing more is to be written, whatever is being written."""
        self._hub = hub
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._events = 0
        self._size = 0
        self._busy = False
        self._over = False
        self._stir: asyncio.Future[None] | None = None

    # The hub's side

    def push(self, data: bytes, events: int = 1) -> None:
        if self._over:
            return
        if self.write is not None and not self._waiting and not self._busy and self.write(data):
            return
        if self._events + events > MOST_EVENTS or self._size + len(data) > MOST_BYTES:
            self.end(Ended.SLOW)
            return
        self._waiting.append((data, events))
        self._events += events
        self._size += len(data)
        self._wake()

    def end(self, why: Ended, *, cut: bool = True) -> None:
        """No more events. `cut`: what waits is not delivered either."""
        if self.ended is None:
            self.ended = why
        self._over = True
        self._hub.leave(self)
        if cut:
            self._waiting.clear()
            if self.cut is not None:
                self.cut()
        self._wake()

    def _wake(self) -> None:
        if self._stir is not None and not self._stir.done():
            self._stir.set_result(None)

    # The listener's side

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._busy = False
        while not self._waiting:
            if self._over:
                raise StopAsyncIteration
            self._stir = asyncio.get_running_loop().create_future()
            await self._stir
        data, events = self._waiting.popleft()
        self._events -= events
        self._size -= len(data)
        self._busy = True
        return data

    async def change(self, wanted: Iterable[Wanted]) -> None:
        """Hear this from now on, what anyone of them asks for."""
        await self._hub.change(self, frozenset(wanted))

    def close(self) -> None:
        """The listener is gone."""
        self._over = True
        self._hub.leave(self)
        self._wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class Group:
    """Listeners that get the same bytes."""

    def __init__(self, caller: Caller, form: Form, wanted: frozenset[Wanted]) -> None:
        self.tenant = caller.tenant
        self.payload = caller.may(Scope.READ_PAYLOAD)
        self.form = form
        self.wanted = wanted
        self.members: dict[Subscription, None] = {}
        self._pending: list[bytes] = []
        self._size = 0
        self._missed = False

    def places(self) -> list[tuple[str, str | None]]:
        """Where an event looks for this group: under what all its filters name, or under its tenant."""
        for name, part in (("task", "tasks"), ("queue", "queues"), ("type", "types"), ("tenant", "tenants")):
            named: list[frozenset[str]] = [getattr(wanted, part) for wanted in self.wanted]
            if named and all(named):
                return [(name, value) for value in frozenset().union(*named)]
        return [("tenant", self.tenant)] if self.tenant is not None else [("all", None)]

    def reads(self, news: News) -> bool:
        if self.tenant is not None and news.tenant != self.tenant:
            return False
        return any(wanted.reads(news) for wanted in self.wanted)

    def asks_for(self, event: str) -> bool:
        return self.tenant is None and any(wanted.asks_for(event) for wanted in self.wanted)

    def add(self, news: News) -> None:
        if self._missed:
            return
        data = news.written(self.form, self.payload)
        self._pending.append(data)
        self._size += len(data)
        if self._size > MOST_BYTES // 2 or self._size * len(self.members) > MOST_AT_ONCE:
            self.forget()

    def forget(self) -> None:
        """What waits goes to nobody, and will be told as missed."""
        self._pending.clear()
        self._size = 0
        self._missed = True

    def send(self, behind: Callable[[], News]) -> None:
        """Everything that came since the last time, to everybody."""
        if self._missed:
            self._missed = False
            self._pending.append(behind().written(self.form, self.payload))
        pending, self._pending = self._pending, []
        self._size = 0
        if not pending:
            return
        if self.form is Form.JSON:
            for member in tuple(self.members):
                for data in pending:
                    member.push(data)
            return
        together, events = b"".join(pending), len(pending)
        for member in tuple(self.members):
            member.push(together, events)
