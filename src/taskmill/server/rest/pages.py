"""Pages of tasks with cursors that belong to what was asked.

A cursor is the store's own with a mark of the filter: one of another question would skip what nobody has seen, so it is refused.
"""

from __future__ import annotations

from collections.abc import Coroutine
from hashlib import blake2b
from typing import Any

import msgspec

from taskmill.engine import Filter, Page
from taskmill.errors import InvalidInput
from taskmill.requests import cursor_of, page_size
from taskmill.server.access import Scope
from taskmill.server.routes import Call
from taskmill.task import Task

__all__ = ["page_of"]

PAGE_SIZE = 4 << 20
"""Bytes of tasks after which a page ends."""


async def page_of(call: Call[Any, Any], which: Filter, limit: int, cursor: str | None) -> tuple[list[Task], str | None]:
    """The tasks behind a cursor, newest first, and the cursor of the next page."""
    limit, cursor, mark = page_size(limit), cursor_of(cursor), _mark(which)
    payloads = call.caller.may(Scope.READ_PAYLOAD)

    def portion(after: str | None, n: int) -> Coroutine[Any, Any, Page]:
        return _slice(call, which, after, n, cursor or "")

    tasks, after = await call.service.pages.read(portion, _place(cursor, mark), limit, PAGE_SIZE, payloads=payloads)
    return tasks, None if after is None else f"{after}.{mark}"


async def _slice(call: Call[Any, Any], which: Filter, after: str | None, n: int, cursor: str) -> Page:
    try:
        return await call.desk.list(call.caller, which, after=after, n=n)
    except InvalidInput as error:
        if error.code == "invalid_cursor":
            raise _no_cursor(cursor) from None
        raise


def _mark(which: Filter) -> str:
    data = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in msgspec.structs.asdict(which).items()}
    return blake2b(msgspec.json.encode({**data, "tags": sorted(which.tags.items())}), digest_size=4).hexdigest()


def _place(cursor: str | None, mark: str) -> str | None:
    if not cursor:
        return None
    place, _, marked = cursor.rpartition(".")
    if marked != mark or not place:
        raise _no_cursor(cursor)
    return place


def _no_cursor(cursor: str) -> InvalidInput:
    return InvalidInput(f"{cursor!r:.40} is not a cursor of this list", code="invalid_cursor", field="cursor", hint="pass on what the page before answered")
