"""Probes and metrics of a supervisor over HTTP, for whoever keeps it running and whoever watches it.

    GET /livez     200 while beats are made; 503 when they are late although the store answers: then a restart helps
    GET /readyz    200 when every place has a worker that has joined and does not drain, and the store answers; 503 says what is missing
    GET /metrics   the text format of Prometheus

A store that is away never makes a supervisor look dead: a restart would not bring the store back, and would end what runs. A supervisor whose
loop does not turn cannot answer at all, and that says it too.

It is a few lines on a socket instead of a web framework, because a worker serves nothing else. So it takes little: one request a
connection, a bounded head, a bounded time, a bounded number of callers; and it tells no caller more than that something went wrong.

A caller that is silent must not keep a probe from being answered, or the worker is restarted for it. So a new caller is never the one that has
to go: of each address a few may be silent, and when there are too many in all, the one that was silent the longest is let go.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

import msgspec

from taskmill.clock import SECOND, Clock, SystemClock
from taskmill.engine import Engine
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.telemetry import CONTENT_TYPE, Metrics, Processes
from taskmill.worker.offspring import Offspring
from taskmill.worker.supervisor import Supervisor

__all__ = ["Probes", "no_port"]

log = logging.getLogger("taskmill")

MOST_HEAD = 8_192
"""Bytes of a request's first line and headers."""
HEAD_PATIENCE = 1.0
"""Seconds for a caller to send its request."""
PATIENCE = 5.0
"""Seconds for a caller to take the answer."""
STORE_PATIENCE = 1.0
MOST_CALLERS = 256
MOST_SILENT = 4
"""Callers of one address that may be silent for longer than a moment."""
MOMENT = 0.1
MOST_DISCARDED = 1_000_000
JSON = "application/json"


class Answer(msgspec.Struct, frozen=True):
    """What a caller gets."""

    status: HTTPStatus
    body: bytes
    type: str = JSON
    headers: Mapping[str, str] = {}


class Refused(Exception):
    """A request that cannot be answered as asked."""

    def __init__(self, status: HTTPStatus, **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


class Caller:
    """Somebody connected: from where, since when, and whether an answer is just being made for it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.since = asyncio.get_running_loop().time()
        self.answering = False


class Probes:
    """The socket of one supervisor. Made before the supervisor runs, its metrics have every call of the store; made later, those from then on."""

    def __init__(self, supervisor: Supervisor, host: str = "127.0.0.1", port: int = 0, *, clock: Clock | None = None) -> None:
        if not 0 <= port <= 65_535:
            raise InvalidInput(f"{port} is not a port", code="invalid_port", field="port", hint="0 to 65535; 0 takes a free one")
        self.host = host
        self.port = port
        """The one asked for; once open, the one that is listened on."""
        self.metrics = Metrics(processes=self._processes)
        self._supervisor = supervisor
        self._clock = clock or SystemClock()
        self._server: asyncio.Server | None = None
        self._callers: dict[asyncio.Task[None], Caller] = {}
        """The oldest first."""
        self._routes: dict[str, Callable[[], Awaitable[Answer]]] = {"/livez": self._live, "/readyz": self._ready, "/metrics": self._metrics}
        self._observe()

    @property
    def questions(self) -> Mapping[str, Callable[[], Awaitable[bytes]]]:
        """What an API beside the workers asks for, answered as JSON."""
        return {"missing": self._told_missing, "metrics": self._told_metrics}

    async def _told_missing(self) -> bytes:
        return msgspec.json.encode([reason async for reason in self.missing()])

    async def _told_metrics(self) -> bytes:
        return self.metrics.snapshot()

    def _observe(self) -> None:
        supervisor = self._supervisor
        supervisor.on_stats = self.metrics.ended
        supervisor.on_metrics = self.metrics.add
        supervisor.observe = self._watched
        if supervisor.engine is not None:
            supervisor.engine = self._watched(supervisor.engine)

    def _watched(self, engine: Engine) -> Engine:
        self.metrics.term = self._supervisor.settings.term
        return self.metrics.watch(engine)

    # The socket

    async def open(self) -> None:
        """Listen; a port that cannot be had is told in one error."""
        try:
            self._server = await asyncio.start_server(self._called, self.host, self.port, limit=MOST_HEAD)
        except (OSError, UnicodeError) as error:
            raise no_port(self.host, self.port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]
        shown = f"[{self.host}]" if ":" in self.host else self.host
        log.info("probes and metrics: http://%s:%d/livez /readyz /metrics", shown, self.port)

    async def run(self) -> None:
        """Answer until cancelled."""
        if self._server is None:
            await self.open()
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """No more callers; those under way are let go."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        callers = tuple(self._callers)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)

    def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(str((writer.get_extra_info("peername") or ("",))[0]))
        self._make_room(caller.address)
        if len(self._callers) >= MOST_CALLERS:  # all of them are just being answered
            writer.transport.abort()
            return
        conversation = asyncio.create_task(self._converse(caller, reader, writer))
        self._callers[conversation] = caller
        conversation.add_done_callback(lambda ended: self._callers.pop(ended, None))

    def _make_room(self, address: str) -> None:
        """Those that are only there, waiting to say something or to take their answer, go before a new one does."""
        before = asyncio.get_running_loop().time() - MOMENT
        silent = [conversation for conversation, caller in self._callers.items() if not caller.answering]
        alike = [each for each in silent if self._callers[each].address == address and self._callers[each].since < before]
        going = alike[: max(0, len(alike) + 1 - MOST_SILENT)]
        if not going and len(self._callers) >= MOST_CALLERS:
            going = silent[:1]
        for conversation in going:
            del self._callers[conversation]
            conversation.cancel()

    async def _converse(self, caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, whoever calls and whatever they send."""
        try:
            method, answer = await self._heard(caller, reader)
            writer.write(_encoded(answer, body=method != "HEAD"))
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
                writer.write_eof()
                if answer.status is not HTTPStatus.REQUEST_TIMEOUT:  # it has nothing on its way that could cost it the answer
                    await _discard(reader)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            log.debug("a caller of the probes went away")
        finally:
            writer.transport.abort()

    async def _heard(self, caller: Caller, reader: asyncio.StreamReader) -> tuple[str, Answer]:
        try:
            method, path = await _request(reader)
        except Refused as refused:
            return "GET", _refusal(refused)
        caller.answering = True
        try:
            return method, await self._answered(method, path)
        except Refused as refused:
            return method, _refusal(refused)
        except Exception:  # a mistake of ours: the caller learns that there was one, the log which
            log.exception("a probe could not be answered")
            return method, _refusal(Refused(HTTPStatus.INTERNAL_SERVER_ERROR))
        finally:
            caller.answering = False

    async def _answered(self, method: str, path: str) -> Answer:
        route = self._routes.get(path)
        if route is None:
            raise Refused(HTTPStatus.NOT_FOUND)
        if method not in {"GET", "HEAD"}:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        return await route()

    # Answers

    async def _live(self) -> Answer:
        supervisor = self._supervisor
        since = self._clock.monotonic() - supervisor.turned_at
        if not supervisor.turned_at or since < supervisor.settings.lease or not await self._store_answers():
            return _said(HTTPStatus.OK, live=True)
        return _said(HTTPStatus.SERVICE_UNAVAILABLE, live=False, reasons=[f"the store answers, but no beat was made for {since // SECOND} s"])

    async def _ready(self) -> Answer:
        reasons = [reason async for reason in self.missing()]
        return _said(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, ready=not reasons, **({"reasons": reasons} if reasons else {}))

    async def missing(self) -> AsyncIterator[str]:
        """What keeps this supervisor from being ready."""
        supervisor = self._supervisor
        if supervisor.stopping:
            yield "it is stopping"
        joined = sum(_state(child) == "ready" for child in supervisor.children)
        if joined < supervisor.places:
            yield f"{joined} of {supervisor.places} workers are there"
        if supervisor.engine is None:
            yield "the store is not open yet"
        elif not await self._store_answers():
            yield "the store does not answer"

    async def _store_answers(self) -> bool:
        engine = self._supervisor.engine
        if engine is None:
            return False
        try:
            async with asyncio.timeout(STORE_PATIENCE):
                await engine.items("pause")
        except (TaskmillError, TimeoutError):
            return False
        return True

    async def _metrics(self) -> Answer:
        return Answer(HTTPStatus.OK, await self.metrics.scrape(), CONTENT_TYPE)

    def _processes(self) -> Processes:
        supervisor = self._supervisor
        children = supervisor.children
        states = dict.fromkeys(("starting", "ready", "draining"), 0)
        for child in children:
            states[_state(child)] += 1
        leases = [lease for child in children for lease in child.board.leases()]
        return Processes(
            states=states,
            concurrency=supervisor.settings.concurrency * (states["ready"] + states["draining"]),
            running=sum(lease.started > 0 for lease in leases),
            leases=len(leases),
            memory=sum(child.memory() for child in children),
            crashes=supervisor.crashes,
        )


def _state(child: Offspring) -> str:
    if child.draining:
        return "draining"
    return "ready" if child.joined else "starting"


async def _request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path; headers are read past, a body is not read at all."""
    try:
        async with asyncio.timeout(HEAD_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT) from None
    method, target, version = _words(head.split(b"\r\n", 1)[0])
    if not version.startswith("HTTP/1."):
        raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    try:
        return method, urlsplit(target).path
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST) from None


async def _discard(reader: asyncio.StreamReader) -> None:
    """What a caller sends beyond its head: closed with that unread, the connection would be reset and the answer lost on its way."""
    left = MOST_DISCARDED
    while left > 0 and (rest := await reader.read(MOST_HEAD)):
        left -= len(rest)


def _words(line: bytes) -> tuple[str, str, str]:
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or not words[0].isalpha() or not words[2].startswith("HTTP/"):
        raise Refused(HTTPStatus.BAD_REQUEST)
    return words[0], words[1], words[2]


def _said(status: HTTPStatus, **facts: object) -> Answer:
    return Answer(status, msgspec.json.encode(facts) + b"\n")


def _refusal(refused: Refused) -> Answer:
    return Answer(refused.status, msgspec.json.encode({"error": refused.status.phrase}) + b"\n", headers=refused.headers)


def _encoded(answer: Answer, *, body: bool) -> bytes:
    headers = {
        "Content-Type": answer.type,
        "Content-Length": str(len(answer.body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {answer.status.value} {answer.status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join((*lines, "", "")).encode() + (answer.body if body else b"")


def no_port(host: str, port: int, error: OSError | UnicodeError) -> TaskmillError:
    """Why a port cannot be listened on, and what to do."""
    place = f"port {port} of {host}"
    if isinstance(error, (socket.gaierror, UnicodeError)) or error.errno == errno.EADDRNOTAVAIL:
        return InvalidInput(f"{host!r:.80} is no address of this machine", code="invalid_host", field="host", hint="127.0.0.1, or 0.0.0.0 for all of them")
    if error.errno == errno.EADDRINUSE:
        return TaskmillError(f"{place} is in use", code="port_in_use", hint="name another one, or 0 for any that is free")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return TaskmillError(f"{place} may not be used", code="port_refused", hint="ports below 1024 need a privilege; name a higher one")
    return TaskmillError(f"{place} cannot be used: {error.strerror or error}", code="port_refused", hint="name another one, or 0 for any that is free")
