"""submit and submit_many: one commit for all who come at once, and an error that says what stands in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context

import pytest

from taskmill.engine import EVERYTHING, Call, Durability, Engine, Status
from taskmill.errors import Conflict, InvalidInput, NotFound, RateLimited
from taskmill.operations import Limit, Operations, submitted, tasks
from taskmill.task import Edge, NewTask, OnLimit, State
from tests.conformance.tools import new, record, submit_one
from tests.conformance.tools_b import guarded

SIZE = tasks.BATCH


async def test_a_task_is_there(operations: Operations) -> None:
    task = new({"n": 1})
    answer = await operations.submit(task)
    assert (answer.status, answer.id, answer.durability) == (Status.CREATED, task.id, Durability.FSYNC)
    assert (await operations.get(task.id)).payload == b'{"n":1}'


async def test_again_it_is_the_same_one(operations: Operations) -> None:
    task = new()
    await operations.submit(task)
    assert (await operations.submit(task)).status is Status.DUPLICATE
    assert (await operations.submit(new(idempotency_key="k"))).status is Status.CREATED
    assert await operations.count() == 2


async def test_concurrent_callers_share_one_commit(operations: Operations, calls: list[Call]) -> None:
    answers = await asyncio.gather(*(operations.submit(new(n)) for n in range(300)))
    assert {answer.status for answer in answers} == {Status.CREATED}
    assert [call.size for call in calls if call.verb == "submit"] == [300]


async def test_those_who_come_meanwhile_go_together(operations: Operations, calls: list[Call]) -> None:
    await operations.submit(new())
    coming = [asyncio.ensure_future(operations.submit(new(n))) for n in range(1_200)]
    await asyncio.sleep(0)
    await operations.drain()
    assert all(answer.done() for answer in coming)
    assert {answer.result().status for answer in coming} == {Status.CREATED}
    assert [call.size for call in calls if call.verb == "submit"] == [1, 500, 500, 200]


async def test_one_bad_task_troubles_nobody_else(operations: Operations) -> None:
    good, bad, also_good = await asyncio.gather(*(operations.submit(new(n, type=name)) for n, name in enumerate(("a", "NO!", "b"))), return_exceptions=True)
    assert isinstance(bad, InvalidInput)
    assert (bad.code, bad.field) == ("invalid_name", "type")
    assert not isinstance(good, BaseException)
    assert not isinstance(also_good, BaseException)


async def test_another_payload_under_the_same_key_names_the_first(operations: Operations) -> None:
    first = await operations.submit(new(1, idempotency_key="k"))
    assert (await operations.submit(new(1, idempotency_key="k"))).id == first.id
    with pytest.raises(Conflict, match="another payload") as raised:
        await operations.submit(new(2, idempotency_key="k"))
    assert (raised.value.code, raised.value.task_id, raised.value.status) == ("conflict", first.id, 409)
    assert raised.value.hint


async def test_over_a_rate_it_is_rejected_and_kept_dead(operations: Operations) -> None:
    await operations.put_limit("few", Limit(rate=1, window=60_000_000))
    await operations.submit(new(limits=("few",), on_limit=OnLimit.REJECT))
    with pytest.raises(RateLimited) as raised:
        await operations.submit(new(limits=("few",), on_limit=OnLimit.REJECT))
    assert raised.value.status == 429
    assert raised.value.task_id is not None
    assert (await operations.get(raised.value.task_id)).state is State.DEAD


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queue": None}, "unknown_type"),
        ({"limits": ("nothing",)}, "unknown_limit"),
        ({"edges": (Edge("00000000-0000-7000-8000-000000000000"),)}, "unknown_edge"),
        ({"priority": 9}, "out_of_range"),
    ],
    ids=["type", "limit", "edge", "priority"],
)
async def test_a_refusal_is_raised_with_its_remedy(operations: Operations, fields: dict[str, object], code: str) -> None:
    with pytest.raises((InvalidInput, NotFound)) as raised:
        await operations.submit(new(**fields))
    assert raised.value.code == code
    assert raised.value.field
    assert raised.value.hint


async def test_in_the_caller_s_transaction(engine: Engine, operations: Operations) -> None:
    async def submit_and(task: NewTask, last: Callable[[], object]) -> None:
        async with engine.transaction() as tx:
            await operations.submit(task, tx=tx)
            last()

    kept, lost = new(1), new(2)
    await submit_and(kept, lambda: None)
    with pytest.raises(ZeroDivisionError):
        await submit_and(lost, lambda: 1 // 0)
    assert (await operations.get(kept.id)).state is State.PENDING
    with pytest.raises(NotFound):
        await operations.get(lost.id)


async def test_who_forgets_the_transaction_hears_so_and_nobody_else(engine: Engine, operations: Operations) -> None:
    """The engine refuses a step that would wait for the caller's own lock; those whose submits wait for that lock too only wait."""
    outside = copy_context()
    async with engine.transaction():
        other = outside.run(asyncio.ensure_future, operations.submit(new(1)))
        await asyncio.sleep(0)
        with pytest.raises(Conflict) as raised:
            await guarded(operations.submit(new(2)))
        assert raised.value.code == "inside_transaction"
    assert (await guarded(other)).status is Status.CREATED


async def test_a_caller_that_gives_up_takes_nobody_with_it(operations: Operations) -> None:
    quitter, stayer = new(1), new(2)
    given_up = asyncio.ensure_future(operations.submit(quitter))
    stays = asyncio.ensure_future(operations.submit(stayer))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await stays).status is Status.CREATED
    await operations.drain()
    assert (await operations.get(quitter.id)).state is State.PENDING


# Many


async def test_many_are_batches_in_order(operations: Operations, calls: list[Call]) -> None:
    told: list[int] = []
    made = [new(n) for n in range(2 * SIZE + 1)]
    answers = await operations.submit_many(made, progress=told.append)
    assert [answer.id for answer in answers] == [task.id for task in made]
    assert [call.size for call in calls if call.verb == "submit"] == [SIZE, SIZE, 1]
    assert told == [SIZE, 2 * SIZE, 2 * SIZE + 1]


async def test_none_at_all(operations: Operations, calls: list[Call]) -> None:
    assert await operations.submit_many([]) == ()
    assert [call.verb for call in calls] == ["open"]


async def test_they_are_read_as_they_are_sent(operations: Operations) -> None:
    """A generator of millions does not stand in memory as a whole: one batch is on its way, and the next is being made."""
    ahead: list[int] = []
    sent = 0

    def tell(number: int) -> None:
        nonlocal sent
        sent = number

    def lazily() -> Iterator[NewTask]:
        for n in range(3 * SIZE):
            ahead.append(n - sent)
            yield new(n)

    await operations.submit_many(lazily(), progress=tell)
    assert max(ahead) <= 2 * SIZE


async def test_a_batch_that_fails_keeps_those_behind_it_from_being_sent(operations: Operations, calls: list[Call]) -> None:
    def failing() -> Iterator[NewTask]:
        yield from (new(n) for n in range(3 * SIZE))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await operations.submit_many(failing())
    assert sum(call.size for call in calls if call.verb == "submit") <= 3 * SIZE
    assert len({task.id for task in (await operations.list(n=1)).tasks}) == 1


async def test_batches_arrive_in_their_order(operations: Operations) -> None:
    answers = await operations.submit_many(new(n) for n in range(3 * SIZE))
    listed = [task.id async for page in tasks.pages(operations.engine, EVERYTHING, SIZE) for task in page.tasks]
    assert listed == [answer.id for answer in reversed(answers)]


async def test_large_payloads_make_smaller_batches(operations: Operations, calls: list[Call]) -> None:
    await operations.submit_many(new("x" * 250_000) for _ in range(40))
    sizes = [call.size for call in calls if call.verb == "submit"]
    assert sum(sizes) == 40
    assert max(sizes) * 250_000 <= tasks.BATCH_BYTES


async def test_refusals_stand_among_the_answers(operations: Operations) -> None:
    answers = await operations.submit_many([new(1), new(2, type="NO!"), new(3)])
    assert [answer.status for answer in answers] == [Status.CREATED, Status.REFUSED, Status.CREATED]
    with pytest.raises(InvalidInput):
        submitted(answers[1])


async def test_who_waits_stands_behind_the_batch_it_waits_for(operations: Operations) -> None:
    first = new()
    made = [first, *(new(n) for n in range(SIZE)), new(edges=(Edge(first.id),))]
    answers = await operations.submit_many(made)
    assert {answer.status for answer in answers} == {Status.CREATED}
    assert (await operations.get(made[-1].id)).state is State.WAITING


async def test_a_repeat_makes_none_twice(operations: Operations, engine: Engine) -> None:
    made = [new(n) for n in range(5)]
    await operations.submit_many(made)
    assert {answer.status for answer in await operations.submit_many(made)} == {Status.DUPLICATE}
    assert (await record(engine, made[0].id)).version == 1
    assert await submit_one(engine) is not None
