"""The order of claiming: priority, then turn, then age; and between queues, in turn.

A claim may take up to 8 tasks of one lane before it looks at the next one, so a claim of one slot shows the order exactly, and what
several claims took is never further than that from its due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Ending, Engine, Target
from taskmill.task import Edge, Priority, TypeSettings
from tests.conformance.tools import QUEUE, Store, Worker, encode, ids_of, lose, new, record, submit, submit_many, submit_one, worker

QUANTUM = 8


async def claim_singly(one: Worker, number: int, *, queues: Sequence[str] | None = None) -> list[str]:
    return [id for _ in range(number) for id in ids_of(await one.claim(1, queues=queues))]


# Priority.


@pytest.mark.parametrize("slots", [1, 3, 100])
async def test_priority_is_strict(engine: Engine, clock: ManualClock, slots: int) -> None:
    one = await worker(engine)
    by_priority: dict[int, list[str]] = {priority: [] for priority in (3, 2, 1, 0)}
    for priority in (0, 2, 1, 3, 1, 0, 3, 2, 2, 1, 3, 0):
        by_priority[priority].append(await submit_one(engine, priority=priority))
        clock.advance(1)
    taken = []
    while batch := await one.claim(slots):
        taken += ids_of(batch)
    assert taken == [id for ids in by_priority.values() for id in ids]


async def test_a_higher_priority_that_comes_later_is_next(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    low = await submit_many(engine, 5, priority=Priority.LOW)
    assert ids_of(await one.claim(2)) == low[:2]
    clock.advance(1)
    critical = await submit_one(engine, priority=Priority.CRITICAL)
    assert ids_of(await one.claim(2)) == [critical, low[2]]


async def test_a_due_task_has_its_priority_too(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    delayed = await submit_one(engine, priority=Priority.HIGH, delay=10 * SECOND)
    plain = await submit_many(engine, 3)
    assert ids_of(await one.claim(1)) == plain[:1]
    clock.advance(10)
    assert ids_of(await one.claim(3)) == [delayed, *plain[1:]]


async def test_priority_stands_over_lanes_and_shares(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await engine.put("limit", "many", b'{"cap": 100}')
    order = [(0, "a", ()), (1, "b", ("many",)), (2, "a", ()), (3, "b", ()), (0, "b", ("many",)), (1, "a", ()), (2, "a", ("many",)), (3, "c", ("many:x",))]
    ids = {}
    for priority, share, limits in order:
        ids[await submit_one(engine, priority=priority, fair_key=share, limits=limits)] = priority
        clock.advance(1)
    assert [ids[id] for id in ids_of(await one.claim(100))] == [3, 3, 2, 2, 1, 1, 0, 0]


async def test_priorities_by_weight(engine: Engine) -> None:
    one = await worker(engine)
    await engine.put("queue", QUEUE, b'{"priorities": [8, 4, 2, 1]}')
    of: dict[str, int] = {}
    for priority in range(4):
        of |= dict.fromkeys(await submit_many(engine, 200, priority=priority), priority)
    taken = [of[id] for _ in range(30) for id in ids_of(await one.claim(10))]
    counted = Counter(taken)
    for priority, due in ((3, 160), (2, 80), (1, 40), (0, 20)):
        assert abs(counted[priority] - due) <= 2 * QUANTUM, counted
    assert len(await one.claim_all()) == 500


async def test_a_weighted_priority_alone_gets_everything(engine: Engine) -> None:
    one = await worker(engine)
    await engine.put("queue", QUEUE, b'{"priorities": [8, 4, 2, 1]}')
    ids = await submit_many(engine, 50, priority=Priority.LOW)
    assert ids_of(await one.claim(100)) == ids


async def test_a_queue_says_what_its_types_take_turns_by(engine: Engine) -> None:
    one = await worker(engine)
    await engine.put("queue", QUEUE, b'{"fair": "tenant"}')
    mine = await submit_many(engine, 30, tenant="acme")
    yours = await submit_many(engine, 3, tenant="beta")
    assert {(await record(engine, id)).fair_key for id in (mine[0], yours[0])} == {"acme", "beta"}
    assert set(yours) <= set(await claim_singly(one, 8)), "a share waits for its turn, not for all of another"


async def test_a_type_takes_turns_as_it_says_itself_whatever_its_queue_says(engine: Engine) -> None:
    await Worker(engine).join(settings={"work": TypeSettings(fair="{customer}")})
    await engine.put("queue", QUEUE, b'{"fair": "tenant"}')
    task = await submit_one(engine, {"customer": "c7"}, tenant="acme")
    assert (await record(engine, task)).fair_key == "c7"


# Age.


@pytest.mark.parametrize("slots", [1, 7, 100])
async def test_the_oldest_is_first_and_of_one_age_the_first_submitted(engine: Engine, clock: ManualClock, slots: int) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 10)
    ids += await submit_many(engine, 10)
    clock.advance(1)
    ids += [await submit_one(engine) for _ in range(10)]
    taken = []
    while batch := await one.claim(slots):
        taken += ids_of(batch)
    assert taken == ids


async def test_the_age_of_a_delayed_task_is_when_it_was_due(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    delayed = await submit_one(engine, delay=10 * SECOND)
    clock.advance(5)
    before = await submit_one(engine)
    clock.advance(10)
    after = await submit_one(engine)
    assert await claim_singly(one, 3) == [before, delayed, after]


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED])
async def test_the_age_of_a_retry_is_when_it_was_due(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    one = await worker(engine)
    again = await submit_one(engine)
    await one.done(await one.claim_one(), ending=ending, after=10 * SECOND)
    clock.advance(5)
    before = await submit_one(engine)
    clock.advance(10)
    after = await submit_one(engine)
    assert await claim_singly(one, 3) == [before, again, after]


async def test_a_released_task_keeps_its_age(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    first = await submit_one(engine)
    [task] = await one.claim()
    clock.advance(1)
    second = await submit_one(engine)
    await one.done(task, ending=Ending.RELEASED, started_after=None)
    clock.advance(1)
    assert await claim_singly(one, 2) == [first, second]


@pytest.mark.parametrize("how", ["reported", "found"])
async def test_a_crashed_task_keeps_its_age(engine: Engine, clock: ManualClock, how: str) -> None:
    one, two = await worker(engine), await worker(engine)
    first = await submit_one(engine)
    [task] = await one.claim()
    clock.advance(1)
    second = await submit_one(engine)
    if how == "reported":
        await one.done(task, ending=Ending.CRASHED)
    else:
        await lose(engine, clock, two)
    assert await claim_singly(two, 2) == [first, second]


async def test_the_age_of_a_task_that_waited_is_when_it_became_ready(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    child = await submit_one(engine)
    parent = await submit_one(engine, edges=(Edge(child),))
    [task] = await one.claim()
    clock.advance(1)
    before = await submit_one(engine)
    clock.advance(1)
    await one.done(task)
    clock.advance(1)
    after = await submit_one(engine)
    assert await claim_singly(one, 3) == [before, parent, after]


async def test_the_age_of_a_requeued_task_is_when_it_was_requeued(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    again = await submit_one(engine)
    await one.done(await one.claim_one(), ending=Ending.DEAD)
    before = await submit_one(engine)
    clock.advance(1)
    await engine.requeue([Target(again, (await record(engine, again)).version)])
    clock.advance(1)
    after = await submit_one(engine)
    assert await claim_singly(one, 3) == [before, again, after]


async def test_lanes_and_plain_tasks_go_by_age(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await engine.put("limit", "per-user", b'{"cap": 100}')
    ids = []
    for n in range(60):
        ids.append(await submit_one(engine, limits=(f"per-user:{n % 7}",) if n % 3 else ()))
        clock.advance(1)
    assert await claim_singly(one, 60) == ids


async def test_many_busy_lanes_never_starve_plain_tasks(engine: Engine, clock: ManualClock) -> None:
    """When a plain task is taken, each lane has had at most the rest of one quantum of tasks younger than it."""
    one = await worker(engine)
    await engine.put("limit", "per-user", b'{"cap": 1000}')
    for n in range(100):
        await submit(engine, *(new(n, limits=(f"per-user:{lane}",)) for lane in range(5)), new(n))
        clock.advance(1)
    before: list[tuple[tuple[str, ...], int]] = []
    while batch := await one.claim(10):
        for plain in (int(task.payload) for task in batch if not task.limits):
            younger = Counter(limits for limits, age in before if limits and age > plain)
            assert all(number < QUANTUM for number in younger.values()), (plain, younger)
        before += [(task.limits, int(task.payload)) for task in batch]
    assert len(before) == 600


# Shares.


def shares_of(payloads: list[bytes]) -> Counter[str]:
    return Counter(payload.decode().strip('"') for payload in payloads)


async def fill(engine: Engine, **tasks: int) -> None:
    """So many tasks for each share, the first share's all older."""
    for share, number in tasks.items():
        await submit(engine, *(new(share, fair_key=share) for _ in range(number)))


@pytest.mark.parametrize("slots", [1, 5, 8, 20])
async def test_shares_take_turns(engine: Engine, slots: int) -> None:
    one = await worker(engine)
    await fill(engine, a=150, b=150, c=150)
    counted: Counter[str] = Counter()
    for _ in range(240 // slots):
        counted += shares_of([task.payload for task in await one.claim(slots)])
        due = counted.total() / 3
        assert all(abs(counted[share] - due) <= QUANTUM for share in "abc"), counted


@pytest.mark.parametrize("slots", [1, 8, 20])
async def test_turns_are_in_proportion_to_weights(engine: Engine, slots: int) -> None:
    one = await worker(engine)
    await engine.put("queue", QUEUE, b'{"weights": {"a": 4}}')
    await fill(engine, b=150, a=300, c=150)
    counted: Counter[str] = Counter()
    for _ in range(240 // slots):
        counted += shares_of([task.payload for task in await one.claim(slots)])
        for share, weight in (("a", 4), ("b", 1), ("c", 1)):
            assert abs(counted[share] - counted.total() * weight / 6) <= 2 * QUANTUM, counted


async def test_weights_change_at_once(engine: Engine) -> None:
    one = await worker(engine)
    await fill(engine, a=300, b=300)
    assert abs(shares_of([task.payload for task in await one.claim(80)])["a"] - 40) <= QUANTUM
    await engine.put("queue", QUEUE, b'{"weights": {"b": 9}}')
    taken = [task.payload for _ in range(10) for task in await one.claim(10)]
    assert shares_of(taken)["b"] >= 90 - 2 * QUANTUM


async def test_idling_earns_no_credit(engine: Engine) -> None:
    one = await worker(engine)
    await fill(engine, a=300)
    await one.claim(100)
    await fill(engine, b=100)
    taken = [task.payload for _ in range(8) for task in await one.claim(10)]
    assert abs(shares_of(taken)["b"] - 40) <= QUANTUM


async def test_a_share_with_little_to_do_leaves_its_turn(engine: Engine) -> None:
    one = await worker(engine)
    await fill(engine, a=100, b=3)
    taken = [task.payload for task in await one.claim(50)]
    assert (len(taken), shares_of(taken)["b"]) == (50, 3)


async def test_a_share_that_is_closed_leaves_its_turn(engine: Engine) -> None:
    one = await worker(engine)
    await engine.put("limit", "one", b'{"cap": 1}')
    await submit(engine, *(new("a", fair_key="a", limits=("one",)) for _ in range(30)))
    await fill(engine, b=30)
    assert shares_of([task.payload for task in await one.claim(20)]) == {"a": 1, "b": 19}


@pytest.mark.parametrize("cap", [1, 3])
async def test_shares_take_turns_under_one_limit(engine: Engine, cap: int) -> None:
    one = await worker(engine)
    await engine.put("limit", "some", f'{{"cap": {cap}}}'.encode())
    for share in "abc":
        await submit(engine, *(new(share, fair_key=share, limits=("some",)) for _ in range(60)))
    counted: Counter[str] = Counter()
    while counted.total() < 120:
        batch = await one.claim(10)
        counted += shares_of([task.payload for task in batch])
        await one.done(*batch)
        assert all(abs(counted[share] - counted.total() / 3) <= QUANTUM for share in "abc"), counted


async def test_many_shares_each_get_their_turn(engine: Engine) -> None:
    one = await worker(engine)
    names = [f"s{n}" for n in range(40)]
    await fill(engine, **dict.fromkeys(names, 20))
    counted: Counter[str] = Counter()
    for _ in range(40):
        counted += shares_of([task.payload for task in await one.claim(10)])
    assert set(counted) == set(names)
    assert max(counted.values()) - min(counted.values()) <= 2 * QUANTUM


async def test_inside_a_share_age_counts(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    ids: dict[str, list[str]] = {"a": [], "b": []}
    for n in range(40):
        share = "ab"[n % 2]
        ids[share].append(await submit_one(engine, share, fair_key=share))
        clock.advance(1)
    taken = [task for _ in range(8) for task in await one.claim(5)]
    for share, expected in ids.items():
        assert [task.id for task in taken if task.payload == encode(share)] == expected


async def test_shares_by_tenant(engine: Engine) -> None:
    one = await worker(engine, settings={"work": TypeSettings(fair="tenant")})
    await submit(engine, *(new("a", tenant="a") for _ in range(100)))
    await submit(engine, *(new("b", tenant="b") for _ in range(100)))
    taken = [task.payload for _ in range(4) for task in await one.claim(10)]
    assert abs(shares_of(taken)["b"] - 20) <= QUANTUM


async def test_turns_go_on_over_claimers(store: Store, engine: Engine) -> None:
    claimers = [await worker(each) for each in (engine, await store.engine(), await store.engine())]
    await fill(engine, a=100, b=100)
    taken = [task.payload for n in range(30) for task in await claimers[n % 3].claim(4)]
    assert abs(shares_of(taken)["a"] - 60) <= QUANTUM


# Several queues.


async def test_each_queue_gets_an_equal_part_first(engine: Engine) -> None:
    one = await worker(engine, queues=("a", "b"))
    for queue in one.queues:
        await submit_many(engine, 50, queue=queue)
    assert Counter(task.queue for task in await one.claim(10)) == {"a": 5, "b": 5}
    assert Counter(task.queue for task in await one.claim(20)) == {"a": 10, "b": 10}


async def test_what_a_queue_leaves_the_others_take(engine: Engine) -> None:
    one = await worker(engine, queues=("a", "b", "c"))
    await submit_many(engine, 2, queue="a")
    await submit_many(engine, 50, queue="c")
    assert Counter(task.queue for task in await one.claim(12)) == {"a": 2, "c": 10}


async def test_queues_take_turns_when_there_is_one_slot(engine: Engine) -> None:
    one = await worker(engine, queues=("a", "b", "c"))
    for queue in one.queues:
        await submit_many(engine, 20, queue=queue)
    taken = [(await one.claim_one()).queue for _ in range(30)]
    assert Counter(taken) == {"a": 10, "b": 10, "c": 10}


async def test_priorities_are_not_compared_between_queues(engine: Engine) -> None:
    one = await worker(engine, queues=("a", "b"))
    await submit_many(engine, 20, queue="a", priority=Priority.CRITICAL)
    await submit_many(engine, 20, queue="b", priority=Priority.LOW)
    assert Counter(task.queue for task in await one.claim(10)) == {"a": 5, "b": 5}


# What stands in front is not for this worker.


async def test_foreign_types_at_the_head_of_a_line(engine: Engine) -> None:
    one, two = await worker(engine, "mine"), await worker(engine, "foreign")
    foreign = [id for _ in range(3) for id in await submit_many(engine, 500, type="foreign")]
    mine = await submit_many(engine, 20, type="mine")
    taken: list[str] = []
    for _ in range(20):
        taken += ids_of(await one.claim(4))
    assert taken == mine
    assert ids_of(await two.claim_all()) == foreign


async def test_foreign_types_in_front_of_every_share_and_lane(engine: Engine) -> None:
    one = await worker(engine, "mine")
    await engine.put("limit", "many", b'{"cap": 100}')
    for share in "abc":
        await submit_many(engine, 100, type="foreign", fair_key=share)
        await submit_many(engine, 100, type="foreign", fair_key=share, limits=("many",))
    mine = [await submit_one(engine, type="mine", fair_key=share, limits=limits) for share in "abc" for limits in ((), ("many",))]
    taken: list[str] = []
    for _ in range(20):
        taken += ids_of(await one.claim(10))
    assert sorted(taken) == sorted(mine)


async def test_a_full_type_does_not_hold_up_the_others(engine: Engine) -> None:
    one = await worker(engine, "heavy", "light")
    heavy = await submit_many(engine, 300, type="heavy")
    light = await submit_many(engine, 20, type="light")
    taken: list[str] = []
    for _ in range(10):
        taken += ids_of(await one.claim(3, types={"heavy": 0}))
    assert taken == light
    assert ids_of(await one.claim(10)) == heavy[:10]
