"""A process that runs the product's own loop of schedules, recorded: `python -m tests.faults.scheduler schedule STORE HISTORY [options]`.

It can be told to stop itself (SIGSTOP) at the one moment that matters: it has led, read the schedules and the clock, and made up its
mind what to fire. The ids of its tasks have its own name in them, so that a time fired by two leaders would be two tasks in the store:
that real ids come from the time alone must not hide it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from taskmill.clock import SECOND
from taskmill.engine import Engine, Fired, Term
from taskmill.errors import StaleTerm
from taskmill.maintenance.schedules import Schedules
from taskmill.task import NewTask
from tests.faults.program import Ended, say
from tests.faults.recorded import Recorded
from tests.faults.workload import client_of
from tests.history import events

__all__ = ["RecordedEngine"]


class RecordedEngine:
    """The engine as the loop sees it; what leaders do goes into the history."""

    def __init__(self, client: Recorded, length: int, pause_at: int) -> None:
        self._client = client
        self._length = length
        self._pause_at = pause_at
        self._fires = 0
        self._told: Term | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client.engine, name)

    async def lead(self, role: str, holder: str) -> Term | None:
        term = await self._client.lead(role, holder, self._length)
        if term is None:
            say("following")
        elif term != self._told:
            say("leading", term.number)
        self._told = term
        return term

    async def resign(self, term: Term) -> None:
        with self._client.recorder.calling(events.Lead(role=term.role, holder=term.holder, term=term.number)) as (call,):
            await self._client.engine.resign(term)
            call.answer("resigned")

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int, term: Term) -> Fired:
        own = [msgspec.structs.replace(new, id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{term.holder} {new.id}"))) for new in tasks]
        self._fires += bool(tasks)
        if tasks and self._fires == self._pause_at:
            say("pausing")
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            fired = await self._client.fire(schedule, version, own, [new.run_at or 0 for new in own], next_at, term)
        except StaleTerm:
            say("refused")
            raise
        if tasks:
            say("fired")
        return fired


async def run(options: argparse.Namespace) -> None:
    """Until stdin ends; then give up what it leads."""
    async with client_of(options.store, options.history, term=options.term) as client:
        engine = RecordedEngine(client, options.term, options.pause)
        ended = Ended()
        watch = asyncio.create_task(ended.watch())
        loop = asyncio.create_task(Schedules(cast("Engine", engine), f"scheduler-{os.getpid()}", beat=options.term // 5).run())
        say("ready")
        await ended.event.wait()
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop
        await watch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["schedule"])
    parser.add_argument("store", type=Path)
    parser.add_argument("history", type=Path)
    parser.add_argument("--term", type=int, default=SECOND)
    parser.add_argument("--pause", type=int, default=0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
