"""Pages of other sites that may call REST from a browser: those of the setting `cors_origins`, and no cookies for any."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import Any

__all__ = ["PREFLIGHT", "allow", "asks", "headers"]

Headers = tuple[tuple[bytes, bytes], ...]

_ALLOWED = "taskmill.origin"
PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, content-encoding, idempotency-key, if-match, if-none-match, last-event-id, traceparent, x-request-id",
    ),
    (b"access-control-max-age", b"600"),
)
"""What a browser is told when it asks before it calls."""


def allow(scope: MutableMapping[str, Any], origins: Collection[bytes]) -> bool:
    """Whether the page that asks may read the answer; noted for whoever writes it."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    if origin.lower() in origins:
        scope[_ALLOWED] = origin
    return _ALLOWED in scope


def asks(scope: MutableMapping[str, Any]) -> bool:
    """Whether it is the question of a browser before a call, rather than the call."""
    return scope["method"] == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in scope["headers"])


def headers(scope: MutableMapping[str, Any]) -> Headers:
    origin = scope.get(_ALLOWED)
    if origin is None:
        return ()
    shown = b"etag, location, retry-after, x-request-id"
    return ((b"access-control-allow-origin", origin), (b"access-control-expose-headers", shown), (b"vary", b"Origin"))
