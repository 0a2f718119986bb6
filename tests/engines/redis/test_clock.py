"""The server's clock is set an hour forward or back, by hand or by a failover to a machine with another one: leases, times, windows and terms as promised.

A Redis server has one clock for everything, so this one has no second hand that nobody can set: `monotonic` is 0, and scripts judge beats by the time that
they are told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from typing_extensions import override

from taskmill.clock import HOUR, MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine
from taskmill.engines import create
from taskmill.task import State
from tests.conformance.tools import Worker, encode, ids_of, new, record, submit, submit_many, submit_one, worker
from tests.engines.redis.test_faults import until_it_answers
from tests.faults.invariants_redis import broken
from tests.servers.redis import RedisServer

STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])


class ServerClock(ManualClock):
    @override
    def monotonic(self) -> int:
        return 0


@pytest.fixture
def clock() -> ServerClock:
    return ServerClock()


@pytest.fixture
async def engine(redis_url: str, clock: ServerClock) -> AsyncIterator[Engine]:
    engine = create(redis_url, clock=clock)
    await engine.open()
    yield engine
    assert broken(redis_url) == []
    await engine.close()


async def seconds(engine: Engine, clock: ServerClock, n: int, *alive: Worker) -> None:
    """Time as it goes by while the store is well."""
    for _ in range(n):
        clock.advance(1)
        for one in alive:
            await one.beat()
        await engine.recover_lost()


@STEPS
async def test_who_lives_keeps_its_leases_and_who_is_dead_loses_them(engine: Engine, clock: ServerClock, step: int) -> None:
    alive, dead = await worker(engine), await worker(engine)
    ids = await submit_many(engine, 4)
    [*kept] = await alive.claim(2)
    [*lost] = await dead.claim(2)
    await seconds(engine, clock, 2, alive, dead)
    clock.step(step)
    await engine.recover_lost()
    await seconds(engine, clock, 12, alive)
    assert (await alive.beat()).lost == ()
    assert {(await record(engine, task.id)).crashes for task in kept} == {0}
    assert [refusal.code for refusal in (await dead.finish(*lost)).refused] == ["stale_lease"] * 2
    again = await alive.claim(4)
    assert sorted(ids_of(again)) == sorted(ids_of(lost))
    assert min(task.token for task in again) > max(task.token for task in [*kept, *lost])
    await alive.done(*kept, *again)
    assert {(await record(engine, id)).state for id in ids} == {State.COMPLETED}


@STEPS
async def test_times(engine: Engine, clock: ServerClock, step: int) -> None:
    """By the clock that was set, whatever it is; what was due before stays due."""
    one = await worker(engine, lease=24 * HOUR)
    ready = await submit_many(engine, 3, priority=2)
    in_lanes = await submit_many(engine, 3, fair_key="x")
    half = await submit_one(engine, delay=30 * MINUTE)
    later = await submit_one(engine, delay=2 * HOUR)
    await engine.recover_lost()
    clock.step(step)
    while (await engine.recover_lost()).more:
        pass
    due = await one.claim(10)
    assert sorted(ids_of(due)) == sorted([*ready, *in_lanes, *([half] if step > 0 else [])])
    clock.step((await record(engine, later)).run_at - clock.now() - 1)
    assert later not in ids_of(await one.claim(10))
    clock.step(1)
    assert ids_of(await one.claim(10)) == [later]


@STEPS
async def test_windows(engine: Engine, clock: ServerClock, step: int) -> None:
    """Never exceeded, and never shut for longer than a window."""
    await engine.put("limit", "pace", encode({"rate": 2, "window": 10 * SECOND}))
    one = await worker(engine, lease=24 * HOUR)
    await submit(engine, *(new(n, limits=("pace",)) for n in range(6)))
    await one.done(*await one.claim(6))
    clock.step(step)
    await engine.recover_lost()
    taken = await one.claim(6)
    assert len(taken) == (2 if step > 0 else 0)
    clock.advance(5)
    assert await one.claim(6) == []
    clock.advance("5.1s")
    assert len(await one.claim(6)) == 2
    assert not (await engine.take("pace", 1, "now")).granted
    clock.advance("10.1s")
    assert (await engine.take("pace", 2, "then")).granted


@STEPS
async def test_terms(engine: Engine, clock: ServerClock, step: int) -> None:
    """A term of a clock that was set back does not last for an hour; the next one is higher, and the one before it is refused."""
    first = await engine.lead("upkeep", "first")
    assert first is not None
    assert await engine.lead("upkeep", "second") is None
    clock.step(step)
    second = await engine.lead("upkeep", "second")
    assert second is not None
    assert second.number > first.number
    assert await engine.lead("upkeep", "first") is None


@STEPS
async def test_signals_and_deadlines(engine: Engine, clock: ServerClock, step: int) -> None:
    """A wait ends at its deadline by the clock that was set, or by its signal at once."""
    one = await worker(engine, lease=24 * HOUR)
    ids = await submit_many(engine, 2)
    await one.done(*await one.claim(2), ending=Ending.WAITING, signals=("go",), deadline=30 * MINUTE)
    clock.step(step)
    await engine.recover_lost()
    assert sorted(ids_of(await one.claim(2))) == (sorted(ids) if step > 0 else [])
    if step < 0:
        await engine.signal(ids[0], "go", b"1", "1")
        assert ids_of(await one.claim(2)) == [ids[0]]


@STEPS
async def test_a_failover_to_another_clock(private_redis: RedisServer, clock: ServerClock, step: int) -> None:
    """The last writes are gone as well: what was claimed in them is given again under tokens that are nobody's, and those who come late are refused."""
    engine = create(private_redis.url(), clock=clock)
    await engine.open()
    one = await worker(engine)
    ids = await submit_many(engine, 6)
    held = await one.claim(2)
    with private_redis.client() as client:
        client.save()
    clock.advance(1)
    tail = await one.claim(2)
    private_redis.stop("kill")
    private_redis.start()
    clock.step(step)
    await until_it_answers(one)
    await engine.recover_lost()
    again = await one.claim(4)
    assert sorted(ids_of(again)) == sorted(set(ids) - set(ids_of(held)))
    assert {task.token for task in again}.isdisjoint(task.token for task in [*held, *tail])
    assert [refusal.code for refusal in (await one.finish(*tail)).refused] == ["stale_lease"] * 2
    await one.done(*held, *again)
    assert {(await record(engine, id)).state for id in ids} == {State.COMPLETED}
    assert broken(private_redis.url()) == []
    await engine.close()
