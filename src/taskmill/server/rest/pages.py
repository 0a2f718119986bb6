"""Pages of tasks: bounded in their bytes as in their number, and with cursors that belong to what was asked.

A thousand tasks may have half a gigabyte of payloads and results. They are read in slices, and a page that has grown large ends before its limit; its cursor
goes on where it ended. A cursor is the store's own with a mark of the filter: one of another question would skip what nobody has seen, so it is refused.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from taskmill.engine import Filter, Page
from taskmill.errors import InvalidInput
from taskmill.requests import cursor_of, page_size
from taskmill.server.routes import Call
from taskmill.task import Task

__all__ = ["page_of"]

SLICE = 100
PAGE_SIZE = 8 << 20
"""Bytes of payloads and results after which a page ends."""


async def page_of(call: Call[Any, Any], which: Filter, limit: int, cursor: str | None) -> tuple[list[Task], str | None]:
    """The tasks behind a cursor, newest first, and the cursor of the next page."""
    limit, cursor, mark = page_size(limit), cursor_of(cursor), _mark(which)
    after = _place(cursor, mark)
    tasks: list[Task] = []
    room = PAGE_SIZE
    while True:
        asked = min(SLICE, limit - len(tasks))
        page = await _slice(call, which, after, asked, cursor or "")
        tasks += page.tasks
        after = page.cursor
        room -= sum(len(task.payload) + len(task.result or b"") for task in page.tasks)
        if after is None or len(page.tasks) < asked or len(tasks) == limit or room <= 0:
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
