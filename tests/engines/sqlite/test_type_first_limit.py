"""A type gets its first limit when its worker joins: new tasks stand in its lanes from then on, older ones are moved there in slices."""

from __future__ import annotations

from typing import Any

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Claimed, Ending, Target
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import OnLimit, State, TypeSettings
from tests.conformance.tools import TYPE, Worker, ids_of, new, record, states, submit, submit_one, worker
from tests.engines.sqlite.conftest import Opened


@pytest.fixture
async def engine(opened: Opened) -> SQLiteEngine:
    engine = await opened()
    await engine.put("limit", "one", b'{"cap": 1}')
    await engine.put("limit", "per-user", b'{"cap": 1}')
    return engine


async def limited(one: Worker, *limits: str, **settings: Any) -> None:
    """The type's next version, with limits."""
    await one.join(settings={TYPE: TypeSettings(limits=limits, **settings)}, version=one.request + 1)


async def moved(engine: SQLiteEngine, n: int = 500) -> int:
    """All that older steps have left is done; how many calls that took."""
    calls = 0
    while (await engine.recover_lost(n)).more:
        calls += 1
        assert calls < 1_000
    return calls


async def in_turn(one: Worker) -> list[list[Claimed]]:
    """What can be claimed at once, each time."""
    rounds = []
    while claimed := await one.claim(1_000):
        rounds.append(claimed)
        await one.done(*claimed)
    return rounds


async def test_older_tasks_obey_the_limit_too(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new(n) for n in range(5)))
    await limited(one, "one")
    await moved(engine)
    rounds = await in_turn(one)
    assert [ids_of(claimed) for claimed in rounds] == [[id] for id in ids]
    assert {task.limits for claimed in rounds for task in claimed} == {("one",)}


async def test_older_and_newer_tasks_stand_in_one_lane(engine: SQLiteEngine, clock: ManualClock) -> None:
    one = await worker(engine)
    older = await submit(engine, new(), new())
    await limited(one, "one")
    clock.advance(1)
    newer = await submit(engine, new(), new())
    await moved(engine)
    assert [ids_of(claimed) for claimed in await in_turn(one)] == [[id] for id in older + newer]


async def test_they_move_in_slices(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new(n) for n in range(35)))
    await limited(one, "one")
    assert await moved(engine, 10) >= 3
    rounds = await in_turn(one)
    assert {len(claimed) for claimed in rounds} == {1}
    assert [claimed[0].id for claimed in rounds] == ids


async def test_each_goes_to_the_lane_of_its_own_key(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new({"user": f"u{n % 3}"}) for n in range(6)))
    await limited(one, "per-user:{user}")
    await moved(engine)
    assert [sorted(ids_of(claimed)) for claimed in await in_turn(one)] == [sorted(ids[:3]), sorted(ids[3:])]


async def test_those_without_the_key_stay_as_they_were_accepted(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    plain = await submit(engine, *(new({"n": n}) for n in range(3)))
    keyed = await submit(engine, *(new({"user": "ann", "n": n}) for n in range(3)))
    await limited(one, "per-user:{user}")
    await moved(engine)
    first, second, third = await in_turn(one)
    assert sorted(ids_of(first)) == sorted([*plain, keyed[0]])
    assert [ids_of(second), ids_of(third)] == [[keyed[1]], [keyed[2]]]


async def test_those_without_the_key_keep_nobody_behind_them(engine: SQLiteEngine) -> None:
    """More of them than one slice holds stand before the others."""
    one = await worker(engine)
    await submit(engine, *(new({"n": n}) for n in range(25)))
    keyed = await submit(engine, *(new({"user": "ann", "n": n}) for n in range(3)))
    await limited(one, "per-user:{user}")
    await moved(engine, 10)
    await moved(engine, 10)
    claimed = ids_of(await one.claim(100))
    assert [id for id in claimed if id in keyed] == [keyed[0]]


async def test_delayed_and_retrying_ones_move_too_and_keep_their_time(engine: SQLiteEngine, clock: ManualClock) -> None:
    one = await worker(engine)
    later = await submit_one(engine, delay=30_000_000)
    tried = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.RETRY, after=20_000_000)
    ready = await submit_one(engine)
    await limited(one, "one")
    await moved(engine)
    assert await states(engine, [later, tried, ready]) == [State.SCHEDULED, State.RETRYING, State.PENDING]
    assert [ids_of(claimed) for claimed in await in_turn(one)] == [[ready]]
    clock.advance(40)
    assert [ids_of(claimed) for claimed in await in_turn(one)] == [[tried], [later]]


async def test_one_that_runs_is_left_alone(engine: SQLiteEngine) -> None:
    """It was not counted when it started, so its end gives nothing back."""
    one = await worker(engine)
    running, *others = await submit(engine, new(), new(), new())
    [claimed] = await one.claim()
    await limited(one, "one")
    await moved(engine)
    assert ids_of(await one.claim(10)) == others[:1]
    await one.done(claimed)
    assert await one.claim(10) == []
    assert await states(engine, [running, *others]) == [State.COMPLETED, State.RUNNING, State.PENDING]


async def test_tasks_of_other_types_stay_where_they_are(engine: SQLiteEngine) -> None:
    one = await Worker(engine).join(TYPE, "other")
    mine = await submit(engine, new(), new())
    others = await submit(engine, new(type="other"), new(type="other"))
    await one.join(settings={TYPE: TypeSettings(limits=("one",)), "other": TypeSettings()}, version=1)
    await moved(engine)
    first, second = await in_turn(one)
    assert sorted(ids_of(first)) == sorted([*others, mine[0]])
    assert ids_of(second) == [mine[1]]


async def test_a_fair_key_sends_them_to_their_shares(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new(tenant=tenant) for tenant in ("a", "b") for _ in range(24)))
    await one.join(settings={TYPE: TypeSettings(fair="tenant")}, version=1)
    await moved(engine)
    taken = ids_of(await one.claim(16))
    assert len(set(taken) & set(ids[:24])) == 8


async def test_nothing_is_lost_whatever_happens_meanwhile(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new({"user": f"u{n % 4}"}) for n in range(40)))
    await limited(one, "per-user:{user}")
    taken: list[str] = []
    while len(taken) < len(ids):
        await engine.recover_lost(7)
        claimed = await one.claim(3)
        assert claimed, "something is left, and nobody gets it"
        taken += ids_of(claimed)
        await one.done(*claimed)
    assert sorted(taken) == sorted(ids)


async def test_a_moved_task_that_is_requeued(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    first, second = await submit(engine, new(), new())
    await limited(one, "one")
    await moved(engine)
    assert (await record(engine, first)).limits == ("one",)
    await one.done(*await one.claim(10), ending=Ending.DEAD)
    await engine.requeue([Target(first)])
    assert ids_of(await one.claim(10)) in ([first], [second]), "the cap of one was passed"


@pytest.mark.parametrize("own", [{"limits": ()}, {"on_limit": OnLimit.REJECT}], ids=["none", "reject"])
async def test_a_task_that_asked_for_no_limits(engine: SQLiteEngine, own: dict[str, Any]) -> None:
    """What the caller gives stands over the type, also when the type changes."""
    one = await worker(engine)
    limited_one = await submit_one(engine)
    free = await submit(engine, *(new(**own) for _ in range(3)))
    await limited(one, "one")
    await moved(engine)
    assert sorted(ids_of(await one.claim(10))) == sorted([limited_one, *free])


async def test_an_operators_first_limit_moves_them_too(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    ids = await submit(engine, new(), new())
    await engine.put("type", TYPE, b'{"limits": ["one"]}')
    await moved(engine)
    assert [ids_of(claimed) for claimed in await in_turn(one)] == [[id] for id in ids]
