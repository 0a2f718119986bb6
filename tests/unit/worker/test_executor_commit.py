"""What a handler is asked while it writes its own end: not now, and not for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taskmill import Context
from taskmill.clock import MILLISECOND
from taskmill.engine import Ending, Outcome
from taskmill.worker.attempt import ended
from tests.surfaces.workers import until
from tests.unit.worker.test_executor import GENEROUS, Hall


class Commits:
    """A handler that stands in its commit until it is let go, and then in something else."""

    def __init__(self, hall: Hall) -> None:
        self.begun, self.go, self.told = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.settled: list[Outcome] = []
        self.ends = False

        @hall.app.task
        async def commits(ctx: Context) -> None:
            ctx.run.committing = True
            self.begun.set()
            await self.go.wait()
            if self.ends:
                ctx.run.ending = ended(hall.executor.held[ctx.token], Ending.COMPLETED)
            ctx.run.committing = False
            await asyncio.wait_for(self.told.wait(), GENEROUS)

        hall.executor._settle = self.settled.append


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    hall = Hall()
    yield hall
    hall.open_gates()
    await hall.at_rest()
    hall.executor._timer.cancel()
    hall.board.close()


@pytest.fixture
def commits(hall: Hall) -> Commits:
    return Commits(hall)


async def test_a_cancel_waits_for_the_commit(hall: Hall, commits: Commits) -> None:
    """One that failed leaves the task as it was, and then the handler is told."""
    hall.offer("commits")
    await commits.begun.wait()
    hall.executor.cancel([hall.last[0].id])
    commits.go.set()
    [outcome] = await hall.ended()
    assert (outcome.ending, commits.settled) == (Ending.CANCELLED, [])


async def test_a_timeout_waits_for_the_commit(hall: Hall, commits: Commits) -> None:
    hall.offer("commits", timeout=MILLISECOND)
    await commits.begun.wait()
    [running] = hall.executor.held.values()
    await until(lambda: running.asked is not None, "its timeout")
    assert running.reason is None
    commits.go.set()
    [outcome] = await hall.ended()
    assert outcome.error is not None
    assert outcome.error.code == "timeout"


async def test_who_has_ended_its_task_has_nothing_to_lose(hall: Hall, commits: Commits) -> None:
    """Neither the lease nor the task is there to be lost or cancelled; its outcome is in the store already."""
    commits.ends = True
    [token] = hall.offer("commits")
    await commits.begun.wait()
    hall.executor.lose([token])
    hall.executor.cancel([hall.last[0].id])
    commits.go.set()
    await asyncio.sleep(0.6)  # the executor looks four times a second
    [running] = hall.executor.held.values()
    assert (running.reason, running.lease_lost) == (None, False)
    commits.told.set()
    await hall.at_rest()
    assert [outcome.ending for outcome in commits.settled] == [Ending.COMPLETED]
    assert hall.outcomes.empty()


async def test_a_stop_reaches_who_has_ended_its_task(hall: Hall, commits: Commits) -> None:
    """What it does after its end is still the worker's time."""
    commits.ends = True
    hall.offer("commits")
    await commits.begun.wait()
    commits.go.set()
    hall.executor.stop()
    await hall.at_rest()
    assert [outcome.ending for outcome in commits.settled] == [Ending.COMPLETED]
