"""submit: idempotency keys and unique keys give one task."""

from __future__ import annotations

import asyncio
from collections import Counter

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Status, Target
from taskmill.task import Edge, Gone, Priority, State, TypeSettings, Unique
from tests.conformance.tools import (
    TYPE,
    Store,
    all_tasks,
    encode,
    new,
    record,
    state,
    step,
    submit,
    submit_one,
    worker,
)

# By idempotency key.


async def test_a_key_gives_one_task(engine: Engine) -> None:
    first = await submit_one(engine, 1, idempotency_key="k")
    same, other = await engine.submit([new(1, idempotency_key="k"), new(2, idempotency_key="k")])
    assert (same.status, same.id) == (Status.DUPLICATE, first)
    assert (other.status, other.id) == (Status.CONFLICT, first)
    assert other.error is not None
    assert other.error.code == "conflict"
    assert [task.id for task in await all_tasks(engine)] == [first]


async def test_a_key_is_of_its_tenant_and_type(engine: Engine) -> None:
    await submit(
        engine,
        new(1, idempotency_key="k"),
        new(2, idempotency_key="k", tenant="acme"),
        new(3, idempotency_key="k", type="other"),
        new(4, idempotency_key="k", tenant="other"),
    )
    assert len(await all_tasks(engine)) == 4


async def test_a_key_twice_in_one_batch(engine: Engine, fresh: Status) -> None:
    first = new(1, idempotency_key="k")
    answers = await engine.submit([first, new(1, idempotency_key="k"), new(2, idempotency_key="k")])
    assert [answer.status for answer in answers] == [fresh, Status.DUPLICATE, Status.CONFLICT]
    assert {answer.id for answer in answers} == {first.id}


async def test_a_key_holds_for_its_window(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    first = await submit_one(engine, 1, idempotency_key="k", idempotency_window=MINUTE)
    await one.done(await one.claim_one())
    clock.advance(59)
    [within] = await engine.submit([new(1, idempotency_key="k")])
    assert (within.status, within.id) == (Status.DUPLICATE, first)
    clock.advance(1)
    second = await submit_one(engine, 1, idempotency_key="k")
    assert second != first


async def test_a_key_holds_beyond_its_window_until_the_task_has_ended(engine: Engine, clock: ManualClock) -> None:
    first = await submit_one(engine, 1, idempotency_key="k", idempotency_window=MINUTE)
    clock.advance("2m")
    [answer] = await engine.submit([new(1, idempotency_key="k")])
    assert (answer.status, answer.id) == (Status.DUPLICATE, first)
    one = await worker(engine)
    await one.done(await one.claim_one())
    assert await submit_one(engine, 1, idempotency_key="k") != first


async def test_the_window_is_72_hours_unless_told_otherwise(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    first = await submit_one(engine, 1, idempotency_key="k")
    await one.done(await one.claim_one())
    clock.advance("71h59m")
    [answer] = await engine.submit([new(1, idempotency_key="k")])
    assert (answer.status, answer.id) == (Status.DUPLICATE, first)
    clock.advance("1m")
    await submit_one(engine, 1, idempotency_key="k")


async def test_one_key_from_a_thousand_callers_at_once(store: Store, engine: Engine) -> None:
    engines = [engine, *await store.engines(3)]
    tasks = [new({"order": 1}, idempotency_key="order-1") for _ in range(1_000)]
    answers = await asyncio.gather(*(engines[n % 4].submit([task]) for n, task in enumerate(tasks)))
    [stored] = await all_tasks(engine)
    assert {answer.id for [answer] in answers} == {stored.id}
    counted = Counter(answer.status for [answer] in answers)
    assert counted == ({Status.DUPLICATE: 1_000} if store.lost else {Status.CREATED: 1, Status.DUPLICATE: 999})


# Unique keys.


async def test_unique_keep_answers_the_holder(engine: Engine) -> None:
    first = await submit_one(engine, 1, unique=Unique("u"))
    [answer] = await engine.submit([new(2, unique=Unique("u"))])
    assert (answer.status, answer.id) == (Status.DUPLICATE, first)
    assert (await record(engine, first)).payload == encode(1)
    assert len(await all_tasks(engine)) == 1


async def test_unique_replace_changes_the_holder_in_place(engine: Engine, clock: ManualClock) -> None:
    first = await submit_one(engine, 1, unique=Unique("u"), priority=Priority.LOW)
    [answer] = await engine.submit([new(2, unique=Unique("u", on_conflict="replace"), priority=Priority.HIGH, delay=5 * SECOND)])
    assert (answer.status, answer.id) == (Status.REPLACED, first)
    task = await record(engine, first)
    assert (task.payload, task.priority, task.run_at, task.state) == (encode(2), Priority.HIGH, clock.now() + 5 * SECOND, State.SCHEDULED)
    assert task.version > 1
    assert len(await all_tasks(engine)) == 1
    one = await worker(engine)
    assert await one.claim() == []
    clock.advance(5)
    assert (await one.claim_one()).payload == encode(2)


async def test_unique_replace_of_a_waiting_holder_lets_it_wait(engine: Engine) -> None:
    one = await worker(engine)
    child = await submit_one(engine, "child")
    first = await submit_one(engine, 1, unique=Unique("u"), edges=(Edge(child),))
    [answer] = await engine.submit([new(2, unique=Unique("u", on_conflict="replace"))])
    assert (answer.status, answer.id) == (Status.REPLACED, first)
    assert await state(engine, first) is State.WAITING
    [claimed] = await one.claim(10)
    assert claimed.id == child
    await one.done(claimed)
    [claimed] = await one.claim(10)
    assert (claimed.id, claimed.payload) == (first, encode(2))


async def test_unique_replace_of_a_running_holder_is_a_conflict(engine: Engine) -> None:
    one = await worker(engine)
    first = await submit_one(engine, 1, unique=Unique("u"))
    [task] = await one.claim()
    [answer] = await engine.submit([new(2, unique=Unique("u", on_conflict="replace"))])
    assert (answer.status, answer.id) == (Status.CONFLICT, first)
    assert (await record(engine, first)).payload == encode(1)
    await one.done(task)


async def test_unique_until_ended_is_free_again_after_the_end(engine: Engine) -> None:
    one = await worker(engine)
    for ending in (Ending.COMPLETED, Ending.DEAD, Ending.CANCELLED):
        id = await submit_one(engine, unique=Unique("u"))
        [task] = await one.claim()
        assert (await engine.submit([new(unique=Unique("u"))]))[0].id == id
        await one.done(task, ending=ending)
    assert len(await all_tasks(engine)) == 3


async def test_unique_until_ended_is_held_over_a_retry(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine, unique=Unique("u"))
    await one.done(await one.claim_one(), ending=Ending.RETRY, after=SECOND)
    assert (await engine.submit([new(unique=Unique("u"))]))[0].id == id


async def test_unique_until_started_is_free_once_it_began(engine: Engine) -> None:
    one = await worker(engine)
    first = await submit_one(engine, unique=Unique("u", until="started"))
    claimed = await one.claim_one()
    assert (await engine.submit([new(unique=Unique("u", until="started"))]))[0].id == first
    assert await engine.checkpoint([step(claimed, started_after=1)]) == ()
    second = await submit_one(engine, unique=Unique("u", until="started"))
    assert second != first


async def test_unique_is_of_its_tenant_and_type(engine: Engine) -> None:
    await submit(engine, new(unique=Unique("u")), new(unique=Unique("u"), tenant="acme"), new(unique=Unique("u"), type="other"))
    assert len(await all_tasks(engine)) == 3


async def test_unique_twice_in_one_batch(engine: Engine, fresh: Status) -> None:
    first = new(1, unique=Unique("u"))
    answers = await engine.submit([first, new(2, unique=Unique("u"))])
    assert [(answer.status, answer.id) for answer in answers] == [(fresh, first.id), (Status.DUPLICATE, first.id)]


async def test_a_unique_key_of_the_type(engine: Engine) -> None:
    await worker(engine, settings={TYPE: TypeSettings(unique=Unique("user-{user}"))})
    first, second = await submit_one(engine, {"user": 1}), await submit_one(engine, {"user": 2})
    assert (await engine.submit([new({"user": 1, "again": True})]))[0].id == first != second


# After the end.


async def test_a_deleted_task_stays_known_by_id_and_key(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    task = new(1, idempotency_key="k")
    await submit(engine, task)
    await one.done(await one.claim_one())
    version = (await record(engine, task.id)).version
    [changed] = (await engine.delete([Target(task.id, version)])).tasks
    assert changed.done
    by_id, by_key, other = await engine.submit([task, new(1, idempotency_key="k"), new(2, idempotency_key="k")])
    assert [(answer.status, answer.id) for answer in (by_id, by_key, other)] == [
        (Status.DUPLICATE, task.id),
        (Status.DUPLICATE, task.id),
        (Status.CONFLICT, task.id),
    ]
    assert await engine.get([task.id]) == (Gone(task.id, State.COMPLETED),)
    clock.advance("73h")
    assert await engine.get([task.id]) == (None,)
    assert await submit_one(engine, 1, idempotency_key="k") != task.id
