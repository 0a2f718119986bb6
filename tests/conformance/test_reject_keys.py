"""A rejected submit holds nothing: no key, no place in a rate; its repeat by id is rejected again, and an operator may let it run."""

from __future__ import annotations

from typing import Any

import pytest

from taskmill.clock import DAY, MINUTE, ManualClock
from taskmill.engine import Ending, Engine, Retention, Status, Submitted, Target
from taskmill.task import Edge, NewTask, OnFailure, OnLimit, State, Unique
from tests.conformance.tools import encode, ids_of, new, record, state, submit, submit_one, worker
from tests.conformance.tools_b import led, settle


@pytest.fixture
async def full(engine: Engine) -> Engine:
    """A store whose rate `full` has no room for a minute."""
    await engine.put("limit", "full", encode({"rate": 1, "window": MINUTE}))
    await submit(engine, rejecting())
    one = await worker(engine)
    await one.done(await one.claim_one())
    return engine


def rejecting(payload: object = None, **fields: Any) -> NewTask:
    return new(payload, **{"limits": ("full",), "on_limit": OnLimit.REJECT, **fields})


async def answer_to(engine: Engine, task: NewTask) -> Submitted:
    [answer] = await engine.submit([task])
    return answer


async def rejected(engine: Engine, payload: object = None, **fields: Any) -> NewTask:
    task = rejecting(payload, **fields)
    answer = await answer_to(engine, task)
    assert (answer.status, answer.id) == (Status.REJECTED, task.id)
    return task


async def test_a_key_is_free_after_a_rejection(full: Engine, clock: ManualClock, fresh: Status) -> None:
    first = await rejected(full, 1, idempotency_key="k")
    clock.advance("61s")
    again = rejecting(1, idempotency_key="k")
    answer = await answer_to(full, again)
    assert (answer.status, answer.id) == (fresh, again.id)
    assert await state(full, first.id) is State.DEAD
    assert ids_of(await (await worker(full)).claim(10)) == [again.id]


async def test_under_a_rejected_key_another_payload_is_no_conflict(full: Engine) -> None:
    first = await rejected(full, 1, idempotency_key="k")
    second = rejecting(2, idempotency_key="k")
    answer = await answer_to(full, second)
    assert (answer.status, answer.id) == (Status.REJECTED, second.id)
    plain = await submit_one(full, 3, idempotency_key="k")
    assert plain not in {first.id, second.id}


async def test_a_unique_key_is_free_after_a_rejection(full: Engine) -> None:
    await rejected(full, 1, unique=Unique("u"))
    second = await submit_one(full, 2, unique=Unique("u"))
    assert await state(full, second) is State.PENDING
    assert (await answer_to(full, new(3, unique=Unique("u")))).id == second


async def test_a_requeued_rejection_leaves_the_keys_to_their_holders(full: Engine) -> None:
    first = await rejected(full, 1, idempotency_key="k", unique=Unique("u"))
    second = await submit_one(full, 2, idempotency_key="k", unique=Unique("u"))
    changes = await full.requeue([Target(first.id, (await record(full, first.id)).version)])
    assert [changed.task for changed in changes.tasks] == [first.id]
    again = await answer_to(full, new(2, idempotency_key="k"))
    assert (again.status, again.id) == (Status.DUPLICATE, second)


async def test_in_one_batch_a_rejected_one_leaves_its_key_to_the_next(full: Engine, fresh: Status) -> None:
    first, second = rejecting(1, idempotency_key="k", unique=Unique("u")), new(2, idempotency_key="k", unique=Unique("u"))
    answers = await full.submit([first, second])
    assert [(answer.status, answer.id) for answer in answers] == [(Status.REJECTED, first.id), (fresh, second.id)]


async def test_an_accepted_one_is_a_duplicate_however_full_the_limit_is(engine: Engine) -> None:
    await engine.put("limit", "full", encode({"rate": 1, "window": MINUTE}))
    first = rejecting(1, idempotency_key="k")
    await submit(engine, first)
    await rejected(engine, 2)
    by_id, by_key, other = await engine.submit([first, rejecting(1, idempotency_key="k"), rejecting(2, idempotency_key="k")])
    assert [(answer.status, answer.id) for answer in (by_id, by_key, other)] == [
        (Status.DUPLICATE, first.id),
        (Status.DUPLICATE, first.id),
        (Status.CONFLICT, first.id),
    ]


async def test_a_duplicate_does_not_count_in_the_rate(engine: Engine) -> None:
    await engine.put("limit", "full", encode({"rate": 2, "window": MINUTE}))
    first = rejecting(1, idempotency_key="k")
    await submit(engine, first)
    for _ in range(3):
        assert (await answer_to(engine, rejecting(1, idempotency_key="k"))).id == first.id
    await submit(engine, rejecting(2))
    await rejected(engine, 3)


# The same id again.


async def test_a_repeat_by_id_is_rejected_again(full: Engine, clock: ManualClock) -> None:
    task = await rejected(full, 1)
    first = await answer_to(full, task)
    assert first.error is not None
    assert first.error.code == "rate_limited"
    clock.advance("2h")
    again = await answer_to(full, task)
    assert (again.status, again.id) == (Status.REJECTED, task.id)
    assert again.error is not None
    assert again.error.code == "rate_limited"
    other = await answer_to(full, rejecting(2, id=task.id))
    assert (other.status, other.id) == (Status.CONFLICT, task.id)
    assert (await record(full, task.id)).payload == encode(1)


async def test_a_repeat_by_id_and_key_is_rejected_again(full: Engine) -> None:
    task = await rejected(full, 1, idempotency_key="k", unique=Unique("u"))
    assert (await answer_to(full, task)).status is Status.REJECTED


async def test_an_id_that_was_requeued_is_a_duplicate(full: Engine) -> None:
    one = await worker(full)
    task = await rejected(full, 1)
    await full.requeue([Target(task.id, (await record(full, task.id)).version)])
    assert (await answer_to(full, task)).status is Status.DUPLICATE
    [claimed] = await one.claim(10)
    assert claimed.id == task.id
    await one.done(claimed, ending=Ending.DEAD)
    assert (await answer_to(full, task)).status is Status.DUPLICATE, "it ran: its death is another's word"


async def test_a_deleted_rejection_is_forgotten(full: Engine, clock: ManualClock, fresh: Status) -> None:
    task = await rejected(full, 1, idempotency_key="k")
    await full.delete([Target(task.id, (await record(full, task.id)).version)])
    assert await full.get([task.id]) == (None,)
    assert (await answer_to(full, task)).status is Status.REJECTED
    await full.delete([Target(task.id, (await record(full, task.id)).version)])
    clock.advance("61s")
    assert (await answer_to(full, task)).status is fresh
    assert ids_of(await (await worker(full)).claim(10)) == [task.id]


async def test_a_pruned_rejection_is_forgotten(full: Engine, clock: ManualClock, fresh: Status) -> None:
    task = await rejected(full, 1, idempotency_key="k", idempotency_window=90 * DAY)
    clock.advance("15d")
    await settle(full)
    while (await full.prune(100, await led(full), Retention())).more:
        pass
    assert await full.get([task.id]) == (None,)
    assert (await answer_to(full, task)).status is fresh


# Those who wait for it.


@pytest.mark.parametrize(("on_failure", "expected"), [(OnFailure.CANCEL, State.CANCELLED), (OnFailure.IGNORE, State.PENDING), (OnFailure.HOLD, State.WAITING)])
@pytest.mark.parametrize("together", [True, False])
async def test_a_task_after_a_rejected_one(full: Engine, on_failure: OnFailure, expected: State, *, together: bool) -> None:
    task = rejecting(1)
    behind = new(edges=(Edge(task.id, on_failure),))
    for batch in ([task, behind],) if together else ([task], [behind]):
        assert all(answer.status is not Status.REFUSED for answer in await full.submit(batch))
    await settle(full)
    assert (await state(full, task.id), await state(full, behind.id)) == (State.DEAD, expected)


@pytest.mark.parametrize(("on_failure", "expected"), [(OnFailure.CANCEL, State.CANCELLED), (OnFailure.IGNORE, State.PENDING)])
async def test_a_rejected_child_of_a_sealed_parent(full: Engine, on_failure: OnFailure, expected: State) -> None:
    parent = new(sealed=True)
    await submit(full, parent)
    [answer] = await full.submit([rejecting(1, parent=Edge(parent.id, on_failure))], unseal=[parent.id])
    assert answer.status is Status.REJECTED
    await settle(full)
    assert await state(full, parent.id) is expected


async def test_a_reserved_task_that_is_rejected_when_it_comes_holds_no_key(full: Engine, fresh: Status) -> None:
    task = rejecting(1, idempotency_key="k")
    await full.submit([task], reserved=True)
    assert (await answer_to(full, task)).status is Status.REJECTED
    assert (await answer_to(full, task)).status is Status.REJECTED
    other = new(2, idempotency_key="k")
    answer = await answer_to(full, other)
    assert (answer.status, answer.id) == (fresh, other.id)


@pytest.mark.parametrize("on_failure", [OnFailure.CANCEL, OnFailure.IGNORE])
async def test_a_task_that_starts_a_rejected_one_and_waits_for_it(full: Engine, on_failure: OnFailure) -> None:
    """The edge falls in that step, or in the next."""
    one = await worker(full)
    waiting = await submit_one(full)
    claimed = await one.claim_one()
    await one.done(claimed, ending=Ending.WAITING, then=(rejecting(1),), on_failure=on_failure.value)
    await settle(full)
    assert await state(full, waiting) is (State.CANCELLED if on_failure is OnFailure.CANCEL else State.PENDING)
