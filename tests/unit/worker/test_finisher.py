"""The finisher: every outcome reaches the store once, in batches, and a lease is named until the store has answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskmill import App
from taskmill.engine import Claimed, Ending, Outcome, Refusal, Room
from taskmill.task import Task
from taskmill.worker.board import Board
from taskmill.worker.finisher import Finisher


class Desk:
    """A finisher on a real store, with tasks that were claimed."""

    def __init__(self, app: App, tasks: tuple[Claimed, ...]) -> None:
        self.app = app
        self.tasks = tasks
        self.board = Board()
        self.board.hold(tasks, 1)
        self.told: list[tuple[list[Outcome], tuple[Refusal, ...]]] = []
        self.finisher = Finisher(app.engine, self.board, lambda batch, refused: self.told.append((batch, refused)))

    def outcome(self, task: Claimed, ending: Ending = Ending.COMPLETED, after: int = 0) -> Outcome:
        return Outcome(task=task.id, worker="anna", token=task.token, ending=ending, result=b"1", started_after=0, after=after)

    async def states(self) -> list[str]:
        return [task.state for task in await self.app.engine.get([task.id for task in self.tasks]) if isinstance(task, Task)]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    app = App("sqlite://:memory:")

    @app.task
    def work() -> None:
        pass

    async with app:
        await app.engine.join(app.joining("anna"))
        await app.submit_many([work.call() for _ in range(5)])
        desk = Desk(app, (await app.engine.claim("anna", 1, ["default"], Room(10))).tasks)
        yield desk
        desk.board.close()


async def test_what_comes_while_one_is_written_goes_together(desk: Desk) -> None:
    for task in desk.tasks:
        desk.finisher.add(desk.outcome(task))
    assert len(desk.board.leases()) == 5  # named until the store has answered
    await desk.finisher.drain()
    assert await desk.states() == ["completed"] * 5
    assert desk.board.leases() == []
    assert [len(batch) for batch, _ in desk.told] == [5]
    assert desk.finisher.backlog == 0


async def test_a_refusal_is_told_and_frees_the_lease(desk: Desk) -> None:
    first, *_ = desk.tasks
    desk.finisher.add(desk.outcome(first, Ending.RELEASED))
    await desk.finisher.drain()
    desk.finisher.add(desk.outcome(first))
    await desk.finisher.drain()
    assert [refusal.code for _, refused in desk.told for refusal in refused] == ["stale_lease"]
    assert len(desk.board.leases()) == 4


async def test_one_that_cannot_be_written_is_dead_and_keeps_no_other(desk: Desk) -> None:
    bad, *others = desk.tasks
    desk.finisher.add(desk.outcome(bad, Ending.RETRY, after=-1))
    for task in others:
        desk.finisher.add(desk.outcome(task))
    await desk.finisher.drain()
    assert await desk.states() == ["dead", *["completed"] * 4]
    [record] = await desk.app.engine.get([bad.id])
    assert isinstance(record, Task)
    assert record.error is not None
    assert "negative" in record.error.message
    assert desk.board.leases() == []


async def test_nothing_to_do_is_done(desk: Desk) -> None:
    await desk.finisher.drain()
    assert desk.told == []
