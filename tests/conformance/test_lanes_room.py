"""Room at a limit goes to the best task that can use it: not to a lane that was the best once, nor to one that nobody here can serve."""

from __future__ import annotations

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Target
from taskmill.task import Priority
from tests.conformance.tools import (
    Worker,
    encode,
    ids_of,
    submit_many,
    worker,
)


async def limit(engine: Engine, name: str, **numbers: int) -> None:
    await engine.put("limit", name, encode(numbers))


async def drain(one: Worker) -> list[str]:
    """Claim and finish one by one until nothing is left."""
    taken: list[str] = []
    while batch := await one.claim(1):
        await one.done(*batch)
        taken += ids_of(batch)
    return taken


async def shut_lane(engine: Engine, clock: ManualClock) -> tuple[Worker, list[str], str]:
    """A slot has just come back to a cap of one: the lane of the tasks answered first is the best under it, that of the last one was closed before."""
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    await limit(engine, "many", cap=9)
    ids = await submit_many(engine, 3, limits=("one",))
    clock.advance(1)
    [other] = await submit_many(engine, 1, limits=("many", "one"))
    clock.advance(1)
    [first] = await one.claim(10)
    assert first.id == ids[0]
    assert await one.claim(10) == []
    await one.done(first)
    return one, ids[1:], other


async def test_room_belongs_to_the_best_task_that_has_come_since(engine: Engine, clock: ManualClock) -> None:
    one, _, _ = await shut_lane(engine, clock)
    [critical] = await submit_many(engine, 1, limits=("many", "one"), priority=Priority.CRITICAL)
    assert ids_of(await one.claim(10)) == [critical]


async def test_room_of_a_lane_that_was_emptied_goes_to_the_next(engine: Engine, clock: ManualClock) -> None:
    one, ids, other = await shut_lane(engine, clock)
    await engine.cancel([Target(id, 1) for id in ids])
    assert ids_of(await one.claim(10)) == [other]


async def test_room_belongs_to_the_oldest_when_the_older_ones_are_gone(engine: Engine, clock: ManualClock) -> None:
    one, ids, other = await shut_lane(engine, clock)
    await engine.cancel([Target(id, 1) for id in ids])
    await submit_many(engine, 1, limits=("one",))
    assert ids_of(await one.claim(10)) == [other]


async def test_a_put_that_makes_room_goes_to_the_best(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "some", cap=0)
    await limit(engine, "many", cap=9)
    await submit_many(engine, 2, limits=("some",))
    clock.advance(1)
    await submit_many(engine, 2, limits=("many", "some"))
    assert await one.claim(10) == []
    await limit(engine, "some", cap=1)
    [critical] = await submit_many(engine, 1, limits=("many", "some"), priority=Priority.CRITICAL)
    assert ids_of(await one.claim(10)) == [critical]


# Claimers that know different things.


async def test_a_lane_of_a_type_this_worker_does_not_know(engine: Engine) -> None:
    one, two = await worker(engine, "mine"), await worker(engine, "foreign")
    await limit(engine, "one", cap=1)
    foreign = await submit_many(engine, 20, type="foreign", limits=("one",))
    mine = await submit_many(engine, 2, type="mine", limits=("one",))
    [first] = await one.claim(10)
    assert first.id == mine[0]
    assert await two.claim(10) == []
    await one.done(first)
    assert ids_of(await two.claim(10)) == foreign[:1]


async def test_a_lane_that_nobody_can_serve_does_not_keep_its_limit_from_others(engine: Engine) -> None:
    one, two = await worker(engine, "mine"), await worker(engine, "foreign")
    await limit(engine, "one", cap=1)
    await limit(engine, "per-user", cap=9)
    await submit_many(engine, 3, type="foreign", limits=("one",), priority=Priority.HIGH)
    mine = await submit_many(engine, 3, type="mine", limits=("one", "per-user:1"))
    [first] = await one.claim()
    assert first.id == mine[0]
    assert await two.claim() == []
    assert await one.claim() == []
    await engine.leave(two.id)
    await one.done(first)
    assert await drain(one) == mine[1:]


async def test_a_paused_type_does_not_keep_its_limit_from_others(engine: Engine) -> None:
    one = await worker(engine, "paused", "mine")
    await limit(engine, "one", cap=1)
    await limit(engine, "per-user", cap=9)
    paused = await submit_many(engine, 3, type="paused", limits=("one",), priority=Priority.HIGH)
    mine = await submit_many(engine, 3, type="mine", limits=("one", "per-user:1"))
    [first] = await one.claim()
    assert first.id == paused[0]
    await engine.put("pause", "type:paused", b"{}")
    await one.done(first)
    assert await drain(one) == mine
    await engine.drop("pause", "type:paused")
    assert await drain(one) == paused[1:]
