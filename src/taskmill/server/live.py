"""Live events for clients: as a WebSocket at `/ws` and as server-sent events at `/api/v1/events`.

    websocket ─┬─ reads: subscribe, unsubscribe, ping      both end with the subscription: the key was revoked, the client does not read,
               └─ writes what the hub has for it           the server stops; or with the client

Both are bare ASGI. What can be refused is refused before the upgrade, or before the answer has begun, by raising; `deny` writes such a refusal to a client that
asked for a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from taskmill import codec
from taskmill.clock import Clock, SystemClock
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.server import cors
from taskmill.server.access import Caller, Forbidden, Unauthenticated
from taskmill.server.hub import MOST_SUBSCRIPTIONS, Hub
from taskmill.server.news import Form, message
from taskmill.server.sockets import ABORT, SOCKET, Socket
from taskmill.server.subscription import Ended, Subscription
from taskmill.server.wanted import EVERYTHING, Wanted, filter_of, read_filter, read_query

__all__ = ["check_origin", "deny", "events", "key_of", "websocket"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

SUBPROTOCOL = "taskmill"
KEY = "taskmill.key."
MOST_MESSAGE = 64 << 10
"""Bytes of a client's message."""
MOST_MESSAGES = 200
"""Messages of a client in a second."""
HEARTBEAT = 15.0
"""Seconds after which a silent stream says that it is there."""
PATIENCE = 2.0
"""Seconds for a client to take the last words."""


class Refused(Exception):
    """A client that does not keep to the rules; the connection ends."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


# The door


def check_origin(headers: Headers, host: str, allowed: Collection[str] = ()) -> None:
    """A browser says which page asks. A page of somebody else, or a browser's cookies from nobody knows where, are refused before the upgrade."""
    given = dict(headers)
    origin = given.get(b"origin")
    if origin is None:
        if b"cookie" in given:
            raise Forbidden("cookies without an Origin", code="origin_required", field="Origin", hint="send the key as `Authorization: Bearer tm_…` instead")
        return
    text = origin.decode("latin-1").lower()
    try:
        place = urlsplit(text).netloc
    except ValueError:
        place = ""
    if text not in {one.lower().rstrip("/") for one in allowed} and (not place or place != host.lower()):
        raise Forbidden("pages of this origin may not connect", code="foreign_origin", field="Origin", hint="add it to the setting of allowed origins")


async def deny(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """An HTTP answer to a client that asked for a WebSocket; for a server that can only refuse, the bare refusal."""
    with contextlib.suppress(RuntimeError):
        await send({"type": "websocket.http.response.start", "status": status, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "websocket.http.response.body", "body": body})


# WebSocket


def key_of(scope: Scope) -> str | None:
    """The key that a page in a browser brings, which can give no header of its own: as a second subprotocol, `taskmill.key.tm_…`."""
    offered = [str(name) for name in scope.get("subprotocols", ())]
    keys = [name.removeprefix(KEY) for name in offered if name.startswith(KEY)] if SUBPROTOCOL in offered else []
    if len(keys) > 1:
        raise Unauthenticated("two API keys are given", hint="send one")
    return keys[0] if keys else None


async def websocket(scope: Scope, receive: Receive, send: Send, *, hub: Hub, caller: Caller, origins: Collection[str] = ()) -> None:
    """One client, from the upgrade to its end. Raises before the upgrade whatever refuses it."""
    headers = dict(scope["headers"])
    check_origin(scope["headers"], headers.get(b"host", b"").decode("latin-1"), origins)
    wanted, after = read_query(scope["query_string"])
    socket: Socket | None = scope.get("extensions", {}).get(SOCKET)
    form = Form.JSON if socket is None else Form.FRAME
    await receive()  # websocket.connect
    async with await hub.subscribe(caller, {wanted}, form, after=after) as subscription:
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None})
        if socket is not None:
            subscription.write = socket.write
        connection = _Connection(hub, subscription, receive, send, socket, named=wanted != EVERYTHING)
        await connection.run()


class _Connection:
    """A WebSocket that was let in."""

    def __init__(self, hub: Hub, subscription: Subscription, receive: Receive, send: Send, socket: Socket | None, *, named: bool) -> None:
        self._hub = hub
        self._subscription = subscription
        self._receive = receive
        self._send = send
        self._socket = socket
        self._named = named
        """Whether the client has asked for something in particular; without that it gets everything."""
        self._clock: Clock = SystemClock()
        self._messages = 0
        self._since = 0.0

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        writing = asyncio.create_task(self._write())
        self._subscription.cut = writing.cancel
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and (refused := reading.result()) is not None:
                await self._end(writing, refused)
            elif self._subscription.ended is not None:
                await self._close(self._subscription.ended.status, self._subscription.ended.text)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.wait({reading, writing})

    # Reading

    async def _read(self) -> Refused | None:
        """Until the client is gone, or breaks the rules."""
        try:
            while True:
                received = await self._receive()
                if received["type"] == "websocket.disconnect":
                    self._subscription.close()
                    return None
                await self._obey(self._readable(received))
        except Refused as refused:
            return refused

    def _readable(self, received: MutableMapping[str, Any]) -> bytes:
        now = time.monotonic()
        if now - self._since > 1.0:
            self._messages, self._since = 0, now
        self._messages += 1
        if self._messages > MOST_MESSAGES:
            raise Refused(1008, "too many messages")
        text = received.get("text")
        if text is None:
            self._answer_error(InvalidInput("a message is text", code="binary_message", hint='send JSON such as {"action": "ping"} as a text'))
            raise Refused(1008, "binary messages are not understood")
        data: bytes = text.encode("utf-8", "surrogatepass")
        if len(data) > MOST_MESSAGE:
            raise Refused(1009, "the message is too large")
        return data

    async def _obey(self, data: bytes) -> None:
        try:
            asked = codec.read(data, field="message", limit=MOST_MESSAGE)
        except TaskmillError as error:
            self._answer_error(error)
            raise Refused(1008, "a message is not JSON") from None
        try:
            await self._act(asked)
        except TaskmillError as error:
            self._answer_error(error)

    async def _act(self, asked: object) -> None:
        action = asked.get("action") if isinstance(asked, dict) else None
        if not isinstance(asked, dict) or action not in ("subscribe", "unsubscribe", "ping"):
            raise InvalidInput(
                "this message is not understood", code="unknown_action", field="action", hint='{"action": "subscribe", "filter": {…}}, unsubscribe or ping'
            )
        unknown = sorted(set(asked) - {"action", "filter"})
        if unknown:
            raise InvalidInput("there is no such member", code="unknown_field", field=unknown[0][:80], hint="action and filter are all there is")
        if action == "ping":
            self._answer("pong", {}, self._hub.place)
            return
        wanted = read_filter(asked.get("filter", {}))
        now_wanted = self._with(wanted) if action == "subscribe" else self._subscription.wanted - {wanted}
        await self._subscription.change(now_wanted)
        self._named = True
        self._answer(f"{action}d", {"filter": filter_of(wanted), "subscriptions": len(now_wanted)})

    def _with(self, wanted: Wanted) -> frozenset[Wanted]:
        """The first filter that a client names stands instead of everything."""
        subscribed = self._subscription.wanted | {wanted} if self._named else frozenset({wanted})
        if len(subscribed) > MOST_SUBSCRIPTIONS:
            raise InvalidInput(
                f"more than {MOST_SUBSCRIPTIONS} subscriptions",
                code="too_many_subscriptions",
                field="filter",
                hint="unsubscribe from others, or name several things in one filter",
            )
        return subscribed

    # Writing

    async def _write(self) -> None:
        async for data in self._subscription:
            if self._socket is None:
                await self._send({"type": "websocket.send", "text": data.decode()})
            elif not await self._socket.write_when_possible(data):
                return

    def _answer(self, type: str, data: dict[str, Any], place: str = "") -> None:
        self._subscription.push(message(type, self._clock.now(), data, self._subscription.form, place))

    def _answer_error(self, error: TaskmillError) -> None:
        told = {"code": error.code, "title": error.message, "field": error.field, "hint": error.hint}
        self._answer("error", {name: value for name, value in told.items() if value is not None})

    async def _end(self, writing: asyncio.Task[None], refused: Refused) -> None:
        """What was to be said is said, if the client listens."""
        self._subscription.end(Ended.REFUSED, cut=False)
        await asyncio.wait({writing}, timeout=PATIENCE)
        await self._close(refused.code, refused.reason)

    async def _close(self, code: int, reason: str) -> None:
        if self._socket is not None:
            await self._socket.end(code, reason)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self._send({"type": "websocket.close", "code": code, "reason": reason})


# Server-sent events


async def events(scope: Scope, receive: Receive, send: Send, *, hub: Hub, caller: Caller) -> None:
    """One client, until it goes. Raises before the answer has begun whatever refuses it."""
    wanted, after = read_query(scope["query_string"])
    last = dict(scope["headers"]).get(b"last-event-id")  # a browser gives it when it comes back, with the URL that it had from the start
    async with await hub.subscribe(caller, {wanted}, Form.LINES, after=after if last is None else last.decode("latin-1")) as subscription:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *cors.headers(scope), (b"x-accel-buffering", b"no")]})
        await send({"type": "http.response.body", "body": b": connected\nretry: 2000\n\n", "more_body": True})
        writing = asyncio.create_task(_stream(subscription, send, hub))
        going = asyncio.create_task(_gone(receive))
        subscription.cut = writing.cancel
        try:
            await asyncio.wait({writing, going}, return_when=asyncio.FIRST_COMPLETED)
            if subscription.ended is not None and not going.done():
                await _last_words(subscription.ended, send, scope, going)
        finally:
            for task in (writing, going):
                task.cancel()
            await asyncio.wait({writing, going})


async def _stream(subscription: Subscription, send: Send, hub: Hub) -> None:
    while True:
        data = None
        try:
            async with asyncio.timeout(HEARTBEAT):
                data = await anext(subscription, b"")
        except TimeoutError:
            data = b"id: %b\n: still here\n\n" % hub.place.encode()
        if not data:
            return
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _last_words(ended: Ended, send: Send, scope: Scope, going: asyncio.Task[None]) -> None:
    words = message("closed", SystemClock().now(), {"code": ended.code, "title": ended.text}, Form.LINES)
    try:
        async with asyncio.timeout(PATIENCE):
            await send({"type": "http.response.body", "body": words})
    except TimeoutError:
        abort = scope.get("extensions", {}).get(ABORT)
        if abort is not None:
            abort()
            await going
