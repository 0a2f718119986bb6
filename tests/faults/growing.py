"""A history read while it is written, so that a test waits for what happened in it and not for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import msgspec

from taskmill.clock import SystemClock
from tests.faults.effects import LOOK, until
from tests.faults.processes import GENEROUS
from tests.history import events
from tests.history.events import Event

__all__ = ["Growing", "took_part"]


async def took_part(path: Path, processes: Collection[int], kinds: Collection[type[Event]]) -> None:
    """Each of these processes has asked for each of these things."""
    decoder = msgspec.json.Decoder(Event)
    wanted = {(process, kind) for process in processes for kind in kinds}

    def look() -> bool | None:
        whole = path.read_bytes().rpartition(b"\n")[0]
        seen = (decoder.decode(line) for line in whole.splitlines())
        return wanted <= {(event.process, type(event)) for event in seen} or None

    await until(look, "every client takes part", GENEROUS)


class Growing:
    """The completions that clients were told of, from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = path.stat().st_size
        self._decoder = msgspec.json.Decoder(Event)

    async def completed(self, n: int) -> None:
        """So many more."""
        async with asyncio.timeout(GENEROUS):
            while n > 0:
                n -= len(self._read())
                await asyncio.sleep(LOOK)

    async def goes_on(self) -> int:
        """How long it takes from this moment until a task is completed whose finish was asked for after it, in microseconds."""
        now = SystemClock().monotonic()
        after = await until(lambda: [finish for finish in self._read() if finish.began > now] or None, "a completion", GENEROUS)
        return min(finish.ended or 0 for finish in after) - now

    def _read(self) -> list[events.Finish]:
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read_to += len(whole)
        read = (self._decoder.decode(line) for line in whole.splitlines())
        return [event for event in read if isinstance(event, events.Finish) and event.answer == "applied" and event.outcome == "completed"]
