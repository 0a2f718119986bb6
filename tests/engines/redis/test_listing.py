"""Lists by state go by the index of that state: what was asked for is found, however much newer work stands before it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Filter
from taskmill.engines import create
from taskmill.engines.redis import listing
from taskmill.operations import Operations
from taskmill.task import LIVE, State
from tests.conformance.tools import all_tasks, new, outcome, submit, worker
from tests.conformance.tools_b import make

MANY = 12_000
"""More than one page looks at."""
STATES = tuple(frozenset(State) - {State.PENDING})


@pytest.fixture
async def engine(redis_url: str) -> AsyncIterator[Engine]:
    found = create(redis_url, clock=ManualClock())
    await found.open()
    yield found
    await found.close()


async def bury(engine: Engine, number: int = MANY) -> None:
    """Newer tasks, that nobody claims."""
    for first in range(0, number, 2_000):
        await engine.submit([new(n, type="buried", queue="elsewhere") for n in range(first, min(first + 2_000, number))])


async def ids(engine: Engine, *states: State) -> list[str]:
    page = await engine.list(Filter(states=frozenset(states)), n=100)
    return [task.id for task in page.tasks]


async def test_every_state_is_found_behind_newer_tasks(engine: Engine) -> None:
    made = {state: (await make(engine, state)).id for state in STATES}  # those that are ready are in the next test
    await bury(engine)
    for state in STATES:
        assert await ids(engine, state) == [made[state]]


async def test_the_few_that_are_ready_are_found_behind_completed_ones(engine: Engine) -> None:
    [first] = await submit(engine, new("first", queue="quiet"))
    hand = await worker(engine)
    await engine.submit([new(n) for n in range(MANY // 2)])
    while claimed := await hand.claim(200):
        await hand.done(*claimed)
    assert await ids(engine, State.PENDING) == [first]
    assert len(await ids(engine, State.COMPLETED)) == 100
    assert len(await all_tasks(engine, Filter(states=frozenset({State.COMPLETED})))) == MANY // 2


async def test_completed_ones_are_found_behind_many_that_wait(engine: Engine) -> None:
    hand = await worker(engine)
    await engine.submit([new(n) for n in range(6_000)])
    while claimed := await hand.claim(200):
        await hand.done(*claimed)
    await bury(engine)
    page = await engine.list(Filter(states=frozenset({State.COMPLETED})), n=1_000)
    assert len(page.tasks) == 1_000
    assert page.cursor is not None
    pending = await engine.list(Filter(states=frozenset({State.PENDING})), n=1_000)
    assert len(pending.tasks) == 1_000


async def test_pages_of_several_states_come_in_the_order_of_creation(engine: Engine) -> None:
    hand = await worker(engine)
    made = [(await submit(engine, new(n)))[0] for n in range(60)]
    claimed = await hand.claim(40)
    await engine.finish([outcome(task, Ending.DEAD if n % 2 else Ending.COMPLETED) for n, task in enumerate(claimed[:30])])
    for states in (frozenset({State.DEAD, State.COMPLETED}), LIVE, frozenset({State.RUNNING, State.DEAD, State.PENDING})):
        seen: list[str] = []
        cursor = None
        while True:
            page = await engine.list(Filter(states=states), after=cursor, n=7)
            seen += [task.id for task in page.tasks]
            cursor = page.cursor
            if cursor is None:
                break
        everything = [task.id for task in await all_tasks(engine) if task.state in states]
        assert seen == everything
    assert len(made) == 60


async def test_a_short_page_never_looks_like_the_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a filter has no index, a page may have to stop before it is full; the operations go on, so that people see a full one."""
    monkeypatch.setattr(listing, "LOOKED_AT", 200)
    [first] = await submit(engine, new("first", type="rare"))
    await bury(engine, 2_000)
    which = Filter(types=frozenset({"rare"}))
    page = await engine.list(which, n=10)
    assert page.tasks == ()
    assert page.cursor is not None
    found = await Operations(engine).list(which, n=10)
    assert ([task.id for task in found.tasks], found.cursor) == ([first], None)


async def test_check_tells_of_a_death_behind_newer_tasks(engine: Engine) -> None:
    await make(engine, State.DEAD)
    await bury(engine)
    findings = {finding.code: finding for finding in await Operations(engine).check()}
    assert "1 task died in the last hour" in findings["dead_letters"].message
