"""Lanes of one, in submission order, and limits that reject at submit."""

from __future__ import annotations

from typing import Any

import pytest

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Status, Target
from taskmill.task import OnLimit, State, TypeSettings
from tests.conformance.tools import (
    TYPE,
    encode,
    ids_of,
    lose,
    new,
    record,
    state,
    submit,
    submit_many,
    submit_one,
    worker,
)


async def limit(engine: Engine, name: str, **numbers: int) -> None:
    await engine.put("limit", name, encode(numbers))


# Order keys: a lane of one, in submission order.


async def test_one_order_key_runs_one_at_a_time_in_submission_order(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new(order_key="k", priority=n % 4) for n in range(6)))
    for id in ids:
        [task] = await one.claim(10)
        assert task.id == id
        await one.done(task)
    assert await one.claim(10) == []


async def test_order_keys_do_not_hold_each_other_up(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new(order_key=f"k{n % 3}") for n in range(9)))
    assert ids_of(await one.claim(10)) == ids[:3]


async def test_an_order_key_with_a_delayed_head_waits_for_it(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    first, second = await submit(engine, new(order_key="k", delay=10 * SECOND), new(order_key="k"))
    assert await one.claim(10) == []
    clock.advance(10)
    assert ids_of(await one.claim(10)) == [first]
    await one.done(*one.held.values())
    assert ids_of(await one.claim(10)) == [second]


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED, Ending.WAITING])
async def test_the_next_of_an_order_key_waits_until_the_head_has_ended(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    one = await worker(engine)
    first, second = await submit(engine, new(order_key="k"), new(order_key="k"))
    fields: dict[str, Any] = {"signals": ("go",)} if ending is Ending.WAITING else {"after": 10 * SECOND}
    await one.done(await one.claim_one(), ending=ending, **fields)
    if ending in {Ending.RETRY, Ending.SNOOZED, Ending.WAITING}:
        assert await one.claim(10) == []
    if ending is Ending.WAITING:
        await engine.signal(first, "go", b"null", "signal-1")
    clock.advance(10)
    [task] = await one.claim(10)
    assert task.id == first
    await one.done(task)
    assert ids_of(await one.claim(10)) == [second]


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.DEAD, Ending.CANCELLED])
async def test_the_next_of_an_order_key_follows_the_heads_end_whatever_it_was(engine: Engine, ending: Ending) -> None:
    one = await worker(engine)
    _, second = await submit(engine, new(order_key="k"), new(order_key="k"))
    await one.done(await one.claim_one(), ending=ending)
    assert ids_of(await one.claim(10)) == [second]


async def test_the_next_of_an_order_key_follows_a_cancelled_head(engine: Engine) -> None:
    one = await worker(engine)
    first, second, third = await submit(engine, *(new(order_key="k", delay=MINUTE if n == 0 else None) for n in range(3)))
    await engine.cancel([Target(second, 1)])
    assert await one.claim(10) == []
    await engine.cancel([Target(first, 1)])
    assert ids_of(await one.claim(10)) == [third]


async def test_the_next_of_an_order_key_follows_a_poisoned_head(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    first, second = await submit(engine, new(order_key="k", max_crashes=0), new(order_key="k"))
    await one.claim_one()
    await lose(engine, clock, two)
    assert await state(engine, first) is State.DEAD
    assert ids_of(await two.claim(10)) == [second]


async def test_an_order_key_of_the_type_with_a_limit(engine: Engine) -> None:
    one = await worker(engine, settings={TYPE: TypeSettings(ordered="{user}", limits=("two",))}, limits={"two": b'{"cap": 2}'})
    ids = await submit(engine, *(new({"user": n % 3}) for n in range(9)))
    taken: list[str] = []
    while batch := await one.claim(10):
        assert len(batch) <= 2
        assert len({task.payload for task in batch}) == len(batch)
        taken += ids_of(batch)
        await one.done(*batch)
    assert sorted(taken) == sorted(ids)
    assert [[id for id in taken if id in ids[n::3]] for n in range(3)] == [ids[0::3], ids[1::3], ids[2::3]]


# Rejection at submit.


async def rejected(engine: Engine, **fields: Any) -> str:
    """Submit one task that must be rejected; a caller that asks again hears the same."""
    task = new(**fields)
    [answer] = await engine.submit([task])
    assert answer.status is Status.REJECTED
    stored = await record(engine, task.id)
    assert (answer.id, stored.state) == (task.id, State.DEAD)
    assert stored.error is not None
    assert stored.error.code == "rate_limited"
    return task.id


async def test_what_is_over_the_rate_is_rejected_and_stored_dead(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=2, window=MINUTE)
    ids = [await submit_one(engine, limits=("rate",), on_limit=OnLimit.REJECT) for _ in range(2)]
    await rejected(engine, limits=("rate",), on_limit=OnLimit.REJECT)
    assert ids_of(await one.claim(10)) == ids
    clock.advance("61s")
    again = await submit_one(engine, limits=("rate",), on_limit=OnLimit.REJECT)
    assert ids_of(await one.claim(10)) == [again]


async def test_a_rejection_says_so(engine: Engine, fresh: Status) -> None:
    await limit(engine, "rate", rate=2, window=MINUTE)
    tasks = [new(limits=("rate",), on_limit=OnLimit.REJECT) for _ in range(4)]
    answers = await engine.submit(tasks)
    assert [answer.status for answer in answers] == [fresh, fresh, Status.REJECTED, Status.REJECTED]
    assert answers[2].error is not None
    assert answers[2].error.code == "rate_limited"


async def test_a_rejecting_type_with_keys(engine: Engine) -> None:
    settings = TypeSettings(limits=("per-user:{user}",), on_limit=OnLimit.REJECT)
    await worker(engine, settings={TYPE: settings}, limits={"per-user": encode({"rate": 1, "window": MINUTE})})
    await submit_one(engine, {"user": 1})
    await submit_one(engine, {"user": 2})
    await rejected(engine, payload=encode({"user": 1}))


async def test_an_admitted_task_is_not_counted_again_when_it_starts(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=2, window=MINUTE)
    await submit_one(engine, limits=("rate",), on_limit=OnLimit.REJECT)
    assert len(await one.claim(10)) == 1
    delayed = await submit_many(engine, 2, limits=("rate",))
    assert ids_of(await one.claim(10)) == delayed[:1]


async def test_a_requeued_rejected_task_runs(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=1, window=MINUTE)
    await submit_one(engine, limits=("rate",), on_limit=OnLimit.REJECT)
    await one.claim(10)
    id = await rejected(engine, limits=("rate",), on_limit=OnLimit.REJECT)
    await engine.requeue([Target(id, (await record(engine, id)).version)])
    assert ids_of(await one.claim(10)) == [id]
