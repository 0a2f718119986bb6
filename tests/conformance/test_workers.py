"""workers: who is registered, when each was last heard of, what it holds and is told."""

from __future__ import annotations

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Engine, WorkerInfo
from taskmill.task import TypeSettings
from tests.conformance.tools import LEASE, Store, Worker, lose, pass_time, submit_many, worker


async def only(engine: Engine) -> WorkerInfo:
    [found] = await engine.workers()
    return found


async def test_an_empty_store(engine: Engine) -> None:
    assert await engine.workers() == ()


async def test_what_a_worker_said_when_it_joined(engine: Engine, clock: ManualClock) -> None:
    hand = Worker(engine, queues=("mail", "default"))
    await hand.join(settings={"send": TypeSettings(queue="mail"), "work": TypeSettings()}, lease=30 * SECOND, info={"host": "here", "pid": "17"})
    found = await only(engine)
    assert (found.id, found.lease, found.joined_at) == (hand.id, 30 * SECOND, clock.now())
    assert found.queues == ("mail", "default")
    assert set(found.types) == {"send", "work"}
    assert found.info == {"host": "here", "pid": "17"}


async def test_one_that_has_just_joined_is_alive_and_idle(engine: Engine) -> None:
    await worker(engine)
    found = await only(engine)
    assert (found.silent, found.alive, found.running, found.command) == (0, True, 0, None)


async def test_oldest_first(engine: Engine, clock: ManualClock) -> None:
    ids = []
    for name in ("zebra", "ant", "mule"):
        ids.append((await Worker(engine, id=name).join()).id)
        clock.advance(1)
    assert [found.id for found in await engine.workers()] == ids


async def test_silence_grows_until_the_next_beat(engine: Engine, clock: ManualClock) -> None:
    hand = await worker(engine)
    clock.advance(3)
    assert (await only(engine)).silent == 3 * SECOND
    await hand.beat()
    assert (await only(engine)).silent == 0


@pytest.mark.parametrize("lease", [LEASE, 30 * SECOND], ids=["usual", "long"])
async def test_alive_to_the_end_of_its_lease(engine: Engine, clock: ManualClock, lease: int) -> None:
    await worker(engine, lease=lease)
    clock.advance(lease // SECOND)
    assert (await only(engine)).alive
    clock.advance("1us")
    found = await only(engine)
    assert (found.alive, found.silent) == (False, lease + 1)


async def test_a_clock_that_is_set_makes_nobody_silent(engine: Engine, clock: ManualClock) -> None:
    await worker(engine)
    for by in (3_600 * SECOND, -7_200 * SECOND):
        clock.step(by)
        found = await only(engine)
        assert (found.alive, found.silent) == (True, 0)


async def test_it_follows_the_leases(engine: Engine) -> None:
    await submit_many(engine, 5)
    hand, other = await worker(engine), await worker(engine)
    taken = await hand.claim(3)
    await other.claim(1)
    assert {found.id: found.running for found in await engine.workers()} == {hand.id: 3, other.id: 1}
    await hand.done(taken[0])
    assert {found.id: found.running for found in await engine.workers()} == {hand.id: 2, other.id: 1}


async def test_one_that_left_is_not_there(engine: Engine) -> None:
    hand, other = await worker(engine), await worker(engine)
    await engine.leave(hand.id)
    assert (await only(engine)).id == other.id


async def test_one_that_died_is_shown_until_it_is_found(engine: Engine, clock: ManualClock) -> None:
    await submit_many(engine, 1)
    hand, other = await worker(engine), await worker(engine)
    await hand.claim(1)
    clock.advance(5)
    await other.beat()
    assert {found.id: (found.alive, found.running) for found in await engine.workers()} == {hand.id: (False, 1), other.id: (True, 0)}
    await lose(engine, clock, other)
    found = await only(engine)
    assert (found.id, found.alive) == (other.id, True)


async def test_what_an_operator_tells_it(engine: Engine) -> None:
    hand = await worker(engine)
    await engine.put("worker", hand.id, b'{"command": "quiet"}')
    assert (await only(engine)).command == "quiet"
    await engine.drop("worker", hand.id)
    assert (await only(engine)).command is None


async def test_joining_again_is_one_worker(engine: Engine, clock: ManualClock) -> None:
    hand = await worker(engine)
    clock.advance(2)
    await hand.join("work", "other")
    found = await only(engine)
    assert (set(found.types), found.silent) == ({"work", "other"}, 0)


async def test_every_engine_on_the_store_sees_the_same(store: Store, clock: ManualClock) -> None:
    one, other = await store.engines(2)
    hand = await worker(one)
    clock.advance(2)
    assert await other.workers() == await one.workers()
    await pass_time(one, clock, 3, hand)
    assert [found.silent for found in await other.workers()] == [0]
