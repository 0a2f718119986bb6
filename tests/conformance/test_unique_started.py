"""unique until="started": the key is held until a handler began, not until a claim that came to nothing."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine, Status, Target
from taskmill.task import State, Unique
from tests.conformance.tools import Worker, all_tasks, lose, new, record, state, step, submit_one, worker

KEY = Unique("u", until="started")


async def held(engine: Engine, first: str) -> bool:
    """Whether the key is still held by the first; asked without leaving anything behind."""
    task = new(unique=Unique("u", until="started"), delay=HOUR)
    [answer] = await engine.submit([task])
    if answer.id == first:
        assert answer.status is Status.DUPLICATE
        return True
    await engine.cancel([Target(answer.id)])
    return False


async def claimed_one(engine: Engine) -> tuple[str, Worker]:
    first = await submit_one(engine, unique=KEY)
    hand = await worker(engine)
    await hand.claim_one()
    return first, hand


async def test_a_claimed_task_still_holds_it(engine: Engine) -> None:
    first, _ = await claimed_one(engine)
    assert await held(engine, first)


async def test_a_released_claim_lets_nothing_go(engine: Engine) -> None:
    first, hand = await claimed_one(engine)
    await hand.done(*hand.held.values(), ending=Ending.RELEASED, started_after=None)
    assert await held(engine, first)
    assert len(await all_tasks(engine)) == 1


@pytest.mark.parametrize("how", ["leaves", "does not name it", "falls silent"])
async def test_a_claim_that_came_to_nothing_lets_nothing_go(engine: Engine, clock: ManualClock, how: str) -> None:
    first, hand = await claimed_one(engine)
    if how == "leaves":
        await engine.leave(hand.id)
    elif how == "does not name it":
        hand.held.clear()
        await hand.beat()
    else:
        await lose(engine, clock)
    assert await state(engine, first) is State.PENDING
    assert await held(engine, first)


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED, Ending.WAITING, Ending.RELEASED, Ending.CRASHED])
async def test_an_attempt_that_began_lets_it_go(engine: Engine, ending: Ending) -> None:
    first, hand = await claimed_one(engine)
    fields = {"signals": ("go",)} if ending is Ending.WAITING else {}
    await hand.done(*hand.held.values(), ending=ending, started_after=5, **fields)
    assert not await held(engine, first)


async def test_a_crash_counts_as_begun(engine: Engine) -> None:
    first, hand = await claimed_one(engine)
    await hand.done(*hand.held.values(), ending=Ending.CRASHED, started_after=None)
    assert not await held(engine, first)


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.DEAD, Ending.CANCELLED])
async def test_every_end_lets_it_go(engine: Engine, ending: Ending) -> None:
    first, hand = await claimed_one(engine)
    await hand.done(*hand.held.values(), ending=ending, started_after=None)
    assert not await held(engine, first)


async def test_a_running_task_lets_it_go_when_it_says_that_it_began(engine: Engine, clock: ManualClock) -> None:
    first, hand = await claimed_one(engine)
    [claimed] = hand.held.values()
    assert await engine.checkpoint([step(claimed, "one", 1)]) == ()
    assert await held(engine, first), "a step alone does not say it"
    assert await engine.checkpoint([step(claimed, started_after=1)]) == ()
    assert not await held(engine, first)
    assert (await record(engine, first)).started_at is not None
    await lose(engine, clock)
    assert not await held(engine, first)


async def test_a_cancelled_one_lets_it_go(engine: Engine) -> None:
    first = await submit_one(engine, unique=KEY)
    assert await held(engine, first)
    await engine.cancel([Target(first)])
    assert not await held(engine, first)


async def test_what_follows_holds_it_next(engine: Engine) -> None:
    """The end of the first does not take the key from the second."""
    first, hand = await claimed_one(engine)
    [claimed] = hand.held.values()
    assert await engine.checkpoint([step(claimed, started_after=1)]) == ()
    second = await submit_one(engine, unique=KEY, delay=60_000_000)
    assert second != first
    await hand.done(claimed)
    [answer] = await engine.submit([new(unique=KEY)])
    assert (answer.status, answer.id) == (Status.DUPLICATE, second)
