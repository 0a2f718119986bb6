"""claim: the tasks that are next, ready and admitted become running under new tokens."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import HOUR, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Room, Target
from taskmill.errors import Conflict
from taskmill.retry import Retry
from taskmill.task import Edge, Priority, State
from tests.conformance.tools import QUEUE, Store, Worker, encode, ids_of, lose, new, record, state, step, submit, submit_many, submit_one, worker


async def test_a_claimed_task_runs_under_its_lease(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    id = await submit_one(engine, {"user": 42})
    clock.advance(3)
    [claimed] = await one.claim(5)
    task = await record(engine, id)
    assert (task.state, task.worker, task.token, task.executions, task.version) == (State.RUNNING, one.id, claimed.token, 1, 2)
    assert (claimed.id, claimed.worker, claimed.attempt, claimed.version) == (id, one.id, 1, 2)
    assert (claimed.claimed_at, claimed.created_at) == (clock.now(), clock.now() - 3 * SECOND)


async def test_a_claimed_task_brings_all_its_handler_needs(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await engine.put("limit", "few", b'{"cap": 5}')
    given = new(
        {"user": 42},
        priority=Priority.CRITICAL,
        retry=Retry.fixed("9s", max_retries=7),
        timeout=90 * SECOND,
        max_crashes=5,
        expires_at=clock.now() + HOUR,
        tenant="acme",
        headers={"traceparent": "00-1-2-01"},
        idempotency_key="order-7",
        limits=("few",),
    )
    await submit(engine, given)
    [claimed] = await one.claim()
    kept = ("id", "type", "queue", "payload", "priority", "retry", "timeout", "max_crashes", "expires_at", "tenant", "limits", "headers", "idempotency_key")
    assert {name: getattr(claimed, name) for name in kept} == {name: getattr(given, name) for name in kept}
    assert (claimed.failures, claimed.crashes, claimed.unwind, claimed.must_end, claimed.phase) == (0, 0, False, None, None)
    assert (dict(claimed.checkpoints), claimed.signals, claimed.results) == ({}, (), ())


async def test_a_claimed_task_says_since_when_it_was_ready(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    began = clock.now()
    await submit(engine, new("later", delay=10 * SECOND))
    clock.advance(15)
    [delayed] = await one.claim()
    assert delayed.ready_at == began + 10 * SECOND
    await one.done(delayed, ending=Ending.RETRY, after=5 * SECOND)
    clock.advance(7)
    [again] = await one.claim()
    assert (again.ready_at, again.claimed_at) == (began + 20 * SECOND, began + 22 * SECOND)
    await one.done(again, ending=Ending.RELEASED)
    clock.advance(1)
    [released] = await one.claim()
    assert released.ready_at == again.ready_at


async def test_the_next_attempt_has_what_was_kept_before(engine: Engine) -> None:
    one = await worker(engine)
    child = await submit_one(engine, "child")
    await one.done(await one.claim_one(), result=encode(1))
    id = await submit_one(engine, edges=(Edge(child),))
    number = await engine.signal(id, "approved", encode("yes"), "signal-1")
    [first] = await one.claim()
    assert [(signal.number, signal.name, signal.data, signal.id) for signal in first.signals] == [(number, "approved", encode("yes"), "signal-1")]
    assert await engine.checkpoint([step(first, "charged", {"receipt": 9}, phase="running")]) == ()
    await one.done(first, ending=Ending.RETRY)
    [second] = await one.claim()
    assert (second.attempt, second.failures, second.phase) == (2, 1, "running")
    assert dict(second.checkpoints) == {"charged": encode({"receipt": 9})}
    assert (second.signals, second.results) == (first.signals, first.results)
    assert second.token > first.token


async def test_a_worker_must_have_joined(engine: Engine) -> None:
    await submit_one(engine)
    with pytest.raises(Conflict) as refused:
        await engine.claim("nobody", 1, [QUEUE], Room(1))
    assert refused.value.code == "unknown_worker"


async def test_an_empty_store_gives_nothing(engine: Engine) -> None:
    one = await worker(engine)
    answer = await engine.claim(one.id, 1, [QUEUE], Room(10))
    assert (answer.tasks, answer.next_at, answer.more) == ((), None, False)


async def test_only_the_queues_asked_for(engine: Engine) -> None:
    one = await worker(engine, queues=("a", "b", "c"))
    a, b = await submit(engine, new(queue="a"), new(queue="b"))
    assert await one.claim(10, queues=("c",)) == []
    assert ids_of(await one.claim(10, queues=("b",))) == [b]
    assert ids_of(await one.claim(10, queues=("a", "b", "c"))) == [a]


# The same request, asked again.


async def test_a_repeated_request_answers_the_same_tasks_and_takes_no_more(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 5)
    first = await one.claim(2)
    again = await one.claim_again(2)
    assert again == first
    assert await one.claim_again(10) == first
    assert ids_of(await one.claim(10)) == ids[2:]


async def test_a_repeated_request_answers_those_whose_leases_still_stand(engine: Engine) -> None:
    one = await worker(engine)
    await submit_many(engine, 5)
    first = await one.claim(3)
    await one.done(first[1])
    assert await one.claim_again(3) == [first[0], first[2]]


async def test_an_older_request_answers_its_own_tasks(engine: Engine) -> None:
    one = await worker(engine)
    a, b, _ = await submit_many(engine, 3)
    await one.claim(1)
    await one.claim(1)
    assert ids_of((await engine.claim(one.id, 1, [QUEUE], Room(1))).tasks) == [a]
    assert ids_of((await engine.claim(one.id, 2, [QUEUE], Room(1))).tasks) == [b]


async def test_request_numbers_are_of_their_worker(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    a, b = await submit_many(engine, 2)
    assert ids_of(await one.claim()) == [a]
    assert ids_of(await two.claim()) == [b]


async def test_a_repeated_request_does_not_count_a_second_attempt(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    await one.claim()
    await one.claim_again()
    task = await record(engine, id)
    assert (task.executions, task.version) == (1, 2)


# Tokens.


async def test_tokens_grow_over_all_tasks_and_claimers(store: Store, engine: Engine) -> None:
    one, two = await worker(engine), await worker(await store.engine())
    await submit_many(engine, 9)
    tokens = [task.token for each in (one, two, one) for task in await each.claim(3)]
    assert tokens == sorted(set(tokens))


async def test_a_token_is_never_given_again(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await submit_one(engine, max_crashes=100)
    seen = []
    for ending in (Ending.RELEASED, Ending.RETRY, Ending.SNOOZED, Ending.CRASHED):
        [task] = await one.claim()
        seen.append(task.token)
        await one.done(task, ending=ending)
    [task] = await one.claim()
    two = await worker(engine)
    await lose(engine, clock, two)
    seen += [task.token, (await two.claim_one()).token]
    assert seen == sorted(set(seen))


# Time.


@pytest.mark.parametrize("how", ["delay", "retry", "snooze"])
async def test_no_task_starts_before_its_time(engine: Engine, clock: ManualClock, how: str) -> None:
    one = await worker(engine)
    id = await submit_one(engine, delay=10 * SECOND if how == "delay" else None)
    if how != "delay":
        await one.done(await one.claim_one(), ending=Ending.RETRY if how == "retry" else Ending.SNOOZED, after=10 * SECOND)
    due = clock.now() + 10 * SECOND
    one.request += 1
    answer = await engine.claim(one.id, one.request, [QUEUE], Room(1))
    assert answer.tasks == ()
    assert answer.next_at is not None
    assert clock.now() < answer.next_at <= due
    clock.advance("9999999us")
    assert await one.claim() == []
    clock.advance("1us")
    assert ids_of(await one.claim()) == [id]


async def test_the_next_time_is_that_of_the_first_to_be_due(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await submit(engine, new(delay=HOUR), new(delay=20 * SECOND), new(delay=30 * SECOND, priority=Priority.CRITICAL))
    answer = await engine.claim(one.id, 1, [QUEUE], Room(1))
    assert answer.next_at is not None
    assert clock.now() < answer.next_at <= clock.now() + 20 * SECOND


async def test_an_expired_task_is_never_started(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    id = await submit_one(engine, expires_at=clock.now() + 10 * SECOND)
    later = await submit_one(engine, expires_at=clock.now() + 11 * SECOND)
    clock.advance(10)
    assert ids_of(await one.claim(10)) == [later]
    assert await state(engine, id) is not State.RUNNING


# Room.


async def test_never_more_than_the_slots(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 30)
    assert await one.claim(0) == []
    assert ids_of(await one.claim(1)) == ids[:1]
    assert ids_of(await one.claim(20)) == ids[1:21]
    assert ids_of(await one.claim(20)) == ids[21:]
    assert await one.claim(20) == []


async def test_slots_per_type(engine: Engine) -> None:
    one = await worker(engine, "heavy", "light")
    heavy = await submit_many(engine, 20, type="heavy")
    light = await submit_many(engine, 3, type="light")
    claimed = await one.claim(10, types={"heavy": 2})
    assert sorted(ids_of(claimed)) == sorted(heavy[:2] + light)
    assert await one.claim(10, types={"heavy": 0}) == []
    assert ids_of(await one.claim(10, types={"heavy": 1, "light": 1})) == heavy[2:3]


async def test_prefetch_comes_from_the_common_lane_only(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await engine.put("limit", "many", b'{"cap": 100}')
    limited = await submit_many(engine, 5, limits=("many",))
    assert ids_of(await one.claim(2, prefetch=3)) == limited[:2]
    clock.advance(1)
    plain = await submit_many(engine, 5)
    claimed = ids_of(await one.claim(4, prefetch=3))
    assert len(claimed) == 7
    assert claimed[:3] == limited[2:]
    assert sorted(claimed[3:]) == plain[:4]


async def test_prefetch_is_beyond_the_slots(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 9)
    assert ids_of(await one.claim(2, prefetch=3)) == ids[:5]


async def test_an_answer_has_at_most_so_many_bytes_of_payload_and_at_least_one_task(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit(engine, *(new("x" * 400) for _ in range(5)))
    one.request += 1
    answer = await engine.claim(one.id, one.request, [QUEUE], Room(5, max_bytes=1_000))
    assert (ids_of(answer.tasks), answer.more) == (ids[:2], True)
    one.request += 1
    answer = await engine.claim(one.id, one.request, [QUEUE], Room(5, max_bytes=10))
    assert (ids_of(answer.tasks), answer.more) == (ids[2:3], True)
    assert ids_of(await one.claim(5)) == ids[3:]


# Types.


async def test_a_worker_gets_only_types_it_has_registered(engine: Engine) -> None:
    one, two = await worker(engine, "mine"), await worker(engine, "mine", "foreign")
    foreign = await submit_many(engine, 300, type="foreign", priority=Priority.HIGH)
    mine = await submit_many(engine, 3, type="mine")
    taken = []
    for _ in range(10):
        taken += ids_of(await one.claim(10))
    assert taken == mine
    assert ids_of(await two.claim_all()) == foreign


async def test_a_type_that_nobody_knows_stays_where_it_is(engine: Engine) -> None:
    one = await worker(engine, "mine")
    id = await submit_one(engine, type="foreign")
    before = await record(engine, id)
    assert await one.claim(10) == []
    assert await record(engine, id) == before


async def test_foreign_types_keep_their_age(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine, "mine")
    ids = []
    for n in range(6):
        ids.append(await submit_one(engine, type="foreign" if n % 2 == 0 else "other"))
        clock.advance(1)
    assert await one.claim(10) == []
    two = await worker(engine, "foreign", "other")
    assert [(await two.claim_one()).id for _ in ids] == ids


# Pauses.


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(engine: Engine) -> None:
    one = await worker(engine, queues=(QUEUE, "other"))
    held = await submit_many(engine, 2)
    [other] = await submit_many(engine, 1, queue="other")
    await engine.put("pause", f"queue:{QUEUE}", b"{}")
    assert ids_of(await one.claim(10)) == [other]
    await engine.drop("pause", f"queue:{QUEUE}")
    assert ids_of(await one.claim(10)) == held


async def test_a_paused_type_gives_nothing_until_it_is_resumed(engine: Engine) -> None:
    one = await worker(engine, "slow", "quick")
    slow = await submit_many(engine, 2, type="slow")
    quick = await submit_many(engine, 2, type="quick")
    await engine.put("pause", "type:slow", b"{}")
    assert ids_of(await one.claim(10)) == quick
    await engine.drop("pause", "type:slow")
    assert ids_of(await one.claim(10)) == slow


async def test_a_pause_is_seen_by_every_engine_at_once(store: Store, engine: Engine) -> None:
    one = await worker(engine)
    two = await worker(await store.engine())
    first, second = await submit_many(engine, 2)
    assert ids_of(await two.claim()) == [first]
    await engine.put("pause", f"queue:{QUEUE}", b"{}")
    assert await two.claim() == []
    await two.engine.drop("pause", f"queue:{QUEUE}")
    assert ids_of(await one.claim()) == [second]


async def test_what_runs_when_its_queue_is_paused_can_end(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    [task] = await one.claim()
    await engine.put("pause", f"queue:{QUEUE}", b"{}")
    await one.done(task)
    assert await state(engine, id) is State.COMPLETED


# What cannot be claimed.


async def test_only_what_is_ready_is_claimed(engine: Engine) -> None:
    one = await worker(engine)
    ended = [await submit_one(engine) for _ in range(3)]
    for ending in (Ending.COMPLETED, Ending.DEAD, Ending.CANCELLED):
        await one.done(await one.claim_one(), ending=ending)
    running = await submit_one(engine)
    await one.claim_one()
    waiting = await submit_one(engine, edges=(Edge(running),))
    cancelled = await submit_one(engine)
    await engine.cancel([Target(cancelled, 1)])
    assert await one.claim(10) == []
    assert {await state(engine, id) for id in ended} == {State.COMPLETED, State.DEAD, State.CANCELLED}
    assert [await state(engine, id) for id in (running, waiting, cancelled)] == [State.RUNNING, State.WAITING, State.CANCELLED]


# Races.


async def test_two_claimers_racing_never_get_the_same_task(store: Store, engine: Engine) -> None:
    ids = await submit_many(engine, 400)
    claimers = [await worker(each) for each in (engine, await store.engine())]

    async def claim_all(one: Worker) -> list[str]:
        taken: list[str] = []
        while batch := await one.claim(7):
            taken += ids_of(batch)
        return taken

    one, two = await asyncio.gather(*map(claim_all, claimers))
    assert sorted(one + two) == sorted(ids)


async def test_many_claimers_racing_for_one_task(store: Store, engine: Engine) -> None:
    claimers = [await worker(each) for each in await store.engines(8)]
    for _ in range(5):
        id = await submit_one(engine)
        answers = await asyncio.gather(*(one.claim(3) for one in claimers))
        assert [ids_of(answer) for answer in answers if answer] == [[id]]


async def test_submitters_and_claimers_racing_lose_nothing(store: Store, engine: Engine) -> None:
    claimers = [await worker(each) for each in await store.engines(3)]
    submitted: list[str] = []
    finished: list[str] = []
    over = asyncio.Event()

    async def submit_all() -> None:
        for _ in range(20):
            submitted.extend(await submit_many(engine, 10))
        over.set()

    async def work(one: Worker) -> None:
        while True:
            last = over.is_set()
            batch = await one.claim(5)
            if batch:
                await one.done(*batch)
                finished.extend(ids_of(batch))
            elif last:
                return

    await asyncio.gather(submit_all(), *map(work, claimers))
    assert sorted(finished) == sorted(submitted)
    assert {task.state for task in [await record(engine, id) for id in submitted[::20]]} == {State.COMPLETED}
