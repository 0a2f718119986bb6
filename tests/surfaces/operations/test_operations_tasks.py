"""get, attempts, list, count, wait, result, signal: looking at tasks and waiting for them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine, Filter, Target
from taskmill.errors import Conflict, Expired, InvalidInput, NotFound, ResultTimeout
from taskmill.events import Kind
from taskmill.operations import Operations
from taskmill.task import Edge, State, Task
from tests.conformance.tools import new, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import guarded, make

NOBODY = "00000000-0000-7000-8000-000000000000"


async def test_a_task_nobody_submitted(operations: Operations) -> None:
    for ask in (operations.get, operations.attempts, operations.edges):
        with pytest.raises(NotFound) as raised:
            await ask(NOBODY)
        assert (raised.value.status, raised.value.task_id) == (404, NOBODY)
        assert raised.value.hint


async def test_one_that_is_gone_says_how_it_ended(operations: Operations, engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    await operations.delete([Target(made.id)])
    for ask in (operations.get, operations.attempts, operations.edges):
        with pytest.raises(Expired, match="dead") as raised:
            await ask(made.id)
        assert (raised.value.status, raised.value.state, raised.value.task_id) == (410, State.DEAD, made.id)


async def test_one_that_is_only_reserved(operations: Operations, engine: Engine) -> None:
    task = new()
    await engine.submit([task], reserved=True)
    with pytest.raises(Conflict, match="not yet here") as raised:
        await operations.get(task.id)
    assert raised.value.code == "reserved"


@pytest.mark.parametrize("id", ["", "17", "X" * 36, NOBODY.replace("-", "")], ids=["empty", "number", "text", "bare"])
async def test_what_is_no_id(operations: Operations, id: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        await operations.get(id)
    assert raised.value.code == "invalid_id"


async def test_attempts_and_edges(operations: Operations, engine: Engine) -> None:
    made = await make(engine, State.RETRYING)
    [attempt] = await operations.attempts(made.id)
    assert (attempt.number, attempt.outcome) == (1, "failed")
    [waits] = await submit(engine, new(edges=(Edge(made.id),)))
    [edge] = await operations.edges(waits)
    assert (edge.task, edge.outcome) == (made.id, None)


# Many


async def test_pages_to_the_end(operations: Operations, engine: Engine) -> None:
    ids = await submit_many(engine, 25)
    await submit_many(engine, 5, queue="other")
    which = Filter(queues=frozenset({"default"}))
    first = await operations.list(which, n=10)
    assert [task.id for task in first.tasks] == ids[:14:-1]
    second = await operations.list(which, after=first.cursor, n=10)
    assert [task.id for task in second.tasks] == ids[14:4:-1]
    streamed: list[Task] = [task async for page in operations.stream(which, n=10) for task in page.tasks]
    assert [task.id for task in streamed] == ids[::-1]


async def test_counting(operations: Operations, engine: Engine) -> None:
    await submit_many(engine, 3, tenant="t", tags={"colour": "red"})
    await submit_many(engine, 4, queue="line")
    await submit_many(engine, 5, type="other", delay=HOUR)
    assert await operations.count() == 12
    assert await operations.count(Filter(queues=frozenset({"line"}))) == 4
    assert await operations.count(Filter(types=frozenset({"other"}), states=frozenset({State.SCHEDULED}))) == 5
    assert await operations.count(Filter(types=frozenset({"other"}), states=frozenset({State.DEAD}))) == 0
    assert await operations.count(Filter(tenant="t")) == 3
    assert await operations.count(Filter(tags={"colour": "red"})) == 3
    assert await operations.count(Filter(tags={"colour": "blue"})) == 0
    assert await operations.count(Filter(created_from=engine.clock.now() + 1)) == 0


async def test_names_in_a_filter_that_nobody_named(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    await submit_one(engine, queue="mail", type="send_welcome")
    await operations.check_names(Filter(queues=frozenset({"mail"}), types=frozenset({"send_welcome"})))
    await operations.check_names(Filter())
    with pytest.raises(NotFound, match="did you mean 'mail'") as raised:
        await operations.check_names(Filter(queues=frozenset({"mial"})))
    assert (raised.value.code, raised.value.field) == ("unknown_queue", "queues")
    with pytest.raises(NotFound, match="did you mean 'send_welcome'") as raised:
        await operations.check_names(Filter(types=frozenset({"send_welcom"})))
    assert (raised.value.code, raised.value.field) == ("unknown_type", "types")


async def test_a_queue_that_is_newer_than_the_counts_is_known(operations: Operations, engine: Engine) -> None:
    await operations.queues()
    await submit_one(engine, queue="new", type="fresh")
    await operations.check_names(Filter(queues=frozenset({"new"}), types=frozenset({"fresh"})))
    assert await operations.pause_queue("new")
    assert await operations.pause_type("fresh")


# Waiting


async def test_what_has_ended_answers_at_once(operations: Operations, engine: Engine) -> None:
    done, dead = await make(engine, State.COMPLETED), await make(engine, State.DEAD)
    live = await submit_one(engine)
    assert await operations.wait([done.id, dead.id, live], 0) == {done.id: State.COMPLETED, dead.id: State.DEAD}
    assert await operations.wait([live], 0) == {}
    assert await operations.wait([live], 1_000) == {}
    assert await operations.wait([], 0, every=True) == {}


async def test_until_one_ends_or_every_one(operations: Operations, engine: Engine) -> None:
    first, second = await submit_many(engine, 2)
    hand = await worker(engine)
    one, other = await hand.claim(2)
    some = asyncio.ensure_future(operations.wait([first, second]))
    every = asyncio.ensure_future(operations.wait([first, second], every=True))
    await hand.done(one)
    assert await guarded(some) == {first: State.COMPLETED}
    assert not every.done()
    await hand.done(other)
    assert await guarded(every) == {first: State.COMPLETED, second: State.COMPLETED}


async def test_every_one_but_the_time_is_over(operations: Operations, engine: Engine) -> None:
    done, live = await make(engine, State.COMPLETED), await submit_one(engine)
    assert await operations.wait([done.id, live], 1_000, every=True) == {done.id: State.COMPLETED}


async def test_waiting_for_nobody(operations: Operations) -> None:
    with pytest.raises(NotFound):
        await operations.wait([NOBODY], 0)


async def test_the_result(operations: Operations, engine: Engine) -> None:
    id = await submit_one(engine)
    with pytest.raises(ResultTimeout) as raised:
        await operations.result(id, 1_000)
    assert (raised.value.task_id, raised.value.status) == (id, 504)
    coming = asyncio.ensure_future(operations.result(id))
    hand = await worker(engine)
    await hand.done(await hand.claim_one(), result=b"42")
    task = await guarded(coming)
    assert (task.state, task.result) == (State.COMPLETED, b"42")


async def test_the_result_of_one_that_is_gone(operations: Operations, engine: Engine) -> None:
    made = await make(engine, State.COMPLETED)
    await operations.delete([Target(made.id)])
    with pytest.raises(Expired) as raised:
        await operations.result(made.id, 0)
    assert raised.value.state is State.COMPLETED


async def test_events(operations: Operations, engine: Engine) -> None:
    async with aclosing(await operations.events()) as events:
        id = await submit_one(engine)
        event = await guarded(anext(events))
        assert (event.kind, event.subject) == (Kind.SUBMITTED, id)


# Signals


async def test_a_signal_wakes_who_waits_for_it(operations: Operations, engine: Engine) -> None:
    hand = await worker(engine)
    id = await submit_one(engine)
    await hand.done(await hand.claim_one(), ending=Ending.WAITING, signals=("go",))
    assert (await operations.get(id)).state is State.WAITING
    assert await operations.signal(id, "go", b"7", signal_id="once") == 1
    assert await operations.signal(id, "go", b"7", signal_id="once") == 1
    assert await operations.signal(id, "go") == 2
    assert (await operations.get(id)).state is State.PENDING


async def test_a_signal_to_nobody_or_too_late(operations: Operations, engine: Engine) -> None:
    with pytest.raises(NotFound):
        await operations.signal(NOBODY, "go")
    made = await make(engine, State.DEAD)
    with pytest.raises(Conflict) as raised:
        await operations.signal(made.id, "go")
    assert raised.value.code == "terminal"
    await operations.delete([Target(made.id)])
    with pytest.raises(Expired):
        await operations.signal(made.id, "go")
