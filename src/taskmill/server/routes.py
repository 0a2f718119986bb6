"""What a route is: one line of the table that requests, permissions, the OpenAPI document and the reference are all made from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_origin
from urllib.parse import parse_qsl

import msgspec

from taskmill.errors import InvalidInput, NotFound
from taskmill.server.access import Caller, Scope
from taskmill.server.desk import Desk
from taskmill.server.problem import invalid
from taskmill.server.service import Service

__all__ = ["Answer", "Call", "Described", "Handler", "Nothing", "Route", "Stream", "read_query"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Query = TypeVar("Query")
Body = TypeVar("Body")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or an empty object."""


class Call(Generic[Query, Body]):
    """A request that was let in: who asks, and for what."""

    __slots__ = ("_receive", "body", "caller", "headers", "params", "query", "request_id", "service")

    def __init__(
        self,
        service: Service,
        caller: Caller,
        params: Mapping[str, str],
        query: Query,
        body: Body,
        headers: Mapping[bytes, bytes],
        request_id: str,
        receive: Receive | None = None,
    ) -> None:
        self.service = service
        self.caller = caller
        self.params = params
        self.query = query
        self.body = body
        self.headers = headers
        self.request_id = request_id
        self._receive = receive

    @property
    def desk(self) -> Desk:
        return self.service.desk

    async def gone(self) -> None:
        """Until nobody waits for the answer any more: for handlers that would wait on for nobody."""
        if self._receive is None:
            await asyncio.Event().wait()
            return
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Answer(msgspec.Struct, frozen=True):
    """What a handler answers: something to be written as JSON."""

    data: object = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    status: int | None = None
    """Instead of that of its route."""


Handler = Callable[[Call[Any, Any]], Awaitable[Answer]]


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked for, as the OpenAPI document tells of it."""

    method: str = "GET"
    path: str
    """With names in braces; a verb follows a colon, as in `/api/v1/tasks/{id}:cancel`."""
    summary: str
    scope: Scope | None
    """What the caller's key must have; None: anybody may ask."""
    whole: bool = False
    """It is about the whole store: not for keys with a tenant."""
    any_key: bool = False
    """Any key may ask, whatever it has; `scope` is None then."""
    headers: tuple[str, ...] = ()
    """Those of a request that mean something here; `openapi` says what."""
    query: type = Nothing
    body: type | None = None
    parts: tuple[type, ...] = ()
    """What the items of its body are, where each is judged by itself."""
    deep_parts: bool = False
    """Its handler checks how deep each of its items goes."""
    body_limit: int = 1 << 20
    status: int = 200
    also: tuple[int, ...] = ()
    """Statuses that come with the same answer."""
    gives: object = None
    """The schema of its answer: a type, or the name of one in `openapi`."""
    refuses: tuple[int, ...] = ()
    """Statuses of refusals that it has beside those of every route."""

    @property
    def name(self) -> str:
        """What the OpenAPI document calls it."""
        raise NotImplementedError


class Route(Described, frozen=True, kw_only=True):
    """One that is asked and answered."""

    handler: Handler

    @property
    def name(self) -> str:
        return self.handler.__name__.strip("_")


class Stream(Described, frozen=True, kw_only=True):
    """One whose answer goes on; it is served past the table."""

    called: str

    @property
    def name(self) -> str:
        return self.called


def read_query(text: str, kind: type) -> Any:
    """The parameters of a URL, each known, each once unless it is a list."""
    if not text:
        return _empty(kind)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=200)
    except ValueError:
        raise InvalidInput("the query cannot be read", code="invalid_query", field="query", hint="name=value, joined by &, in UTF-8") from None
    for name, value in pairs:
        if "\0" in value:
            raise InvalidInput("it holds the character U+0000", code="invalid_value", field=name[:80], hint="leave it out")
        if name in fields and get_origin(fields[name].type) is list:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise InvalidInput("it is given twice", code="invalid_value", field=name[:80], hint="give it once")
        else:
            found[name] = value
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error, tuple(fields)) from None


@lru_cache(maxsize=256)
def _empty(kind: type) -> Any:
    """Most requests have no parameters, and what none gives is always the same."""
    return msgspec.convert({}, kind)


def no_route(path: str) -> NotFound:
    return NotFound(f"there is nothing at {path[:200]!r}", code="no_route", hint="/openapi.json lists what there is")
