"""get and list: records as they are; following the cursors neither skips nor repeats."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Filter, Target
from taskmill.retry import Retry
from taskmill.task import Gone, State, Task, Unique, new_id
from tests.conformance.tools import all_tasks, new, record, state, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import make, settle


async def test_get_answers_in_the_order_asked(engine: Engine) -> None:
    first, second = await submit_many(engine, 2)
    gone = await make(engine, State.DEAD)
    await engine.delete([Target(gone.id)])
    unknown = new_id()
    found = await engine.get([second, unknown, gone.id, first, second])
    assert [task.id if isinstance(task, Task) else task for task in found] == [second, None, Gone(gone.id, State.DEAD), first, second]
    assert await engine.get([]) == ()


async def test_a_record_has_everything_that_was_submitted(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "some", b'{"cap": 5}')
    task = new(
        {"text": "grüße"},
        queue="line",
        priority=3,
        run_at=clock.now() + HOUR,
        retry=Retry(max_retries=7),
        timeout=MINUTE,
        max_crashes=9,
        expires_at=clock.now() + 2 * HOUR,
        idempotency_key="k",
        idempotency_window=5 * HOUR,
        unique=Unique("u", "started", "replace"),
        tenant="acme",
        headers={"traceparent": "00-1"},
        tags={"run": "7"},
        limits=("some:x",),
        fair_key="share",
        order_key="o",
    )
    await submit(engine, task)
    found = await record(engine, task.id)
    for name in (
        "payload",
        "queue",
        "priority",
        "run_at",
        "retry",
        "timeout",
        "max_crashes",
        "expires_at",
        "idempotency_key",
        "idempotency_window",
        "unique",
        "tenant",
    ):
        assert getattr(found, name) == getattr(task, name), name
    assert (dict(found.headers), dict(found.tags), found.limits, found.fair_key, found.order_key) == (
        {"traceparent": "00-1"},
        {"run": "7"},
        ("some:x",),
        "share",
        "o",
    )
    assert (found.state, found.version, found.executions, found.created_at, found.started_at) == (State.SCHEDULED, 1, 0, clock.now(), None)


async def test_a_running_record_shows_its_lease(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.RUNNING)
    task = await record(engine, made.id)
    assert made.claimed
    assert (task.state, task.worker, task.token, task.executions) == (State.RUNNING, made.holder.id, made.claimed.token, 1)
    assert made.claimed.claimed_at == clock.now()


async def test_what_is_due_reads_as_pending(engine: Engine, clock: ManualClock) -> None:
    scheduled, retrying = await make(engine, State.SCHEDULED), await make(engine, State.RETRYING)
    running = await make(engine, State.RUNNING)
    assert running.claimed
    await running.holder.done(running.claimed, ending=Ending.WAITING, signals=("go",), deadline=HOUR)
    waiting = await make(engine, State.WAITING)
    clock.advance(HOUR // SECOND - 1)
    assert {task.id: task.state for task in await all_tasks(engine)} == {
        scheduled.id: State.SCHEDULED,
        retrying.id: State.RETRYING,
        running.id: State.WAITING,
        waiting.id: State.WAITING,
    }
    clock.advance(1)
    due = {scheduled.id, retrying.id, running.id}
    assert {await state(engine, id) for id in due} == {State.PENDING}
    assert {task.id for task in await all_tasks(engine, Filter(states=frozenset({State.PENDING})))} == due
    assert await all_tasks(engine, Filter(states=frozenset({State.SCHEDULED, State.RETRYING}))) == []
    assert [task.id for task in await all_tasks(engine, Filter(states=frozenset({State.WAITING})))] == [waiting.id]


@pytest.mark.parametrize("wanted", list(State))
async def test_by_state(engine: Engine, wanted: State) -> None:
    made = {now: (await make(engine, now)).id for now in State}
    found = await all_tasks(engine, Filter(states=frozenset({wanted})))
    assert [(task.id, task.state) for task in found] == [(made[wanted], wanted)]


async def test_by_several_states(engine: Engine) -> None:
    made = {now: (await make(engine, now)).id for now in State}
    which = Filter(states=frozenset({State.DEAD, State.RUNNING, State.SCHEDULED}))
    assert {task.id for task in await all_tasks(engine, which)} == {made[State.DEAD], made[State.RUNNING], made[State.SCHEDULED]}


async def some_of_everything(engine: Engine, clock: ManualClock) -> dict[str, str]:
    """Eight tasks, named for how they differ."""
    tasks = {
        "plain": new(),
        "type": new(type="other"),
        "queue": new(queue="line"),
        "tenant": new(tenant="acme"),
        "one tag": new(tags={"run": "7"}),
        "two tags": new(tags={"run": "7", "kind": "full"}),
        "other tag": new(tags={"run": "77"}),
        "all": new(type="other", queue="line", tenant="acme", tags={"run": "7"}),
    }
    for task in tasks.values():
        await submit(engine, task)
        clock.advance(1)
    return {task.id: name for name, task in tasks.items()}


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (Filter(), {"plain", "type", "queue", "tenant", "one tag", "two tags", "other tag", "all"}),
        (Filter(types=frozenset({"other"})), {"type", "all"}),
        (Filter(types=frozenset({"other", "work"}), queues=frozenset({"line"})), {"queue", "all"}),
        (Filter(queues=frozenset({"line", "nothing"})), {"queue", "all"}),
        (Filter(tenant="acme"), {"tenant", "all"}),
        (Filter(tenant=""), {"plain", "type", "queue", "one tag", "two tags", "other tag"}),
        (Filter(tags={"run": "7"}), {"one tag", "two tags", "all"}),
        (Filter(tags={"run": "7", "kind": "full"}), {"two tags"}),
        (Filter(tags={"run": "8"}), set()),
        (Filter(types=frozenset({"other"}), queues=frozenset({"line"}), tenant="acme", tags={"run": "7"}, states=frozenset({State.PENDING})), {"all"}),
        (Filter(types=frozenset({"other"}), states=frozenset({State.DEAD})), set()),
    ],
)
async def test_by_every_kind_of_condition(engine: Engine, clock: ManualClock, which: Filter, expected: set[str]) -> None:
    names = await some_of_everything(engine, clock)
    assert {names[task.id] for task in await all_tasks(engine, which)} == expected


async def test_by_time_of_creation_half_open(engine: Engine, clock: ManualClock) -> None:
    start = clock.now()
    names = await some_of_everything(engine, clock)
    first, third = start, start + 2 * SECOND
    found = await all_tasks(engine, Filter(created_from=first, created_to=third))
    assert [names[task.id] for task in found] == ["type", "plain"]
    assert len(await all_tasks(engine, Filter(created_from=third))) == 6
    assert len(await all_tasks(engine, Filter(created_to=third + 1))) == 3
    assert await all_tasks(engine, Filter(created_from=third, created_to=third)) == []


async def test_newest_first(engine: Engine, clock: ManualClock) -> None:
    ids = await submit_many(engine, 5)
    clock.advance(1)
    ids += await submit_many(engine, 5, priority=3)
    assert [task.id for task in await all_tasks(engine)] == ids[::-1]


@pytest.mark.parametrize(
    "which", [Filter(), Filter(tags={"run": "7"}), Filter(types=frozenset({"work"})), Filter(tenant="acme"), Filter(states=frozenset({State.PENDING}))]
)
async def test_pages_neither_skip_nor_repeat_while_tasks_are_added(engine: Engine, clock: ManualClock, which: Filter) -> None:
    ids = await submit_many(engine, 23, tags={"run": "7"}, tenant="acme")
    found: list[str] = []
    cursor = None
    for _ in range(20):
        page = await engine.list(which, after=cursor, n=5)
        assert len(page.tasks) <= 5
        found += [task.id for task in page.tasks]
        if (cursor := page.cursor) is None:
            break
        clock.advance("1ms")
        await submit_many(engine, 4, tags={"run": "7"}, tenant="acme")
    assert found == ids[::-1]


async def test_pages_neither_skip_nor_repeat_while_tasks_end_and_go(engine: Engine) -> None:
    ids = await submit_many(engine, 20)
    hand = await worker(engine)
    claimed = {task.id: task for task in await hand.claim(20)}
    found: list[str] = []
    cursor, removed = None, []
    for number in range(10):
        page = await engine.list(after=cursor, n=4)
        found += [task.id for task in page.tasks]
        if (cursor := page.cursor) is None:
            break
        gone = ids[number]
        removed.append(gone)
        await hand.done(claimed[gone])
        await engine.delete([Target(gone)])
        await engine.delete([Target(page.tasks[-1].id)])
    assert len(found) == len(set(found))
    assert set(ids) - set(removed) <= set(found)


async def test_a_page_of_exactly_the_rest(engine: Engine) -> None:
    ids = await submit_many(engine, 6)
    page = await engine.list(n=3)
    rest = await engine.list(after=page.cursor, n=3)
    assert [task.id for task in (*page.tasks, *rest.tasks)] == ids[::-1]
    if rest.cursor is not None:
        last = await engine.list(after=rest.cursor, n=3)
        assert (last.tasks, last.cursor) == ((), None)


async def test_an_empty_store(engine: Engine) -> None:
    page = await engine.list()
    assert (page.tasks, page.cursor) == ((), None)


async def test_list_and_get_show_the_same(engine: Engine, clock: ManualClock) -> None:
    for now in State:
        await make(engine, now, tags={"state": str(now)})
    expiring = await submit_one(engine, expires_at=clock.now() + MINUTE)
    clock.advance("2m")
    await settle(engine)
    listed = await all_tasks(engine)
    assert tuple(listed) == await engine.get([task.id for task in listed])
    assert expiring in {task.id for task in listed}


async def test_matching_pages_through_the_ids_that_list_shows(engine: Engine) -> None:
    ids = await submit_many(engine, 7, tenant="acme", tags={"a": "1"})
    await submit_many(engine, 2)
    for which in (Filter(), Filter(tenant="acme"), Filter(tags={"a": "1"}, states=frozenset({State.PENDING})), Filter(types=frozenset({"unheard-of"}))):
        shown = [task.id for task in await all_tasks(engine, which)]
        found: list[str] = []
        page = await engine.matching(which, n=3)
        while True:
            found += page.ids
            if page.cursor is None:
                break
            page = await engine.matching(which, after=page.cursor, n=3)
        assert found == shown
    assert sorted([task.id for task in await all_tasks(engine, Filter(tenant="acme"))]) == sorted(ids)
