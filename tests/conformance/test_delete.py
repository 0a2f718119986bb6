"""delete: an ended task's record is removed; its id and key stay known for their window. A live one is refused."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Engine, Filter, Status, Target
from taskmill.task import Gone, State, Task, new_id
from tests.conformance.tools import accepted, all_tasks, new, record, states, submit, submit_many
from tests.conformance.tools_b import ALIVE, ENDED, led, make, seen, the_only


@pytest.mark.parametrize("now", ENDED)
async def test_an_ended_task_is_removed_and_remembered(engine: Engine, clock: ManualClock, now: State) -> None:
    made = await make(engine, now)
    clock.advance("1h")
    changed = the_only(await engine.delete([await seen(engine, made.id)]))
    assert (changed.task, changed.done, changed.code) == (made.id, True, None)
    assert await engine.get([made.id]) == (Gone(made.id, now),)
    assert await all_tasks(engine) == []
    clock.advance("70h")
    assert await engine.get([made.id]) == (Gone(made.id, now),)
    clock.advance("2h")
    assert await engine.get([made.id]) == (None,)


@pytest.mark.parametrize("now", ALIVE)
async def test_a_live_task_is_refused(engine: Engine, now: State) -> None:
    made = await make(engine, now)
    before = await record(engine, made.id)
    changed = the_only(await engine.delete([Target(made.id)]))
    assert (changed.done, changed.state, changed.code) == (False, now, "not_terminal")
    assert await record(engine, made.id) == before


async def test_a_repeat_with_the_version_seen_answers_as_the_first(engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    target = await seen(engine, made.id)
    first = the_only(await engine.delete([target]))
    assert first.done
    again = the_only(await engine.delete([target]))
    assert (again.task, again.done, again.code) == (made.id, True, None)


async def test_unknown_gone_and_changed_tasks_are_refused_each_alone(engine: Engine) -> None:
    gone, stale, good = [await make(engine, State.DEAD) for _ in range(3)]
    await engine.delete([Target(gone.id)])
    unknown = new_id()
    changes = await engine.delete([Target(unknown), Target(gone.id), Target(stale.id, 99), await seen(engine, good.id)])
    assert [(changed.task, changed.done, changed.code) for changed in changes.tasks] == [
        (unknown, False, "not_found"),
        (gone.id, False, "expired"),
        (stale.id, False, "stale_version"),
        (good.id, True, None),
    ]
    assert await states(engine, [stale.id]) == [State.DEAD]


async def test_the_id_stays_known(engine: Engine, clock: ManualClock) -> None:
    task = new("a", queue="line")
    made = await make(engine, State.COMPLETED, id=task.id, queue="line", payload="a")
    await engine.delete([Target(made.id)])
    [same, other] = [(await engine.submit([each]))[0] for each in (task, new("b", queue="line", id=task.id))]
    assert (same.status, same.id) == (Status.DUPLICATE, task.id)
    assert (other.status, other.id) == (Status.CONFLICT, task.id)
    assert await engine.get([task.id]) == (Gone(task.id, State.COMPLETED),)
    clock.advance("73h")
    await submit(engine, task)
    assert isinstance((await engine.get([task.id]))[0], Task)


async def test_the_idempotency_key_stays_known(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED, queue="line", idempotency_key="k", idempotency_window=HOUR)
    await engine.delete([Target(made.id)])
    clock.advance("59m")
    [answer] = await engine.submit([new(queue="line", idempotency_key="k")])
    assert (answer.status, answer.id) == (Status.DUPLICATE, made.id)
    clock.advance("1m")
    fresh = new(queue="line", idempotency_key="k")
    [answer] = await engine.submit([fresh])
    assert accepted(answer) == fresh.id


async def test_what_is_owed_is_delivered_first(engine: Engine) -> None:
    await engine.put("outbox", "ended", b"{}")
    made = await make(engine, State.COMPLETED)
    target = await seen(engine, made.id)
    changed = the_only(await engine.delete([target]))
    assert (changed.done, changed.state, changed.code) == (False, State.COMPLETED, "undelivered")
    term = await led(engine, "outbox")
    [entry] = await engine.outbox("ended", "", 10, term)
    assert await engine.outbox("ended", entry.cursor, 10, term) == ()
    assert the_only(await engine.delete([target])).done


async def test_by_filter_over_several_batches(engine: Engine) -> None:
    for now in ALIVE:
        await make(engine, now)
    ended = [await make(engine, now, tags={"old": "yes"}) for now in ENDED for _ in range(5)]
    kept = await make(engine, State.COMPLETED, tags={"old": "no"})
    cursor, rounds = None, 0
    while rounds == 0 or cursor is not None:
        changes = await engine.delete(Filter(tags={"old": "yes"}), after=cursor, n=4)
        assert len(changes.tasks) <= 4
        cursor, rounds = changes.cursor, rounds + 1
        assert rounds < 20
    assert {type(task) for task in await engine.get([made.id for made in ended])} == {Gone}
    assert len(await all_tasks(engine)) == len(ALIVE) + 1
    assert await states(engine, [kept.id]) == [State.COMPLETED]


async def test_a_filter_over_everything_touches_no_live_task(engine: Engine) -> None:
    live = [(await make(engine, now)).id for now in ALIVE]
    before = await states(engine, [*live, *await submit_many(engine, 3)])
    await engine.delete(Filter())
    assert (await states(engine, live)) == before[: len(live)]
    assert len(await all_tasks(engine)) == len(before)
