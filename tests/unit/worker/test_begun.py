"""What the store is told of handlers that have begun: once, all in one step, and nothing of short ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from taskmill import App
from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Checkpoint, Ending, Engine, Refusal, Room
from taskmill.errors import StoreError
from taskmill.task import Task
from taskmill.worker.attempt import Running, ended
from taskmill.worker.begun import Begun


class Hand:
    """As much of an executor as is looked at, and a store that counts what it is told."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.held: dict[int, Running] = {}
        self.told: list[Sequence[Checkpoint]] = []
        self.away = False
        self.clock = app.clock
        assert isinstance(self.clock, ManualClock)
        self.begun = Begun(self, self)  # type: ignore[arg-type]

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        if self.away:
            raise StoreError("away")
        self.told.append(entries)
        return await self.app.engine.checkpoint(entries)

    async def claim(self, n: int) -> list[Running]:
        engine: Engine = self.app.engine
        tasks = (await engine.claim("anna", len(self.held) + 1, ["default"], Room(n))).tasks
        made = [Running(task, self.app.types[task.type], self.clock.monotonic(), asyncio.get_running_loop()) for task in tasks]
        self.held |= {running.claimed.token: running for running in made}
        return made

    def pass_by(self, time: int) -> None:
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(time / SECOND)

    async def started_at(self, running: Running) -> int | None:
        (task,) = await self.app.engine.get([running.claimed.id])
        assert isinstance(task, Task)
        return task.started_at


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    app = App("sqlite://:memory:", clock=ManualClock())

    @app.task
    def work(n: int) -> None:
        pass

    async with app:
        await app.engine.join(app.joining("anna", lease=10 * MINUTE))
        for n in range(3):
            await work.submit(n)
        yield Hand(app)


async def test_what_runs_is_told_once_and_what_waits_is_not(hand: Hand) -> None:
    one, other, waits = await hand.claim(3)
    hand.pass_by(SECOND)
    one.started = other.started = hand.clock.monotonic()
    await hand.begun.tell()
    assert hand.told == []  # it may end before anybody could look
    hand.pass_by(SECOND)
    for _ in range(3):
        await hand.begun.tell()
    assert [[entry.task for entry in entries] for entries in hand.told] == [[one.claimed.id, other.claimed.id]]
    assert await hand.started_at(one) == one.claimed.claimed_at + SECOND
    assert await hand.started_at(waits) is None


async def test_the_store_was_away(hand: Hand) -> None:
    (one,) = await hand.claim(1)
    one.started = hand.clock.monotonic()
    hand.pass_by(SECOND)
    hand.away = True
    with pytest.raises(StoreError):
        await hand.begun.tell()
    hand.away = False
    await hand.begun.tell()
    assert await hand.started_at(one) == one.claimed.claimed_at


async def test_what_has_ended_is_forgotten(hand: Hand) -> None:
    (one,) = await hand.claim(1)
    one.started = hand.clock.monotonic()
    hand.pass_by(SECOND)
    await hand.begun.tell()
    assert hand.begun._told == {one.claimed.token}
    del hand.held[one.claimed.token]
    await hand.app.engine.finish([ended(one, Ending.COMPLETED)])
    await hand.begun.tell()
    assert hand.begun._told == set()
    assert len(hand.told) == 1
