"""finish with a wait, or with tasks that follow: one step ends this attempt and starts those."""

from __future__ import annotations

import pytest

from taskmill.clock import MINUTE, ManualClock
from taskmill.engine import Ending, Engine
from taskmill.task import State, Unique, new_id
from tests.conformance.tools import ids_of, last_attempt, new, state, states, submit, submit_one, worker
from tests.conformance.tools_b import make


async def test_waiting_until_a_deadline(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.WAITING, signals=("go",), deadline=MINUTE)
    assert await state(engine, made.id) is State.WAITING
    assert (await last_attempt(engine, made.id)).outcome == "waiting"
    clock.advance("59s")
    assert await made.holder.claim() == []
    clock.advance("1s")
    again = await made.holder.claim_one()
    assert (again.id, again.attempt, again.signals) == (made.id, 2, ())


async def test_waiting_for_tasks(engine: Engine) -> None:
    child = await submit_one(engine, queue="children")
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.WAITING, tasks=(child,))
    assert await made.holder.claim() == []
    other = await worker(engine, queues=["children"])
    await other.done(await other.claim_one(), result=b'"found"')
    again = await made.holder.claim_one()
    assert [(edge.task, edge.outcome, edge.result) for edge in again.results] == [(child, State.COMPLETED, b'"found"')]


async def test_waiting_for_tasks_that_have_ended_already(engine: Engine) -> None:
    child = (await make(engine, State.COMPLETED)).id
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.WAITING, tasks=(child,))
    assert ids_of(await made.holder.claim()) == [made.id]


async def test_waiting_for_a_signal_and_for_tasks_needs_both(engine: Engine) -> None:
    child = await make(engine, State.RUNNING)
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert child.claimed
    await made.holder.done(made.claimed, ending=Ending.WAITING, tasks=(child.id,), signals=("go",))
    await engine.signal(made.id, "go", b"1", new_id())
    assert await state(engine, made.id) is State.WAITING
    await child.holder.done(child.claimed)
    assert await state(engine, made.id) is State.PENDING


@pytest.mark.parametrize(("on_failure", "expected"), [("cancel", State.CANCELLED), ("ignore", State.PENDING), ("hold", State.WAITING)])
async def test_waiting_for_a_task_that_fails(engine: Engine, on_failure: str, expected: State) -> None:
    child = await make(engine, State.RUNNING)
    made = await make(engine, State.RUNNING)
    assert made.claimed
    assert child.claimed
    await made.holder.done(made.claimed, ending=Ending.WAITING, tasks=(child.id,), on_failure=on_failure)
    await child.holder.done(child.claimed, ending=Ending.DEAD)
    assert await state(engine, made.id) is expected


async def test_waiting_for_an_unknown_task_is_refused_and_the_lease_stands(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    answer = await made.holder.finish(made.claimed, ending=Ending.WAITING, tasks=(new_id(),))
    assert [refused.task for refused in answer.refused] == [made.id]
    assert await state(engine, made.id) is State.RUNNING
    await made.holder.done(made.claimed)


async def test_then_starts_tasks_in_the_same_step(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    following = (new("a", queue="next"), new("b", queue="next", priority=3))
    await made.holder.done(made.claimed, then=following)
    assert await states(engine, [made.id, *(task.id for task in following)]) == [State.COMPLETED, State.PENDING, State.PENDING]
    hand = await worker(engine, queues=["next"])
    assert ids_of(await hand.claim(5)) == [following[1].id, following[0].id]


async def test_then_with_waiting_waits_for_them(engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    children = (new("a", queue="next"), new("b", queue="next"))
    await made.holder.done(made.claimed, ending=Ending.WAITING, then=children)
    assert await state(engine, made.id) is State.WAITING
    hand = await worker(engine, queues=["next"])
    first, second = await hand.claim(2)
    await hand.done(first, result=b"1")
    assert await state(engine, made.id) is State.WAITING
    await hand.done(second, result=b"2")
    again = await made.holder.claim_one()
    assert [(edge.task, edge.result) for edge in again.results] == [(children[0].id, b"1"), (children[1].id, b"2")]


@pytest.mark.parametrize("ending", [Ending.WAITING, Ending.RETRY, Ending.SNOOZED])
async def test_a_repeat_leaves_the_attempt_alone_that_followed(engine: Engine, ending: Ending) -> None:
    """The answer got lost, another has claimed the task since, and the first asks again: it hears the same, and nothing is done to the other's attempt."""
    made = await make(engine, State.RUNNING)
    assert made.claimed
    child = new("a", queue="next")
    after = {} if ending is Ending.WAITING else {"after": 0}
    await made.holder.done(made.claimed, ending=ending, then=(child,), **after)
    hand = await worker(engine, queues=["next"])
    await hand.done(await hand.claim_one())
    other = await worker(engine, queues=made.holder.queues)
    again = await other.claim_one()
    assert (again.id, again.attempt) == (made.id, 2)
    await made.holder.done(made.claimed, ending=ending, then=(child,), **after)
    assert (await other.beat()).lost == ()
    assert await state(engine, made.id) is State.RUNNING
    await other.done(again)
    assert await states(engine, [made.id, child.id]) == [State.COMPLETED, State.COMPLETED]
    assert [attempt.number for attempt in await engine.attempts(made.id)] == [1, 2]


async def test_then_with_a_duplicate_does_not_stop_the_finish(engine: Engine) -> None:
    known = new("same", queue="next", idempotency_key="k")
    await submit(engine, known)
    made = await make(engine, State.RUNNING)
    assert made.claimed
    then = (known, new("same", queue="next", idempotency_key="k"), new("other", queue="next", idempotency_key="k"), new("fresh", queue="next"))
    await made.holder.done(made.claimed, then=then)
    assert await state(engine, made.id) is State.COMPLETED
    hand = await worker(engine, queues=["next"])
    assert ids_of(await hand.claim(9)) == [known.id, then[3].id]


async def test_then_and_waiting_with_a_duplicate_waits_for_the_first_one(engine: Engine) -> None:
    known = new("same", queue="next", idempotency_key="k")
    await submit(engine, known)
    made = await make(engine, State.RUNNING)
    assert made.claimed
    await made.holder.done(made.claimed, ending=Ending.WAITING, then=(new("same", queue="next", idempotency_key="k"),))
    assert await state(engine, made.id) is State.WAITING
    hand = await worker(engine, queues=["next"])
    await hand.done(await hand.claim_one())
    assert [edge.task for edge in (await made.holder.claim_one()).results] == [known.id]


async def test_then_of_a_unique_key_that_its_own_task_holds(engine: Engine) -> None:
    """The step ends the holder, so what it starts may take the key over."""
    made = await make(engine, State.RUNNING, unique=Unique("one"))
    assert made.claimed
    follower = new(queue="next", unique=Unique("one"))
    await made.holder.done(made.claimed, then=(follower,))
    assert await state(engine, follower.id) is State.PENDING
