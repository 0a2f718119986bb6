"""What becomes of the tasks of a child that died: who is blamed, and who is not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskmill import App
from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Claimed, Ending, Engine, Room, Target
from taskmill.retry import Retry
from taskmill.worker import funeral
from taskmill.worker.board import Lease


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = App("sqlite://:memory:", clock=ManualClock())

    @app.task(timeout="3s", retry=Retry(max_retries=1))
    def work(n: int) -> None:
        pass

    async with app:
        await app.engine.join(app.joining("anna"))
        for n in range(4):
            await work.submit(n)
        yield app


async def claimed(engine: Engine) -> tuple[Claimed, ...]:
    return (await engine.claim("anna", 1, ["default"], Room(10))).tasks


def lease(task: Claimed, *, started: int = 1, alone: bool = False) -> Lease:
    return Lease(task.token, started, started and 100, False, task.id, alone)


async def test_killed_for_one_the_others_are_released(app: App) -> None:
    late, beside, unbegun, _ = await claimed(app.engine)
    leases = [lease(late), lease(beside), lease(unbegun, started=0)]
    found = await funeral.outcomes(app.engine, "anna", leases, frozenset({late.token}), killed=True, death="killed")
    assert [outcome.ending for outcome in found] == [Ending.RETRY, Ending.RELEASED, Ending.RELEASED]
    assert [outcome.started_after for outcome in found] == [0, 0, None]
    assert found[0].error is not None
    assert found[0].error.code == "timeout"
    assert "longer than its 3s" in found[0].error.message
    assert [outcome.suspect for outcome in found] == [True, False, False]
    assert (await app.engine.finish(found)).refused == ()


async def test_a_culprit_without_retries_is_dead(app: App) -> None:
    late, *_ = await claimed(app.engine)
    for attempt in (1, 2):
        [outcome] = await funeral.outcomes(app.engine, "anna", [lease(late)], frozenset({late.token}), killed=True, death="killed")
        assert outcome.ending == (Ending.RETRY if attempt == 1 else Ending.DEAD)
        await app.engine.finish([outcome])
        clock = app.clock
        assert isinstance(clock, ManualClock)
        clock.advance(60)
        if attempt == 1:
            [late] = (await app.engine.claim("anna", 2, ["default"], Room(1))).tasks


async def test_a_culprit_that_was_cancelled_is_cancelled(app: App) -> None:
    late, *_ = await claimed(app.engine)
    await app.engine.cancel([Target(late.id)])
    [outcome] = await funeral.outcomes(app.engine, "anna", [lease(late)], frozenset({late.token}), killed=True, death="killed")
    assert outcome.ending == Ending.CANCELLED


async def test_dead_by_itself_those_that_ran_are_blamed(app: App) -> None:
    one, other, unbegun, alone = await claimed(app.engine)
    leases = [lease(one), lease(other), lease(unbegun, started=0), lease(alone, alone=True)]
    found = await funeral.outcomes(app.engine, "anna", leases, frozenset(), killed=False, death="killed by SIGSEGV")
    assert [outcome.ending for outcome in found] == [Ending.CRASHED, Ending.CRASHED, Ending.RELEASED, Ending.RELEASED]
    assert found[0].error is not None
    assert "SIGSEGV" in found[0].error.message


async def test_one_in_a_process_of_its_own_is_blamed_when_there_is_nobody_else(app: App) -> None:
    alone, unbegun, *_ = await claimed(app.engine)
    leases = [lease(alone, alone=True), lease(unbegun, started=0)]
    found = await funeral.outcomes(app.engine, "anna", leases, frozenset(), killed=False, death="killed")
    assert [outcome.ending for outcome in found] == [Ending.CRASHED, Ending.RELEASED]


async def test_a_culprit_whose_record_is_gone_is_released(app: App) -> None:
    gone = Lease(99, 1, 2, False, "00000000-0000-7000-8000-000000000000", False)
    [outcome] = await funeral.outcomes(app.engine, "anna", [gone], frozenset({99}), killed=True, death="killed")
    assert outcome.ending == Ending.RELEASED


async def test_an_empty_board_needs_no_funeral(app: App) -> None:
    assert await funeral.outcomes(app.engine, "anna", [], frozenset(), killed=False, death="killed") == []
    assert app.engine.clock.now() > SECOND
