"""Pages of tasks for every surface: bounded in their bytes as in their number.

A thousand tasks may have half a gigabyte of payloads and results. They are read in portions, the first a small one and the others by what the tasks before them
had; a page that has grown large ends before its limit, and its cursor goes on where it ended. Few pages are made at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from taskmill.engine import Page
from taskmill.task import Task

__all__ = ["Pages", "size_of"]

FIRST, MOST = 10, 100
"""Tasks that are read at once."""
AT_ONCE = 4
"""Pages that are made at the same time."""
BESIDE = 500
"""Bytes of a task that has nothing of its caller's."""


def size_of(task: Task, *, payloads: bool = True) -> int:
    """Bytes that a task has in a page, about."""
    size = BESIDE + sum(len(name) + len(value) for pairs in (task.headers, task.tags) for name, value in pairs.items())
    if payloads:
        size += len(task.payload) + len(task.result or b"")
        size += 0 if task.error is None else len(task.error.message) + len(task.error.traceback)
    return size + (0 if task.progress is None else len(task.progress.message))


class Pages:
    """Those of one server process."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def read(
        self, portion: Callable[[str | None, int], Awaitable[Page]], after: str | None, limit: int, room: int, *, payloads: bool = True
    ) -> tuple[list[Task], str | None]:
        """Tasks behind a cursor, up to `limit` of them and until `room` bytes are full; and the cursor of the next page."""
        tasks: list[Task] = []
        n = FIRST
        async with self._turn:
            while True:
                asked = min(n, limit - len(tasks))
                page = await portion(after, asked)
                tasks += page.tasks
                after = page.cursor
                sizes = [size_of(task, payloads=payloads) for task in page.tasks]
                room -= sum(sizes)
                if after is None or len(page.tasks) < asked or len(tasks) == limit or room <= 0:
                    return tasks, after
                n = max(1, min(MOST, 2 * n, room // max(sizes)))
