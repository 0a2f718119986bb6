"""counts: how many tasks there are, by queue, type, priority and state; at most 5 s old."""

from __future__ import annotations

from collections.abc import Mapping

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Retention
from taskmill.task import State
from tests.conformance.tools import submit_many, submit_one, worker
from tests.conformance.tools_b import led, make

Key = tuple[str, str, int, State]


async def counted(engine: Engine, clock: ManualClock) -> Mapping[Key, int]:
    clock.advance("6s")
    found = await engine.counts()
    numbers = {(count.queue, count.type, count.priority, count.state): count.tasks for count in found if count.tasks}
    assert len(numbers) == len([count for count in found if count.tasks]), "one row for each"
    return numbers


async def test_an_empty_store(engine: Engine, clock: ManualClock) -> None:
    assert await counted(engine, clock) == {}


async def test_by_queue_type_and_priority(engine: Engine, clock: ManualClock) -> None:
    await submit_many(engine, 3)
    await submit_many(engine, 2, priority=3)
    await submit_many(engine, 4, queue="line")
    await submit_many(engine, 5, queue="line", type="other")
    assert await counted(engine, clock) == {
        ("default", "work", 1, State.PENDING): 3,
        ("default", "work", 3, State.PENDING): 2,
        ("line", "work", 1, State.PENDING): 4,
        ("line", "other", 1, State.PENDING): 5,
    }


async def test_every_state(engine: Engine, clock: ManualClock) -> None:
    for now in State:
        for _ in range(2):
            await make(engine, now, queue=f"of-{now}")
    assert await counted(engine, clock) == {(f"of-{now}", "work", 1, now): 2 for now in State}


async def test_it_follows_the_tasks(engine: Engine, clock: ManualClock) -> None:
    ids = await submit_many(engine, 4)
    hand = await worker(engine)
    claimed = await hand.claim(3)
    key = ("default", "work", 1)
    assert await counted(engine, clock) == {(*key, State.PENDING): 1, (*key, State.RUNNING): 3}
    await hand.done(claimed[0])
    await hand.done(claimed[1], ending=Ending.DEAD)
    assert await counted(engine, clock) == {(*key, State.PENDING): 1, (*key, State.RUNNING): 1, (*key, State.COMPLETED): 1, (*key, State.DEAD): 1}
    await engine.prune(10, await led(engine), Retention(completed=0))
    assert sum((await counted(engine, clock)).values()) == len(ids) - 1


async def test_what_is_due_counts_as_pending(engine: Engine, clock: ManualClock) -> None:
    await make(engine, State.SCHEDULED, queue="line")
    await make(engine, State.RETRYING, queue="line")
    clock.advance("2h")
    assert await counted(engine, clock) == {("line", "work", 1, State.PENDING): 2}


async def test_the_oldest_says_when_it_became_ready(engine: Engine, clock: ManualClock) -> None:
    first = clock.now()
    await submit_one(engine)
    clock.advance("10s")
    await submit_one(engine)
    clock.advance("6s")
    [count] = await engine.counts()
    assert (count.tasks, count.oldest) == (2, first)


async def test_types_that_no_living_worker_knows(engine: Engine, clock: ManualClock) -> None:
    await submit_one(engine)
    await submit_one(engine, type="foreign")
    hand = await worker(engine)
    clock.advance("6s")
    await hand.beat()
    assert {count.type: count.no_worker for count in await engine.counts()} == {"work": False, "foreign": True}
    await worker(engine, "foreign")
    clock.advance("6s")
    assert not any(count.no_worker for count in await engine.counts())
    await engine.leave(hand.id)
    clock.advance("6s")
    assert {count.type: count.no_worker for count in await engine.counts()} == {"work": True, "foreign": False}
