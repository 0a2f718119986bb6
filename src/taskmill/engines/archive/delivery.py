"""Delivery: the entries of a batch become the records they are about, as the hot store has them now.

An entry says only that a task ended. By the time it is delivered the task may have been requeued and live again: then its next end owes an entry of its
own. It cannot have been removed, because what is owed is not pruned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from taskmill.engine import Engine, Entry
from taskmill.engines.archive.store import Archive, Ended
from taskmill.task import LIVE, Task

__all__ = ["Delivery", "forgo"]

MOST_BYTES = 8_000_000
"""Of payloads and results in one transaction."""


class Delivery:
    """Copies what has ended from the engine to the archive."""

    def __init__(self, engine: Engine, archive: Archive) -> None:
        self._engine = engine
        self._archive = archive

    async def __call__(self, entries: Sequence[Entry]) -> None:
        ids = list(dict.fromkeys(entry.subject for entry in entries))
        tasks = [task for task in await self._engine.get(ids) if isinstance(task, Task) and task.state not in LIVE]
        for piece in _pieces(tasks):
            await self._archive.keep(await asyncio.gather(*map(self._whole, piece)))

    async def _whole(self, task: Task) -> Ended:
        """Only attempts that have ended: one of a task that was requeued since may be running."""
        attempts = await self._engine.attempts(task.id)
        return task, tuple(attempt for attempt in attempts if attempt.ended_at is not None)


def _pieces(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    piece: list[Task] = []
    size = 0
    for task in tasks:
        more = len(task.payload) + len(task.result or b"")
        if piece and size + more > MOST_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(task)
        size += more
    if piece:
        yield piece


async def forgo(entries: Sequence[Entry]) -> None:
    """What is owed to an archive that was given up is taken for delivered, so that it is pruned in its time."""
