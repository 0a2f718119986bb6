"""What the server says of itself: the OpenAPI document, and the same as a page for people, with nothing in it from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import msgspec

from taskmill.server.openapi import document
from taskmill.server.page import STYLE, page
from taskmill.server.routes import Answer, Call, Nothing, Route, Stream

__all__ = ["described"]

_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""No script, no frame, no picture, no font; one style, and that is ours."""


def described(routes: Sequence[Route], streams: Sequence[Stream]) -> tuple[Route, ...]:
    """The table with the two routes that describe it, and the streams beside it."""

    @lru_cache(maxsize=1)
    def made() -> tuple[bytes, bytes]:
        found = document([*table, *streams])
        return msgspec.json.encode(found), page(found).encode()

    async def openapi(call: Call[Nothing, None]) -> Answer:
        return Answer(made()[0], ((b"content-type", b"application/json"),))

    async def docs(call: Call[Nothing, None]) -> Answer:
        return Answer(made()[1], ((b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", POLICY.encode())))

    table = (
        *routes,
        Route(method="GET", path="/openapi.json", handler=openapi, summary="This description, as OpenAPI 3.1", scope=None, gives="OpenApi"),
        Route(method="GET", path="/docs", handler=docs, summary="The same as a page for people", scope=None, gives="Html"),
    )
    return table
