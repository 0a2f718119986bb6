"""One store over HTTP, through one server or several: a session that is kept, and requests that are repeated where an answer may come yet.

Repeated are requests whose answer got lost and those that are answered 429, 502, 503 or 504; after a pause that grows and is never twice the same, or as long
as the server asks for; until there is an answer, the repeats are used up or the time is over. What a server refuses is not asked again.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import random
import ssl
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from taskmill.client.problems import refusal, unexpected
from taskmill.clock import SECOND
from taskmill.config import Secret
from taskmill.errors import AnswerLost, RateLimited, StoreError, TaskmillError
from taskmill.version import __version__

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Answered", "Http"]

REPEATED = frozenset({429, 502, 503, 504})
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
CONNECTIONS = 64
"""At once; whoever comes when all are in use waits for one."""
LARGE = 1 << 19
"""Bytes of a body that is written in parts, with others' turns between them."""
KEPT = 30.0
"""Seconds that a connection stays open without a request: fewer than a server keeps it, so that it is not closed under a request."""
MOST_ANSWER = 64 << 20
"""Bytes of an answer."""
CONNECT = 5.0
SILENCE = 15.0
"""Seconds without a byte of an answer, beyond what the request itself may wait, before it is taken for lost."""

_connected: ContextVar[bool] = ContextVar("connected", default=False)
"""Whether the request of this task got a connection. Without one nothing was sent, however it failed: also a deadline that passed meanwhile lost no answer."""


class Answered(NamedTuple):
    """What a server answered. `repeated`: it may have heard the request before."""

    data: bytes
    repeated: bool


class Http:
    """The connections to the servers of one store, on one loop."""

    def __init__(self, bases: Sequence[str], key: Secret | None, *, timeout: int, retries: int, tls: ssl.SSLContext | None = None) -> None:
        import aiohttp

        self._library = aiohttp
        self._bases = tuple(bases)
        self.base = self._bases[0]
        """The server that is asked now. When it cannot be reached, the next one is."""
        self._timeout = timeout / SECOND
        self._retries = retries
        headers = {"User-Agent": f"taskmill/{__version__}"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.reveal()}"
        self._session = aiohttp.ClientSession(
            connector=_connector(tls), headers=headers, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        _open.add(self)

    async def close(self) -> None:
        await self._session.close()

    def abandon(self) -> None:
        """Let go without a loop: what is open is closed when nobody has it any more."""
        if not self._session.closed:
            self._session.detach()

    def __del__(self) -> None:
        if hasattr(self, "_session"):
            self.abandon()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] = MappingProxyType({}),
        patience: float = 0.0,
        limit: float | None = None,
    ) -> Answered:
        """The answer to a request. `patience`: how long the server itself may wait; `limit`: seconds beyond that, instead of the client's own."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience + (self._timeout if limit is None else min(limit, self._timeout))
        lost = False
        for number in range(self._retries + 1):
            base, pause = self.base, _pause(number)
            _connected.set(False)
            try:
                async with asyncio.timeout_at(deadline):
                    status, data, after = await self._once(method, path, body, query, headers, patience)
            except (self._library.ClientError, OSError, TimeoutError) as error:
                lost = lost or _connected.get()
                failure: TaskmillError = self._away(error, lost=lost)
                self._move_on(base)
                pause = pause if number + 1 >= len(self._bases) else 0.0
            else:
                if status < 300:
                    return Answered(data, number > 0)
                failure = refusal(status, data, after, f"{self.base}{path}")
                if status not in REPEATED:
                    raise failure
                lost = lost or status != 429
                pause = max(pause, _asked_for(failure))
            if number == self._retries or loop.time() + pause >= deadline:
                raise failure
            await asyncio.sleep(pause)
        raise AssertionError("the last try has answered or raised")

    def _move_on(self, base: str) -> None:
        """To the next server, unless another request has moved on already."""
        if base == self.base:
            self.base = self._bases[(self._bases.index(base) + 1) % len(self._bases)]

    async def _once(
        self, method: str, path: str, body: bytes | None, query: Sequence[tuple[str, str]], headers: Mapping[str, str], patience: float
    ) -> tuple[int, bytes, str | None]:
        timeout = self._library.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=patience + SILENCE)
        headers = headers if body is None else {**headers, "Content-Type": "application/json"}
        data = io.BytesIO(body) if body is not None and len(body) > LARGE else body
        async with self._session.request(
            method, self.base + path, params=query or None, data=data, headers=headers, allow_redirects=False, timeout=timeout
        ) as answer:
            return answer.status, await _whole(answer), answer.headers.get("Retry-After")

    def _away(self, error: BaseException, *, lost: bool) -> TaskmillError:
        why = str(error) or ("not in time" if isinstance(error, TimeoutError) else type(error).__name__)
        if lost:
            return AnswerLost(
                f"{self.base} has not answered: {why}",
                code="answer_lost",
                hint="it may have been done; ask again, with the same id= where a task was submitted",
            )
        return StoreError(f"{self.base} cannot be reached: {why}", code="server_unreachable", hint="is it running there? `taskmill api` starts one")


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > MOST_ANSWER:
            raise unexpected(f"the answer has more than {MOST_ANSWER} bytes")
        parts.append(part)
    return b"".join(parts)


def _connector(tls: ssl.SSLContext | None) -> aiohttp.TCPConnector:
    import aiohttp

    class Connector(aiohttp.TCPConnector):
        """Notes when a request has a connection. A program that ends without closing its client has done nothing wrong, so nothing is said about it."""

        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
            connection = await super().connect(req, traces, timeout)
            _connected.set(True)
            return connection

        def __del__(self, *_: Any) -> None:
            pass

    return Connector(limit=CONNECTIONS, limit_per_host=CONNECTIONS, keepalive_timeout=KEPT, ssl=True if tls is None else tls)


def _pause(number: int) -> float:
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**number)
    return longest * (0.5 + random.random() / 2)


def _asked_for(failure: TaskmillError) -> float:
    after = failure.retry_after if isinstance(failure, RateLimited) else None
    return 0.0 if after is None else after / SECOND


_open: WeakSet[Http] = WeakSet()


@atexit.register
def _abandon_all() -> None:
    for each in list(_open):
        each.abandon()
