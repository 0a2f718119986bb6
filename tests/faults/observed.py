"""An App whose worker processes write down every call they make of the store, and die at a named moment when told to.

Nothing of the worker is replaced: `taskmill worker` runs as it is, and finds this app in the module it was given. What its supervisors do
(beats, reports of deaths, recovery) is not written down, so histories are judged with `Bounds(lease=0)`: a lease may end unseen.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from taskmill.app import App
from taskmill.engine import Claim, Engine, Finished, Joining, Outcome, Room, Transaction
from tests.faults import effects
from tests.faults.recorded import Recorded
from tests.history import Recorder

__all__ = ["FOLDER", "MARK", "MOMENTS", "ObservedApp", "folder", "trap"]

FOLDER = "FAULTS_FOLDER"
MOMENTS = ("claimed", "finishing", "finished")
"""The store has given tasks and nobody knows yet; before an outcome is sent; the store has it and nobody knows yet."""
MARK = "FAULTS_MARKED"
"""Set for a worker whose supervisor is to die; in all others it is the child."""


def folder() -> Path:
    return Path(os.environ[FOLDER])


def trap(place: Path, moment: str, victim: str) -> Path:
    """A file that is there as long as nobody has died of it."""
    return place / f"trap-{moment}-{victim}"


def _meet(moment: str) -> None:
    for victim in ("supervisor",) if MARK in os.environ else ("child",):
        try:
            trap(folder(), moment, victim).unlink()
        except FileNotFoundError:
            continue
        os.kill(os.getppid() if victim == "supervisor" else os.getpid(), signal.SIGKILL)
        signal.pause()


class ObservedEngine:
    """The engine as a worker process sees it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._client = Recorded(engine, Recorder(folder() / "history"))
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def join(self, joining: Joining) -> None:
        await self._client.join(joining)
        effects.note(folder() / "effects", "joined", worker=joining.worker)

    async def leave(self, worker: str) -> None:
        await self._client.leave(worker)

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        with self._counted():
            claim = await self._client.claim(worker, request, queues, room)
        if claim.tasks:
            _meet("claimed")
        return claim

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        _meet("finishing")
        with self._counted():
            finished = await self._client.finish(outcomes, tx=tx)
        _meet("finished")
        return finished

    async def quiet(self) -> None:
        """Until no call is under way: a process that stops itself in one could stop with the store's lock in its hand."""
        for _ in range(100_000):
            if not self._calls:
                return
            await asyncio.sleep(0)
        raise AssertionError("the store does not answer")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1


class ObservedApp(App):
    """What its worker processes are given is an observed engine."""

    _observed: ObservedEngine | None = None

    @property
    @override
    def engine(self) -> Engine:
        return cast("Engine", self.observed)

    @property
    def observed(self) -> ObservedEngine:
        if self._observed is None:
            self._observed = ObservedEngine(super().engine)
        return self._observed
