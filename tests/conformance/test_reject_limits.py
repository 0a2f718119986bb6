"""on_limit="reject": a full rate or cap refuses at submit and says when to come back; what is accepted runs under the cap, and the rate counts it once."""

from __future__ import annotations

from typing import Any

import pytest

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Status, Submitted, Target
from taskmill.errors import RateLimited
from taskmill.task import Edge, NewTask, OnLimit, State, new_id
from tests.conformance.tools import Worker, encode, ids_of, lose, new, record, state, submit, submit_many, submit_one, worker

GRAIN = 20_000
"""A store may round the times of a rate up by this much."""


async def limit(engine: Engine, name: str, **numbers: int) -> None:
    await engine.put("limit", name, encode(numbers))


def rejecting(*limits: str, **fields: Any) -> NewTask:
    return new(limits=limits, on_limit=OnLimit.REJECT, **fields)


async def accepts(engine: Engine, number: int, *limits: str, **fields: Any) -> list[str]:
    return await submit(engine, *(rejecting(*limits, **fields) for _ in range(number)))


async def rejects(engine: Engine, *limits: str, **fields: Any) -> Submitted:
    """Submit one that must be rejected."""
    task = rejecting(*limits, **fields)
    [answer] = await engine.submit([task])
    assert (answer.status, answer.id) == (Status.REJECTED, task.id)
    return answer


def said(answer: Submitted) -> int | None:
    """When to come back."""
    assert isinstance(answer.error, RateLimited)
    assert answer.error.code == "rate_limited"
    return answer.error.retry_at


# A cap.


async def test_a_cap_holds_for_what_was_accepted(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    ids = await accepts(engine, 4, "one")
    for id in ids:
        assert ids_of(await one.claim(10)) == [id]
        assert await one.claim(10) == []
        await one.done(*one.held.values())
    assert await one.claim(10) == []


async def test_a_full_cap_rejects_and_an_end_makes_room(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "two", cap=2)
    await accepts(engine, 3, "two")
    first, _ = await one.claim(10)
    answer = await rejects(engine, "two")
    assert said(answer) is None
    stored = await record(engine, answer.id)
    assert stored.state is State.DEAD
    assert stored.error is not None
    assert stored.error.code == "rate_limited"
    await one.done(first)
    await accepts(engine, 1, "two")
    await one.claim(10)
    assert len(one.held) == 2
    await rejects(engine, "two")


async def test_a_cap_of_zero_rejects(engine: Engine) -> None:
    await limit(engine, "none", cap=0)
    assert said(await rejects(engine, "none")) is None


async def test_a_cap_is_shared_with_tasks_that_wait(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "two", cap=2)
    ids = await submit(engine, *(new(limits=("two",), on_limit=OnLimit.REJECT if n % 2 else OnLimit.DELAY) for n in range(8)))
    seen: list[str] = []
    while taken := await one.claim(10):
        seen += ids_of(taken)
        assert len(one.held) == 2, "as many as the cap allows, of both kinds together"
        await one.done(next(iter(one.held.values())))
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize("kind", [OnLimit.REJECT, OnLimit.DELAY])
async def test_a_slot_that_returns_wakes_both_kinds(engine: Engine, kind: OnLimit) -> None:
    """Whichever kind held it, and whichever waits for it."""
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    await submit(engine, new(limits=("one",), on_limit=kind))
    waiting = await submit(engine, new(limits=("one",)))
    rejecting_id = await accepts(engine, 1, "one")
    taken: list[str] = []
    for _ in range(3):
        [task] = await one.claim(10)
        taken.append(task.id)
        await one.done(task)
    assert {*waiting, *rejecting_id} < set(taken)


@pytest.mark.parametrize("ending", list(Ending))
async def test_every_ending_gives_the_slot_back_once(engine: Engine, ending: Ending) -> None:
    one = await worker(engine)
    await limit(engine, "one", cap=1)
    await accepts(engine, 4, "one")
    fields: dict[str, Any] = {"after": MINUTE} if ending in {Ending.RETRY, Ending.SNOOZED} else {"signals": ("go",)} if ending is Ending.WAITING else {}
    await one.done(await one.claim_one(), ending=ending, **fields)
    assert len(await one.claim(10)) == 1
    assert await one.claim(10) == []


async def test_a_lost_worker_gives_the_slot_back_once(engine: Engine, clock: ManualClock) -> None:
    one, two = await worker(engine), await worker(engine)
    await limit(engine, "one", cap=1)
    ids = await accepts(engine, 3, "one")
    await one.claim_one()
    await lose(engine, clock, two)
    assert ids_of(await two.claim(10)) == ids[:1]
    assert await two.claim(10) == []


async def test_a_raised_cap_holds_at_once(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "some", cap=1)
    ids = await accepts(engine, 5, "some")
    assert ids_of(await one.claim(10)) == ids[:1]
    await limit(engine, "some", cap=3)
    assert ids_of(await one.claim(10)) == ids[1:3]


async def test_a_cap_by_key(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", cap=1)
    first, _ = await accepts(engine, 2, "per-user:1")
    [other] = await accepts(engine, 1, "per-user:2")
    assert sorted(ids_of(await one.claim(10))) == sorted([first, other])
    await rejects(engine, "per-user:1")
    await rejects(engine, "per-user:2")
    await accepts(engine, 1, "per-user:3")


# A cap and a rate.


async def test_the_rate_counts_at_submit_and_never_again(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "both", rate=2, window=MINUTE, cap=1)
    ids = await accepts(engine, 2, "both")
    await rejects(engine, "both")
    for id in ids:
        [task] = await one.claim(10)
        assert task.id == id
        await one.done(task)
    assert await one.claim(10) == []


async def test_a_full_rate_does_not_keep_the_accepted_shut(engine: Engine, clock: ManualClock) -> None:
    """Those that wait for the rate and those that only wait for the cap stand at one limit: a slot that returns reaches both."""
    one = await worker(engine)
    await limit(engine, "both", rate=2, window=MINUTE, cap=1)
    waiting = await submit_many(engine, 2, limits=("both",))
    [first] = await one.claim(10)
    assert first.id == waiting[0]
    [accepted] = await accepts_beside(engine, "both")
    assert await one.claim(10) == []
    await one.done(first)
    [second] = await one.claim(10)
    assert second.id == accepted
    await one.done(second)
    assert await one.claim(10) == []
    clock.advance("61s")
    assert ids_of(await one.claim(10)) == waiting[1:]


async def accepts_beside(engine: Engine, name: str) -> list[str]:
    """One that is accepted while the cap is full is none: the cap is lifted for the submit alone."""
    definition = {"rate": 2, "window": MINUTE}
    await engine.put("limit", name, encode({**definition, "cap": 2}))
    ids = await accepts(engine, 1, name)
    await engine.put("limit", name, encode({**definition, "cap": 1}))
    return ids


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED])
async def test_another_attempt_waits_for_the_cap_and_not_for_the_rate(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    one = await worker(engine)
    await limit(engine, "both", rate=2, window=10 * MINUTE, cap=1)
    ids = await accepts(engine, 2, "both")
    first = await one.claim_one()
    await one.done(first, ending=ending, after=SECOND)
    second = await one.claim_one()
    clock.advance(1)
    assert await one.claim(10) == [], "the cap is full"
    await one.done(second)
    third = await one.claim_one()
    assert {first.id, second.id, third.id} == set(ids)
    assert await one.claim(10) == []


async def test_several_limits_are_all_looked_at(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "cap", cap=1)
    await limit(engine, "rate", rate=2, window=MINUTE)
    first, second = await accepts(engine, 2, "cap", "rate")
    retry_at = said(await rejects(engine, "cap", "rate"))
    assert retry_at is not None
    [task] = await one.claim(10)
    assert task.id == first
    clock.advance("61s")
    assert said(await rejects(engine, "cap", "rate")) is None
    await one.done(task)
    assert ids_of(await one.claim(10)) == [second]


async def test_what_one_limit_refuses_counts_against_no_other(engine: Engine) -> None:
    await limit(engine, "narrow", rate=1, window=MINUTE)
    await limit(engine, "wide", rate=2, window=MINUTE)
    await accepts(engine, 1, "narrow")
    for _ in range(3):
        await rejects(engine, "narrow", "wide")
    await accepts(engine, 2, "wide")
    await rejects(engine, "wide")


async def test_without_a_cap_it_waits_for_nothing(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "rate", rate=2, window=MINUTE)
    ids = await accepts(engine, 2, "rate")
    assert ids_of(await one.claim(10)) == ids
    assert (await record(engine, ids[0])).limits == ("rate",)


async def test_a_requeued_rejected_task_waits_for_the_cap_alone(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "both", rate=1, window=MINUTE, cap=1)
    await accepts(engine, 1, "both")
    running = await one.claim_one()
    answer = await rejects(engine, "both")
    await engine.requeue([Target(answer.id, (await record(engine, answer.id)).version)])
    assert await one.claim(10) == []
    await one.done(running)
    assert ids_of(await one.claim(10)) == [answer.id]


# When to come back.


async def test_a_rejection_says_when_the_rate_has_room(engine: Engine, clock: ManualClock) -> None:
    await limit(engine, "rate", rate=2, window=MINUTE)
    began = clock.now()
    await accepts(engine, 1, "rate")
    clock.advance("10s")
    await accepts(engine, 1, "rate")
    clock.advance("5s")
    answer = await rejects(engine, "rate")
    retry_at = said(answer)
    assert retry_at is not None
    assert began + MINUTE <= retry_at <= began + MINUTE + GRAIN
    assert isinstance(answer.error, RateLimited)
    assert answer.error.retry_after == retry_at - clock.now()
    clock.advance(f"{retry_at - clock.now()}us")
    await accepts(engine, 1, "rate")
    await rejects(engine, "rate")


async def test_the_latest_of_several_full_rates_is_said(engine: Engine, clock: ManualClock) -> None:
    await limit(engine, "short", rate=1, window=SECOND)
    await limit(engine, "long", rate=1, window=MINUTE)
    await limit(engine, "roomy", rate=9, window=60 * MINUTE)
    await accepts(engine, 1, "short", "long", "roomy")
    retry_at = said(await rejects(engine, "short", "long", "roomy"))
    assert retry_at is not None
    assert clock.now() + MINUTE <= retry_at <= clock.now() + MINUTE + GRAIN


async def test_a_full_cap_beside_a_full_rate_says_the_rates_time(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "both", rate=1, window=MINUTE, cap=1)
    await accepts(engine, 1, "both")
    await one.claim_one()
    retry_at = said(await rejects(engine, "both"))
    assert retry_at is not None
    assert clock.now() < retry_at <= clock.now() + MINUTE + GRAIN


# One batch.


async def test_a_batch_is_judged_in_order(engine: Engine, fresh: Status) -> None:
    await limit(engine, "rate", rate=2, window=MINUTE)
    tasks = [rejecting("rate"), new(), rejecting("rate"), rejecting("rate"), new(), rejecting("rate")]
    answers = await engine.submit(tasks)
    assert [answer.status for answer in answers] == [fresh, fresh, fresh, Status.REJECTED, fresh, Status.REJECTED]
    assert all(said(answers[place]) is not None for place in (3, 5))


async def test_a_plain_neighbour_does_not_wait_for_the_limit(engine: Engine) -> None:
    one: Worker = await worker(engine)
    await limit(engine, "one", cap=1)
    limited, plain = await submit(engine, rejecting("one"), new())
    held = await one.claim(10)
    assert sorted(ids_of(held)) == sorted([limited, plain])
    assert await state(engine, limited) is State.RUNNING


async def test_the_record_and_the_claim_show_the_limits_as_given(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "both", rate=5, window=MINUTE, cap=5)
    id = await submit_one(engine, limits=("both:7",), on_limit=OnLimit.REJECT, tenant="acme")
    assert (await record(engine, id)).limits == ("both:7",)
    assert (await one.claim_one()).limits == ("both:7",)


async def test_what_is_refused_for_its_edges_counts_in_no_rate(engine: Engine) -> None:
    await limit(engine, "rate", rate=1, window=MINUTE)
    parent = new(sealed=True)
    await submit(engine, parent)
    for task in (rejecting("rate", edges=(Edge(new_id()),)), rejecting("rate", edges=(Edge(parent.id),), parent=Edge(parent.id))):
        [answer] = await engine.submit([task])
        assert answer.status is Status.REFUSED
    await accepts(engine, 1, "rate")
    await rejects(engine, "rate")
