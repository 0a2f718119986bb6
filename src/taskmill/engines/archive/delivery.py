"""Delivery: the entries of a batch become the records they are about, as the hot store has them now.

An entry says only that a task ended. By the time it is delivered the task may have been requeued and live again: then its next end owes an entry of its
own. It cannot have been removed, because what is owed is not pruned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from taskmill.engine import Engine, Entry, Record
from taskmill.engines.archive.store import Archive
from taskmill.task import TERMINAL

__all__ = ["Delivery", "forgo"]

READ = 100
"""Records asked of the hot store at once: its other callers wait for that long."""
MOST_BYTES = 8_000_000
"""Of payloads and results, after which what was read is written."""


class Delivery:
    """Copies what has ended from the engine to the archive. `batch` is how many entries it would have at once."""

    batch = 500

    def __init__(self, engine: Engine, archive: Archive) -> None:
        self._engine = engine
        self._archive = archive

    async def __call__(self, entries: Sequence[Entry]) -> None:
        async for records in self._read(list(dict.fromkeys(entry.subject for entry in entries))):
            await self._archive.keep(records)

    async def _read(self, ids: Sequence[str]) -> AsyncIterator[list[Record]]:
        """Those that have ended, in pieces for one transaction each."""
        piece: list[Record] = []
        for start in range(0, len(ids), READ):
            found = await self._engine.records(ids[start : start + READ])
            piece += [record for record in found if record is not None and record.task.state in TERMINAL]
            if sum(len(record.task.payload) + len(record.task.result or b"") for record in piece) > MOST_BYTES:
                yield piece
                piece = []
        if piece:
            yield piece


async def forgo(entries: Sequence[Entry]) -> None:
    """What is owed to an archive that was given up is taken for delivered, so that it is pruned in its time."""
