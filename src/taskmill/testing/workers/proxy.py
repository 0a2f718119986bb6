"""Between the worker under test and the server: passes everything on, writes it down, and loses an answer when a check asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp import web

__all__ = ["Exchange", "Proxy"]

PREFIX = "/api/v1/worker/"
LIMIT = 64 << 20
_SKIPPED = frozenset({"host", "connection", "content-length", "transfer-encoding", "keep-alive"})


class Exchange(msgspec.Struct, kw_only=True):
    """One request of the worker, and what it was answered."""

    verb: str
    """join, claim, beat, checkpoint, finish, leave; the path for anything else."""
    body: Any
    began: float
    status: int | None = None
    """None: there was no answer (yet)."""
    answer: Any = None
    ended: float | None = None
    """When the worker was answered, or cut off."""
    heard: bool = False
    """Whether the answer went to the worker."""

    @property
    def worker(self) -> str | None:
        source = self.answer if self.verb == "join" else self.body
        return source.get("worker") if isinstance(source, dict) else None

    @property
    def good(self) -> bool:
        return self.heard and self.status == 200

    def items(self, name: str) -> list[dict[str, Any]]:
        """A list of objects in the request; empty where the worker sent something else."""
        found = self.body.get(name) if isinstance(self.body, dict) else None
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """What a claim brought."""
        return self.answer.get("tasks", []) if self.verb == "claim" and self.status == 200 else []


class Proxy:
    """One address for one worker, whatever becomes of the server behind it."""

    def __init__(self, target: Callable[[], str]) -> None:
        self._target = target
        self.exchanges: list[Exchange] = []
        self._changed = asyncio.Event()
        self._losing: list[tuple[Callable[[Exchange], bool], asyncio.Future[Exchange]]] = []
        self._refusing: dict[str, int] = {}
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=LIMIT)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(force_close=True))
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    # What checks ask for

    def lose(self, which: Callable[[Exchange], bool]) -> asyncio.Future[Exchange]:
        """The next answer of this kind is cut off on its way to the worker."""
        future: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        self._losing.append((which, future))
        return future

    def refuse(self, verb: str, times: int) -> None:
        """The next requests of this kind are answered 503, and do not reach the server."""
        self._refusing[verb] = times

    async def until(self, which: Callable[[Exchange], bool], after: int = 0) -> Exchange:
        """The first exchange of this kind behind the first so many, as soon as it has ended."""
        while True:
            changed = self._changed
            for exchange in self.exchanges[after:]:
                if exchange.ended is not None and which(exchange):
                    return exchange
            await changed.wait()

    # The way of a request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        exchange = Exchange(verb=request.path.removeprefix(PREFIX), body=_parsed(data), began=time.monotonic())
        self.exchanges.append(exchange)
        try:
            return await self._answered(request, data, exchange)
        finally:
            exchange.ended = time.monotonic()
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _answered(self, request: web.Request, data: bytes, exchange: Exchange) -> web.StreamResponse:
        if self._refusing.get(exchange.verb, 0) > 0:
            self._refusing[exchange.verb] -= 1
            exchange.status, exchange.heard = 503, True
            return web.json_response({"code": "store_unavailable", "status": 503}, status=503, headers={"Retry-After": "1"})
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _SKIPPED}
        try:
            async with self._session.request(request.method, self._target() + request.path_qs, data=data, headers=headers) as answer:
                body = await answer.read()
        except aiohttp.ClientError:
            return _cut(request)  # the server is away: so it looks to the worker
        exchange.status, exchange.answer = answer.status, _parsed(body)
        for entry in self._losing:
            if entry[0](exchange):
                self._losing.remove(entry)
                entry[1].set_result(exchange)
                return _cut(request)
        exchange.heard = True
        return web.Response(status=answer.status, body=body, headers={name: value for name, value in answer.headers.items() if name.lower() not in _SKIPPED})


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def _parsed(data: bytes) -> Any:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(data)
    return None
