"""Lanes: to claim is to admit. Caps, rates, keys, several limits on one lane, order keys, rejection at submit."""

from __future__ import annotations

from typing import Any

import pytest

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Room, Target
from taskmill.task import Priority, State, TypeSettings
from tests.conformance.tools import (
    QUEUE,
    TYPE,
    Store,
    Worker,
    encode,
    ids_of,
    lose,
    needs,
    new,
    record,
    refusal,
    state,
    submit,
    submit_many,
    worker,
)


async def limit(engine: Engine, name: str, **numbers: int) -> None:
    await engine.put("limit", name, encode(numbers))


# A cap.


async def test_never_more_run_than_the_cap(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "two", cap=2)
    ids = await submit_many(engine, 5, limits=("two",))
    first = await one.claim(10)
    assert ids_of(first) == ids[:2]
    assert await one.claim(10) == []
    await one.done(first[0])
    assert ids_of(await one.claim(10)) == ids[2:3]
    await one.done(*one.held.values())
    assert ids_of(await one.claim(10)) == ids[3:]


@pytest.mark.parametrize("ending", list(Ending))
async def test_every_ending_gives_the_slot_back_once(engine: Engine, ending: Ending) -> None:
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    first, *_ = await submit_many(engine, 4, limits=("one",))
    [task] = await one.claim(10)
    assert task.id == first
    fields: dict[str, Any] = {"after": MINUTE} if ending in {Ending.RETRY, Ending.SNOOZED} else {"signals": ("go",)} if ending is Ending.WAITING else {}
    await one.done(task, ending=ending, **fields)
    assert len(await one.claim(10)) == 1
    assert await one.claim(10) == []


async def test_a_lost_worker_gives_its_slots_back_once(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    await limit(engine, "two", cap=2)
    ids = await submit_many(engine, 5, limits=("two",))
    late = await one.claim(10)
    await lose(engine, clock, two)
    assert ids_of(await two.claim(10)) == ids[:2]
    assert [refused.code for refused in (await one.finish(*late)).refused] == ["stale_lease"] * 2
    assert await two.claim(10) == []


async def test_leave_and_beat_give_slots_back(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    await limit(engine, "one", cap=1)
    await submit_many(engine, 2, limits=("one",))
    await one.claim()
    one.held.clear()
    await one.beat()
    assert len(await one.claim()) == 1
    await engine.leave(one.id)
    assert len(await two.claim(10)) == 1


async def test_a_cancelled_waiting_task_leaves_its_lane(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    a, b, c = await submit_many(engine, 3, limits=("one",))
    await engine.cancel([Target(a, 1), Target(b, 1)])
    assert ids_of(await one.claim(10)) == [c]


async def test_a_cap_of_zero_closes(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "none", cap=0)
    ids = await submit_many(engine, 2, limits=("none",))
    assert await one.claim(10) == []
    await limit(engine, "none", cap=1)
    assert ids_of(await one.claim(10)) == ids[:1]


# A rate.


async def test_never_more_starts_in_any_window_than_the_rate(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=3, window=SECOND)
    ids = await submit_many(engine, 30, limits=("rate",))
    starts: list[int] = []
    while len(starts) < 20:
        claimed = await one.claim(2)
        starts += [task.claimed_at for task in claimed]
        await one.done(*claimed)
        clock.advance("70ms")
    assert all(later - earlier >= SECOND for earlier, later in zip(starts, starts[3:], strict=False))
    assert starts[19] - starts[0] < 10 * SECOND
    assert await state(engine, ids[19]) is State.COMPLETED


async def test_a_rate_is_full_again_after_its_window(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=3, window=10 * SECOND)
    await submit_many(engine, 9, limits=("rate",))
    assert len(await one.claim(10)) == 3
    clock.advance("9999999us")
    one.request += 1
    answer = await engine.claim(one.id, one.request, [QUEUE], Room(10))
    assert answer.tasks == ()
    assert answer.next_at is not None
    assert clock.now() < answer.next_at <= clock.now() + SECOND
    clock.advance("20ms")
    assert len(await one.claim(10)) == 3
    assert await one.claim(10) == []


async def test_a_finished_task_does_not_make_room_in_a_rate(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=1, window=MINUTE)
    await submit_many(engine, 2, limits=("rate",))
    await one.done(await one.claim_one())
    assert await one.claim() == []


async def test_a_released_claim_returns_concurrency_never_rate(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "both", rate=2, window=MINUTE, cap=1)
    ids = await submit_many(engine, 2, limits=("both",))
    await one.done(await one.claim_one(), ending=Ending.RELEASED, started_after=None)
    assert ids_of(await one.claim(10)) == ids[:1]
    await one.done(*one.held.values(), ending=Ending.RELEASED, started_after=None)
    assert await one.claim(10) == []
    clock.advance("61s")
    assert ids_of(await one.claim(10)) == ids[:1]


async def test_take_counts_against_the_same_rate(engine: Engine) -> None:
    needs(engine, "limits_over_queues")  # a take is of no queue
    one = await worker(engine)
    await limit(engine, "rate", rate=3, window=MINUTE)
    await submit_many(engine, 5, limits=("rate",))
    assert (await engine.take("rate", 2, "take-1")).granted
    assert len(await one.claim(10)) == 1
    assert not (await engine.take("rate", 1, "take-2")).granted


# Keys, several limits, several queues.


async def test_each_key_has_its_own_count(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", cap=1)
    ids = await submit(engine, *(new(n, limits=(f"per-user:{n // 3}",)) for n in range(9)))
    assert ids_of(await one.claim(10)) == [ids[0], ids[3], ids[6]]


async def test_a_rate_per_key(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", rate=2, window=SECOND)
    await submit(engine, *(new(n % 2, limits=(f"per-user:{n % 2}",)) for n in range(10)))
    first = await one.claim(10)
    assert sorted(task.payload for task in first) == [b"0", b"0", b"1", b"1"]
    clock.advance("1010ms")
    assert len(await one.claim(10)) == 4


async def test_a_key_from_the_payload(engine: Engine) -> None:
    one = await worker(engine, settings={TYPE: TypeSettings(limits=("per-user:{user}",))}, limits={"per-user": b'{"cap": 1}'})
    a, _, b = await submit(engine, new({"user": 1}), new({"user": 1}), new({"user": 2}))
    assert (await record(engine, a)).limits == ("per-user:1",)
    assert ids_of(await one.claim(10)) == [a, b]


async def test_all_limits_of_a_lane_hold(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "cap", cap=2)
    await limit(engine, "rate", rate=3, window=MINUTE)
    await submit_many(engine, 9, limits=("cap", "rate"))
    first = await one.claim(10)
    assert len(first) == 2
    await one.done(*first)
    assert len(await one.claim(10)) == 1
    await one.done(*one.held.values())
    assert await one.claim(10) == []
    clock.advance("61s")
    assert len(await one.claim(10)) == 2


async def test_one_limit_over_several_lanes(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "all", cap=3)
    await limit(engine, "per-user", cap=2)
    await submit(engine, *(new(n, limits=("all", f"per-user:{n // 4}")) for n in range(8)), *(new("alone", limits=("all",)) for _ in range(4)))
    running: list[Any] = []
    seen = 0
    while batch := await one.claim(10) or running:
        running = [*{task.token: task for task in [*running, *batch]}.values()]
        assert len(running) <= 3
        users = [task.limits for task in running if len(task.limits) > 1]
        assert all(users.count(limits) <= 2 for limits in users)
        seen += 1
        await one.done(running.pop(0))
    assert seen == 12


async def test_a_limit_over_several_queues(engine: Engine) -> None:
    needs(engine, "limits_over_queues")
    one = await worker(engine, queues=("a", "b"))
    await limit(engine, "one", cap=1)
    await submit(engine, new(queue="a", limits=("one",)), new(queue="b", limits=("one",)))
    [first] = await one.claim(10)
    assert await one.claim(10) == []
    await one.done(first)
    [second] = await one.claim(10)
    assert {first.queue, second.queue} == {"a", "b"}


async def test_a_limit_over_several_shares(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "two", cap=2)
    await submit(engine, *(new(fair_key=share, limits=("two",)) for share in "abcd" for _ in range(3)))
    taken = 0
    while batch := await one.claim(10):
        assert len(batch) == 2
        taken += 2
        await one.done(*batch)
    assert taken == 12


async def test_limits_of_the_type_and_none_of_the_task(engine: Engine) -> None:
    one = await worker(engine, settings={TYPE: TypeSettings(limits=("one",))}, limits={"one": b'{"cap": 1}'})
    limited = await submit_many(engine, 3)
    free = await submit_many(engine, 3, limits=())
    assert ids_of(await one.claim(10)) == [limited[0], *free]


# Definitions.


async def test_a_limit_must_be_defined(engine: Engine) -> None:
    answers = await engine.submit([new(limits=("unheard",)), new(limits=("unheard:key",))])
    assert [refusal(answer) for answer in answers] == ["unknown_limit"] * 2


async def test_a_raised_cap_holds_at_once(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "some", cap=1)
    ids = await submit_many(engine, 5, limits=("some",))
    assert ids_of(await one.claim(10)) == ids[:1]
    await limit(engine, "some", cap=3)
    assert ids_of(await one.claim(10)) == ids[1:3]


async def test_a_lowered_cap_holds_at_once_and_takes_nothing_away(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "some", cap=3)
    await submit_many(engine, 6, limits=("some",))
    running = await one.claim(3)
    await limit(engine, "some", cap=1)
    for task in running:
        assert await state(engine, task.id) is State.RUNNING
        assert await one.claim(10) == []
        await one.done(task)
    assert len(await one.claim(10)) == 1


async def test_a_changed_rate_holds_at_once(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "some", rate=1, window=MINUTE)
    await submit_many(engine, 9, limits=("some",))
    assert len(await one.claim(10)) == 1
    await limit(engine, "some", rate=4, window=MINUTE)
    assert len(await one.claim(10)) == 3
    await limit(engine, "some", rate=2, window=MINUTE)
    assert await one.claim(10) == []


async def test_a_limit_that_becomes_another_kind(engine: Engine, clock: ManualClock) -> None:
    """What started before there was a rate need not count in it; what runs counts in every cap."""
    one = await worker(engine)
    await limit(engine, "some", cap=1)
    await submit_many(engine, 9, limits=("some",))
    assert len(await one.claim(10)) == 1
    await limit(engine, "some", rate=3, window=SECOND)
    assert len(await one.claim(10)) in {2, 3}
    assert await one.claim(10) == []
    clock.advance("1010ms")
    await limit(engine, "some", cap=5)
    await one.claim(10)
    assert len(one.held) == 5


async def test_a_changed_limit_is_seen_by_every_engine_at_once(store: Store, engine: Engine) -> None:
    one = await worker(engine)
    other = await store.engine()
    await limit(engine, "some", cap=1)
    await submit_many(engine, 5, limits=("some",))
    assert len(await one.claim(10)) == 1
    await limit(other, "some", cap=4)
    assert len(await one.claim(10)) == 3


async def test_an_operators_limit_stands_over_the_codes(engine: Engine) -> None:
    one = await worker(engine, limits={"some": b'{"cap": 1}'})
    await limit(engine, "some", cap=3)
    await worker(engine, limits={"some": b'{"cap": 2}'}, version=1)
    await submit_many(engine, 5, limits=("some",))
    assert len(await one.claim(10)) == 3
    await one.done(*one.held.values())
    await engine.drop("limit", "some")
    assert len(await one.claim(10)) == 2


# What a closed lane costs others: nothing.


async def test_a_closed_lane_holds_nobody_up(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    closed = await submit_many(engine, 50, limits=("one",), priority=Priority.CRITICAL)
    plain = await submit_many(engine, 5)
    assert ids_of(await one.claim(10)) == [closed[0], *plain]


async def test_a_very_long_closed_lane_is_not_looked_at(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    for _ in range(4):
        await submit(engine, *(new(limits=("one",), priority=Priority.HIGH) for _ in range(5_000)))
    plain = await submit_many(engine, 3)
    [head, *others] = await one.claim(4)
    assert ids_of(others) == plain
    one.request += 1
    answer = await engine.claim(one.id, one.request, [QUEUE], Room(10))
    assert (answer.tasks, answer.more, answer.next_at) == ((), False, None)
    await one.done(head)
    assert len(await one.claim(10)) == 1


async def drain(one: Worker) -> list[str]:
    """Claim and finish one by one until nothing is left."""
    taken: list[str] = []
    while batch := await one.claim(1):
        await one.done(*batch)
        taken += ids_of(batch)
    return taken


async def test_empty_lanes_leave_nothing_behind(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", cap=1, rate=1, window=SECOND)
    for _ in range(3):
        ids = await submit(engine, *(new(limits=(f"per-user:{n}",)) for n in range(30)))
        assert sorted(await drain(one)) == sorted(ids)
        clock.advance(2)
        await engine.recover_lost()
