"""REST over ASGI: a request is let in, read, handed to its route, and its answer written; whatever goes wrong becomes problem+json.

    door (limits, key, quota) ──▶ read (query, body) ──▶ handler of the route ──▶ write

Every route goes this one way. Paths without names in them, that of submits among them, are looked up first; the others are found by Starlette's router. An
answer leaves in one write where the connection offers that (`sockets.ANSWER`), through ASGI otherwise. Nothing here knows what a task is.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import lru_cache
from itertools import chain, count
from typing import Any, NamedTuple

import msgspec
from starlette.routing import Match, Router
from starlette.routing import Route as Path

from taskmill import codec
from taskmill.errors import InvalidInput, StoreError, TaskmillError
from taskmill.server import cors, live
from taskmill.server.access import Caller, Forbidden, Unauthenticated
from taskmill.server.access import Scope as Right
from taskmill.server.audit import REQUEST
from taskmill.server.incoming import LARGE, Body, Held, Share, Unpacking, check_values
from taskmill.server.problem import CONTENT_TYPE, LONGEST_URL, Refused, invalid, problem_of, retry_after, url_too_long
from taskmill.server.rest.streams import EVENTS, WEBSOCKET
from taskmill.server.routes import Call, Receive, Route, no_route, read_query
from taskmill.server.service import Service
from taskmill.server.sockets import ANSWER

__all__ = ["Http", "Refused"]

log = logging.getLogger("taskmill")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Stream = Callable[..., Awaitable[None]]

JSON = b"application/json"
MOST_HEADERS = 100
LONGEST_HEADERS = 32_768
ONCE = (b"authorization", b"host", b"content-type", b"content-encoding", b"idempotency-key", b"origin")
"""Headers of which two say two things: whoever stands in between may have believed the other one."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
_encode = msgspec.json.Encoder().encode
_COMMON = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class _Endpoint:
    """All methods of one path; an ASGI app, so that the router hands it over untouched."""

    def __init__(self, http: Http, methods: dict[str, Route]) -> None:
        self._http = http
        self.methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._http.answer(self.methods, scope, receive, send)


class Http:
    """The ASGI app of one service. `streams` are endpoints of another kind by path (WebSocket, server-sent events)."""

    def __init__(
        self, service: Service, routes: Iterable[Route], *, observed: Callable[[str, str, str, int], None] = lambda *_: None, trusted_hosts: bool = False
    ) -> None:
        self.service = service
        self.observed = observed
        self._origins = frozenset(origin.rstrip("/") for origin in _listed(service.settings.allowed_origins))
        self._cors = frozenset(origin.lower().rstrip("/").encode() for origin in _listed(service.settings.cors_origins))
        self._hosts = frozenset(host.lower() for host in _listed(service.settings.allowed_hosts))
        self._any_host = trusted_hosts
        self._held = Held()
        self._paths: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._paths.setdefault(route.path, {})[route.method] = route
        self._plain = {path: methods for path, methods in self._paths.items() if "{" not in path}
        self._router = Router([Path(path, _Endpoint(self, methods)) for path, methods in self._paths.items() if "{" in path], redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._upgrade(scope, receive, send)
            return
        if self._cors and cors.allow(scope, self._cors) and cors.asks(scope):
            await _write(scope, send, Written(204, b"", cors.PREFLIGHT), _request_id(dict(scope["headers"])), None)
            return
        methods = self._plain.get(scope["path"])
        if _hides_slash(scope):
            await self._routed(scope, receive, send)
        elif methods is not None:
            await self.answer(methods, scope, receive, send)
        elif scope["path"] == EVENTS and scope["method"] == "GET":
            await self._events(scope, receive, send)
        elif scope["path"] in (EVENTS, WEBSOCKET):
            await self._refuse_stream(scope, receive, send)
        else:
            await self._routed(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        headers = dict(scope["headers"])
        if "//" not in path and path.isprintable() and not _hides_slash(scope):
            for route in self._router.routes:
                match, child = route.matches(scope)
                if match is not Match.NONE:
                    scope.update(child)
                    await route.handle(scope, receive, send)
                    return
        await self._refuse(no_route(path), _request_id(headers), scope, send, "no_route", Body(headers, receive))

    async def answer(self, methods: dict[str, Route], scope: Scope, receive: Receive, send: Send) -> None:
        """One request, whatever comes of it."""
        began = time.perf_counter_ns()
        method = scope["method"]
        route = methods.get("GET" if method == "HEAD" else method)
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        REQUEST.set(request_id)
        body = Body(headers, receive)
        name = next(iter(methods.values())).path if route is None else route.path
        try:
            if route is None:
                allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
                raise Refused(405, "method_not_allowed", f"{method[:20]} is not allowed here", f"one of {allowed}", ((b"allow", allowed.encode()),))
            written = await self._done(route, scope, headers, body, request_id)
        except TaskmillError as error:
            written = _refusal(error, request_id, name)
        except asyncio.CancelledError:
            raise
        except Exception as defect:
            written = _refusal(_failure(defect, request_id), request_id, name)
        # Told of before it leaves: whoever has been answered finds the request counted.
        self.observed("http", f"{method if route else 'OTHER'} {name}", str(written.status), (time.perf_counter_ns() - began) // 1_000)
        await _write(scope, send, written, request_id, body)

    async def _done(self, route: Route, scope: Scope, headers: dict[bytes, bytes], body: Body, request_id: str) -> Written:
        caller = await self._let_in(route, scope, headers)
        with Share(self._held) as share:
            answer = await route.handler(await self._read(route, caller, scope, headers, body, share, request_id))
        status = answer.status or route.status
        if isinstance(answer.data, bytes):
            return Written(status, answer.data, answer.headers)
        data = b"" if answer.data is None and status == 204 else _encode(answer.data)
        return Written(status, data, (*answer.headers, (b"content-type", JSON)))

    # Live events

    async def _upgrade(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id(dict(scope["headers"]))
        try:
            if scope["path"] != WEBSOCKET:
                raise no_route(scope["path"])
            caller = await self._let_in_stream(scope)
            await live.websocket(scope, receive, send, hub=self.service.hub, caller=caller, origins=self._origins)
        except TaskmillError as error:
            problem = problem_of(error, request_id)
            await live.deny(send, problem.status, _encode(problem), [(b"content-type", CONTENT_TYPE), (b"x-request-id", request_id.encode())])

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await self._let_in_stream(scope)
            await live.events(scope, receive, send, hub=self.service.hub, caller=caller)
        except TaskmillError as error:
            await self._refuse(error, _request_id(dict(scope["headers"])), scope, send, EVENTS)

    async def _refuse_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A method that they do not have, or a WebSocket asked for without an upgrade to one."""
        method, headers = scope["method"], dict(scope["headers"])
        error = Refused(426, "upgrade_required", "this is a WebSocket", f"connect to it with ws:// or wss://; without: GET {EVENTS}", _UPGRADE)
        if method != "GET":
            error = Refused(405, "method_not_allowed", f"{method[:20]} is not allowed here", "GET alone", ((b"allow", b"GET"),))
        await self._refuse(error, _request_id(headers), scope, send, scope["path"], Body(headers, receive))

    async def _let_in_stream(self, scope: Scope) -> Caller:
        headers = dict(scope["headers"])
        _check_head(scope, headers)
        self._check_host(headers)
        key = live.key_of(scope)
        if key is not None and b"authorization" in headers:
            raise _twice("authorization")
        caller = await self.identify(scope, headers if key is None else {**headers, b"authorization": b"Bearer " + key.encode("latin-1", "replace")})
        self.service.quotas.request(caller)
        caller.need(Right.READ)
        return caller

    # The door

    async def _let_in(self, route: Route, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        _check_head(scope, headers)
        if route.scope is None and not route.any_key:
            return _NOBODY
        self._check_host(headers)
        caller = await self.identify(scope, headers)
        self.service.quotas.request(caller)
        if route.scope is not None:
            caller.need(route.scope, whole=route.whole)
        return caller

    async def identify(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Who asks, by the header Authorization."""
        client = scope.get("client")
        caller = await self.service.keys.identify(_token(headers.get(b"authorization")), client[0] if client else "")
        if caller.key == "" and not self._any_host:
            _check_local(headers)
        return caller

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        if self._hosts and _host(headers.get(b"host", b"")) not in self._hosts:
            raise Forbidden(
                "this server does not answer to this name", code="invalid_host", field="Host", hint="call it by a name of the setting allowed_hosts"
            )

    # Reading

    async def _read(self, route: Route, caller: Caller, scope: Scope, headers: dict[bytes, bytes], body: Body, share: Share, request_id: str) -> Call[Any, Any]:
        try:
            query = read_query(scope["query_string"].decode("ascii"), route.query)
        except UnicodeDecodeError:
            raise InvalidInput("the query is not ASCII", code="invalid_query", field="query", hint="write it percent-encoded") from None
        value = None if route.body is None else await self._value(route, route.body, headers, body, share)
        return Call(self.service, caller, scope.get("path_params", {}), query, value, headers, request_id, body.receive)

    async def _value(self, route: Route, kind: type, headers: dict[bytes, bytes], body: Body, share: Share) -> Any:
        if not body.whole:
            _check_json(headers.get(b"content-type", b""))
        data = await body.read(route.body_limit, share)
        unpacking = Unpacking(data if body.packed else b"", route.body_limit)
        if not unpacking.ended:
            share.grow(unpacking.step(LARGE))
        if not unpacking.ended or (not body.packed and len(data) > LARGE):
            async with share.held.large:
                while not unpacking.ended:
                    share.grow(await asyncio.to_thread(unpacking.step))
                return await asyncio.to_thread(_parsed, unpacking.whole() if body.packed else data, route, kind)
        return _parsed(unpacking.whole() if body.packed else data, route, kind)

    # Refusing

    async def _refuse(self, error: TaskmillError, request_id: str, scope: Scope, send: Send, route: str, body: Body | None = None) -> None:
        await _write(scope, send, _refusal(error, request_id, route), request_id, body)


class Written(NamedTuple):
    """An answer as it is sent, but for the headers that all have."""

    status: int
    data: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def _failure(defect: Exception, request_id: str) -> TaskmillError:
    """What a caller is told of what should not happen: nothing of it, but where it is written down."""
    if isinstance(defect, OSError) and defect.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError("this server has as many files open as it may", code="store_busy", hint="try again in a second; raise its limit of open files")
    log.error("request %s failed", request_id, exc_info=defect)
    return TaskmillError("something went wrong here", code="internal", hint=f"the log of the server has more under {request_id}")


def _refusal(error: TaskmillError, request_id: str, route: str) -> Written:
    problem = problem_of(error, request_id)
    if problem.status >= 500:
        level = logging.WARNING if isinstance(error, StoreError) else logging.ERROR
        log.log(level, "%s is answered %d %s: %s", route, problem.status, problem.code, error)
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", CONTENT_TYPE), *getattr(error, "headers", ()))
    after = retry_after(error)
    if after is not None:
        headers = (*headers, (b"retry-after", str(after).encode()))
    if problem.status == 401:
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    return Written(problem.status, _encode(problem), headers)


_PROCESS = secrets.token_hex(4)
_requests = count(1)
_UPGRADE = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
_NOBODY = Caller(key="", scopes=frozenset())


def _parsed(data: bytes, route: Route, kind: type) -> Any:
    """Text that is written as it would be stored holds its payloads as they are stored: they are taken out of it, not made."""
    if not data and _optional(kind):
        return kind()
    check_values(data)
    text = codec.stored(data, field="body", limit=route.body_limit, whole=not route.deep_parts)
    try:
        return _decoder(kind).decode(text)
    except msgspec.ValidationError as error:
        raise invalid(error, tuple(field.encode_name for field in msgspec.structs.fields(kind))) from None


@lru_cache(maxsize=256)
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _optional(kind: type) -> bool:
    return all(not field.required for field in msgspec.structs.fields(kind))


def _token(authorization: bytes | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _hides_slash(scope: Scope) -> bool:
    """Whoever stands in front and judges by the path has seen another one."""
    raw: bytes = scope.get("raw_path", b"")
    return b"%" in raw and b"%2f" in raw.lower()


def _check_head(scope: Scope, headers: dict[bytes, bytes]) -> None:
    given = scope["headers"]
    if len(given) > MOST_HEADERS or sum(map(len, chain.from_iterable(given))) > LONGEST_HEADERS:
        raise Refused(431, "headers_too_large", "the headers are too many or too large", "at most 100, and 32 KiB in all")
    if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > LONGEST_URL:
        raise url_too_long()
    if scope["http_version"] == "1.1" and not headers.get(b"host"):
        raise Refused(400, "host_required", "the header Host is missing", "HTTP/1.1 requires it, once", field="Host")
    if len(headers) != len(given):
        names = [name for name, _ in given]
        for name in ONCE:
            if names.count(name) > 1:
                raise _twice(name.decode())


def _twice(name: str) -> TaskmillError:
    if name == "authorization":
        return Unauthenticated("two API keys are given", hint="send one")
    return Refused(400, "duplicate_header", "this header is given twice", "send it once", field=name.title())


def _check_json(content_type: bytes) -> None:
    """A page in a browser sends anything but JSON without asking first; and JSON is UTF-8."""
    if content_type == JSON:
        return
    kind, *parameters = content_type.lower().split(b";")
    charsets = [value.strip(b' "') for name, _, value in (each.partition(b"=") for each in parameters) if name.strip() == b"charset"]
    if kind.strip() != JSON or any(charset not in {b"utf-8", b"utf8"} for charset in charsets):
        raise Refused(415, "unsupported_media_type", "the body must be JSON in UTF-8", "send it with Content-Type: application/json", field="Content-Type")


@lru_cache(maxsize=1_024)
def _host(header: bytes) -> str:
    host = header.decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and host not in LOOPBACK else host


def _check_local(headers: dict[bytes, bytes]) -> None:
    """Without keys everybody who gets here may do everything: it is answered to programs on this machine, not to pages of other places, nor through a proxy."""
    host = headers.get(b"host", b"")
    if _host(host) not in LOOPBACK:
        # A name of somebody else's that leads to this machine is how a page in a browser reaches a server without keys.
        raise Forbidden("this server has no keys and answers to this machine's own names only", code="invalid_host", hint="call it as 127.0.0.1 or localhost")
    if b"origin" in headers and not _is_own(headers[b"origin"], host):
        # A page of somebody else's can send a POST without a body, or with a plain one, and never asks before.
        raise Forbidden("this server has no keys and answers to no page of another site", code="foreign_origin", hint="make a key: taskmill key create")
    if any(name in _PASSED_ON or name.startswith(b"x-forwarded-") for name in headers):
        raise Forbidden("this server has no keys, and a proxy stands before it", code="forwarded", hint="make a key: taskmill key create")


_PASSED_ON = frozenset({b"forwarded", b"via", b"x-real-ip"})


def _is_own(origin: bytes, host: bytes) -> bool:
    """Whether a page comes from this very server: one of this machine, on the same port."""
    scheme, separator, place = origin.lower().partition(b"://")
    if not separator or scheme not in _PORTS or _host(place) not in LOOPBACK:
        return False
    return _port(place, _PORTS[scheme]) == _port(host, _PORTS[scheme])


_PORTS = {b"http": b"80", b"https": b"443"}


def _port(place: bytes, usual: bytes) -> bytes:
    name, colon, port = place.rpartition(b":")
    return port if colon and port.isdigit() and name not in (b"", b":") else usual


def _listed(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The caller's own, where it is one that a log can take, so that a request is found across programs."""
    given = headers.get(b"x-request-id", b"")
    if 0 < len(given) <= 64 and given.isascii() and given.replace(b"-", b"").replace(b"_", b"").isalnum():
        return given.decode()
    return f"{_PROCESS}{next(_requests):08x}"


async def _write(scope: Scope, send: Send, written: Written, request_id: str, body: Body | None) -> None:
    status, data, headers = written
    length = () if status == 204 else ((b"content-length", str(len(data)).encode()),)
    head = [*headers, *_COMMON, *length, *cors.headers(scope), (b"x-request-id", request_id.encode())]
    if scope["method"] == "HEAD":
        data = b""
    unread = body is not None and not body.whole
    if not unread and ANSWER in scope.get("extensions", ()) and scope["extensions"][ANSWER](status, head, data):
        return
    if unread:
        head.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data, "more_body": unread})
    if body is not None and unread:
        await body.throw_away()
        await send({"type": "http.response.body", "body": b""})
