"""Lanes, shares and counters that nothing needs vanish when their window has passed, and come back as they were; tasks in them never vanish."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Moved, Target, Term
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import State
from tests.conformance.tools import Worker, ids_of, new, state, states, submit, submit_one, worker
from tests.engines.sqlite.conftest import Opened

TABLES = ("lane", "share", "counter", "start", "stand")


@pytest.fixture
async def engine(opened: Opened) -> SQLiteEngine:
    engine = await opened()
    await engine.put("limit", "cap", b'{"cap": 1}')
    await engine.put("limit", "rate", b'{"rate": 1, "window": 60000000}')
    return engine


async def prune(engine: SQLiteEngine, n: int = 1_000) -> Moved:
    """One round, under a term of its own."""
    term = await engine.lead("retention", "me")
    assert isinstance(term, Term)
    return await engine.prune(n, term)


def rows(engine: SQLiteEngine) -> dict[str, int]:
    """What the store keeps of lanes; read past the engine, as no verb shows it."""
    connection = apsw.Connection(str(engine.path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return {table: len(connection.execute(f"SELECT 1 FROM taskmill_{table}").fetchall()) for table in TABLES}
    finally:
        connection.close()


NOTHING = dict.fromkeys(TABLES, 0)

LANES: dict[str, dict[str, Any]] = {
    "cap": {"limits": ("cap",)},
    "key": {"limits": ("cap:ann",)},
    "order": {"order_key": "k"},
    "share": {"fair_key": "acme"},
    "all": {"limits": ("cap:ann", "cap:bob"), "order_key": "k", "fair_key": "acme"},
}


@pytest.mark.parametrize("kind", LANES)
async def test_what_nothing_needs_vanishes(engine: SQLiteEngine, kind: str) -> None:
    one = await worker(engine)
    id = await submit_one(engine, **LANES[kind])
    assert rows(engine)["lane"] == 1
    await one.done(await one.claim_one())
    await prune(engine)
    await prune(engine)  # a share is seen to be empty when its lanes are gone
    assert rows(engine) == NOTHING
    assert await state(engine, id) is State.COMPLETED


ENDINGS = {"retrying": Ending.RETRY, "waiting": Ending.WAITING, "snoozed": Ending.SNOOZED}


@pytest.mark.parametrize("kind", LANES)
@pytest.mark.parametrize("where", ["pending", "scheduled", "running", "retrying", "waiting", "snoozed"])
async def test_a_lane_with_a_task_stays(engine: SQLiteEngine, clock: ManualClock, kind: str, where: str) -> None:
    one = await worker(engine)
    id = await submit_one(engine, **LANES[kind], **({"delay": 10_000_000} if where == "scheduled" else {}))
    claimed = await one.claim() if where not in {"pending", "scheduled"} else []
    if where in ENDINGS:
        fields: dict[str, Any] = {"deadline": 5_000_000, "signals": ("go",)} if where == "waiting" else {"after": 5_000_000}
        await one.done(*claimed, ending=ENDINGS[where], **fields)
    for _ in range(3):
        await prune(engine)
    assert rows(engine)["lane"] == 1
    if where == "running":
        await one.done(*claimed)
    else:
        clock.advance(20)
        await one.done(*await one.claim(10))
    assert await state(engine, id) is State.COMPLETED
    for _ in range(3):
        await prune(engine)
    assert rows(engine) == NOTHING


async def test_a_rate_is_remembered_until_its_window_has_passed(engine: SQLiteEngine, clock: ManualClock) -> None:
    """Its lane may go at once; were the counter to go with it, the rate would be new."""
    one = await worker(engine)
    first, second = await submit(engine, new(limits=("rate:ann",)), new(limits=("rate:bob",)))
    assert sorted(ids_of(await one.claim(10))) == sorted([first, second])
    await one.done(*one.held.values())
    clock.advance(59)
    await prune(engine)
    assert rows(engine)["counter"] == 2
    third = await submit_one(engine, limits=("rate:ann",))
    assert await one.claim(10) == []
    clock.advance(2)
    assert ids_of(await one.claim(10)) == [third]
    await one.done(*one.held.values())
    clock.advance(61)
    for _ in range(2):
        await prune(engine)
    assert rows(engine) == NOTHING


async def test_a_cap_is_remembered_while_a_task_runs(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    first, second = await submit(engine, new(limits=("cap",)), new(limits=("cap",), order_key="other"))
    [claimed] = await one.claim(10)
    for _ in range(3):
        await prune(engine)
        assert await one.claim(10) == []
    await one.done(claimed)
    assert ids_of(await one.claim(10)) == [second if claimed.id == first else first]


async def test_what_vanished_comes_back_right(engine: SQLiteEngine) -> None:
    """Over and over, with other lanes in other orders, so that numbers are given anew to other things."""
    one = await worker(engine)
    for turn in range(6):
        kinds = [*list(LANES.values())[turn % 3 :], {"limits": (f"cap:{turn}",)}, {"fair_key": f"share-{turn}"}]
        ids = await submit(engine, *(new(n, **fields) for n, fields in enumerate(kinds) for _ in range(2)))
        taken: list[str] = []
        while claimed := await one.claim(100):
            assert len(set(caps(claimed))) == len(caps(claimed)), "a cap of one was passed"
            taken += ids_of(claimed)
            await one.done(*claimed)
        assert sorted(taken) == sorted(ids)
        await prune(engine)
        await prune(engine)
        assert rows(engine) == NOTHING


def caps(claimed: Any) -> list[str]:
    return [limit for task in claimed for limit in task.limits]


async def test_a_share_that_comes_back_has_earned_nothing(engine: SQLiteEngine) -> None:
    """Idling earns no credit; being forgotten and made anew is idling too."""
    one = await worker(engine)
    await submit_one(engine, fair_key="late")
    await one.done(await one.claim_one())
    await submit(engine, *(new(fair_key="busy") for _ in range(100)))
    await one.done(*await one.claim(60))
    await prune(engine)
    await prune(engine)
    late = await submit(engine, *(new(fair_key="late") for _ in range(100)))
    taken = ids_of(await one.claim(32))
    assert len(set(taken) & set(late)) == 16


async def test_a_bounded_round_says_that_there_is_more(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    await submit(engine, *(new(limits=(f"cap:{n}",)) for n in range(30)))
    await one.done(*await one.claim(100))
    rounds = 0
    while (await prune(engine, 10)).more:
        rounds += 1
        assert rounds < 30
    assert rounds > 2
    await prune(engine)
    assert rows(engine) == NOTHING


async def test_counters_whose_window_runs_hide_no_others(engine: SQLiteEngine, clock: ManualClock) -> None:
    await engine.put("limit", "long", b'{"rate": 100, "window": 86400000000}')
    one = await worker(engine)
    await submit(engine, *(new(limits=(f"long:{n}",)) for n in range(10)))
    await one.done(*await one.claim(100))
    await submit(engine, *(new(limits=(f"cap:{n}",)) for n in range(10)))
    await one.done(*await one.claim(100))
    for _ in range(10):
        await prune(engine, 5)
    assert rows(engine)["counter"] == 10


async def test_a_window_that_was_made_longer_still_counts_what_has_started(engine: SQLiteEngine, clock: ManualClock) -> None:
    """The numbers of a limit may change at any time; what it forgets it forgets by those in force."""
    one = await worker(engine)
    await submit(engine, new(limits=("rate",)), new(limits=("rate",)))
    await one.done(*await one.claim(10))
    clock.advance(30)
    await engine.put("limit", "rate", b'{"rate": 1, "window": 3600000000}')
    clock.advance(60)
    for _ in range(2):
        await prune(engine)
    assert await one.claim(10) == [], "two starts within the hour"
    clock.advance(3_600)
    assert len(await one.claim(10)) == 1


async def test_a_counter_without_lanes_is_kept_as_long_as_its_window_in_force(engine: SQLiteEngine, clock: ManualClock) -> None:
    assert (await engine.take("rate", 1, "one")).granted
    clock.advance(30)
    await engine.put("limit", "rate", b'{"rate": 1, "window": 3600000000}')
    clock.advance(60)
    for _ in range(2):
        await prune(engine)
    assert not (await engine.take("rate", 1, "two")).granted


@pytest.mark.parametrize("kind", LANES)
async def test_delete_of_a_task_whose_lane_is_gone(engine: SQLiteEngine, kind: str) -> None:
    one = await worker(engine)
    id = await submit_one(engine, **LANES[kind])
    await one.done(await one.claim_one())
    await prune(engine)
    await prune(engine)
    [changed] = (await engine.delete([Target(id)])).tasks
    assert (changed.done, changed.state) == (True, State.COMPLETED)


@pytest.mark.parametrize("kind", LANES)
async def test_requeue_of_a_task_whose_lane_is_gone(engine: SQLiteEngine, kind: str) -> None:
    one = await worker(engine)
    id = await submit_one(engine, **LANES[kind])
    await one.done(await one.claim_one(), ending=Ending.DEAD)
    await prune(engine)
    await prune(engine)
    await submit_one(engine, order_key="somebody-else")  # takes the number of the lane that went
    await engine.requeue([Target(id)])
    [other] = await submit(engine, new(**LANES[kind]))
    first = await one.claim(10)
    assert id in ids_of(first)
    if kind != "share":
        assert other not in ids_of(first)
    await one.done(*first)
    await one.done(*await one.claim(10))
    assert await states(engine, [id, other]) == [State.COMPLETED] * 2


async def test_a_late_answer_for_a_task_whose_lane_is_gone(engine: SQLiteEngine) -> None:
    """The lease ended long ago; the answer is refused and touches nobody's lane."""
    one, two = await worker(engine), await worker(engine)
    await submit_one(engine, order_key="k")
    [late] = await one.claim()
    await engine.leave(one.id)
    await two.done(await two.claim_one())
    await prune(engine)
    assert [refusal.code for refusal in (await Worker.finish(one, late)).refused] == ["stale_lease"]
