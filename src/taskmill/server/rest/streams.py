"""Live events, as the OpenAPI document and the reference tell of them; docs/api/events.md has the whole of it. `live` serves them, past the table of routes:
what they answer does not end."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from taskmill.server.access import Scope
from taskmill.server.news import TYPES
from taskmill.server.routes import Stream
from taskmill.server.shapes import Id, Name, Share

__all__ = ["EVENTS", "STREAMS", "WEBSOCKET"]

WEBSOCKET, EVENTS = "/ws", "/api/v1/events"

Kind = Annotated[str, Meta(extra_json_schema={"enum": [*TYPES, *sorted({f"{type.partition('.')[0]}.*" for type in TYPES if "." in type})]})]


class Heard(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events; all conditions hold, and one that is left out always does."""

    queue: list[Name] = []
    type: list[Name] = []
    """Of tasks."""
    task: list[Id] = []
    event: list[Kind] = []
    """A type of event, or all of a kind: `task.*`."""
    tenant: list[Share] = []
    """For keys without a tenant."""
    after: str | None = None
    """The id of the last event that was heard: those that followed it come first, or `resync`."""


STREAMS = (
    Stream(
        called="stream_events",
        path=EVENTS,
        summary="Live events as server-sent events, until the client goes",
        scope=Scope.READ,
        query=Heard,
        headers=("Last-Event-ID",),
        gives="EventStream",
        refuses=(404,),
    ),
    Stream(
        called="open_websocket",
        path=WEBSOCKET,
        summary="Live events over a WebSocket; what is not an upgrade to one is refused",
        scope=Scope.READ,
        query=Heard,
        status=101,
        refuses=(404, 426),
    ),
)
