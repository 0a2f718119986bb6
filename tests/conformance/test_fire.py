"""fire: a schedule's tasks exist, once each by id, and it is advanced; refused when its version or the term is old."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Engine, Fired, Status, Term
from taskmill.errors import NotFound, StaleTerm, StaleVersion
from taskmill.task import NewTask, State
from tests.conformance.tools import Store, accepted, all_tasks, ids_of, new, state, states, worker
from tests.conformance.tools_b import decoded, deposed, guarded, item, led


async def scheduled(engine: Engine, overlap: str = "allow") -> int:
    put = await engine.put("schedule", "nightly", b'{"cron": "0 3 * * *", "overlap": "%s"}' % overlap.encode(), version=0)
    return put.version


async def fired_state(engine: Engine) -> dict[str, object]:
    found = await item(engine, "fired", "nightly")
    assert found
    value = decoded(found.value)
    assert isinstance(value, dict)
    return value


async def fire(engine: Engine, version: int, term: Term, *tasks: NewTask, next_at: int | None = 5) -> Fired:
    return await engine.fire("nightly", version, tasks, next_at, term)


async def test_it_makes_its_tasks_and_advances(engine: Engine, clock: ManualClock) -> None:
    version, term = await scheduled(engine), await led(engine)
    tasks = [new(1), new(2)]
    fired = await fire(engine, version, term, *tasks, next_at=clock.now() + HOUR)
    assert [accepted(answer) for answer in fired.tasks] == [task.id for task in tasks]
    after = await fired_state(engine)
    assert (after["next_at"], after["last"]) == (clock.now() + HOUR, tasks[-1].id)
    assert ids_of(await (await worker(engine)).claim(5)) == [task.id for task in tasks]


async def test_it_fires_again_with_the_version_it_has(engine: Engine) -> None:
    version, term = await scheduled(engine), await led(engine)
    tasks = [new(n) for n in range(3)]
    for number, task in enumerate(tasks):
        await fire(engine, version, term, task, next_at=number)
    assert {task.id for task in await all_tasks(engine)} == {task.id for task in tasks}
    assert (await fired_state(engine))["next_at"] == 2


async def test_a_repeat_makes_nothing_new(engine: Engine) -> None:
    version, term = await scheduled(engine), await led(engine)
    task = new()
    first = await fire(engine, version, term, task)
    again = await fire(engine, version, term, task)
    assert [(answer.status, answer.id) for answer in again.tasks] == [(Status.DUPLICATE, task.id)]
    assert again.version == first.version
    assert len(await all_tasks(engine)) == 1


async def test_no_task_and_no_next_time(engine: Engine) -> None:
    version, term = await scheduled(engine), await led(engine)
    fired = await fire(engine, version, term, next_at=None)
    assert fired.tasks == ()
    assert (await fired_state(engine))["next_at"] is None


async def test_it_says_of_which_cron_its_next_time_is(engine: Engine) -> None:
    """Versions begin anew when an operator's setting is dropped and put again; so a changed expression is known by itself."""
    version, term = await scheduled(engine), await led(engine)
    await fire(engine, version, term)
    assert (await fired_state(engine))["cron"] == "0 3 * * *"
    put = await engine.put("schedule", "nightly", b'{"cron": {"expression": "0 4 * * *"}}', version=version)
    assert (await fired_state(engine))["cron"] == "0 3 * * *"
    await fire(engine, put.version, term)
    assert (await fired_state(engine))["cron"] == {"expression": "0 4 * * *"}


async def test_overlap_skip_makes_none_while_the_last_one_lives(engine: Engine) -> None:
    version, term = await scheduled(engine, "skip"), await led(engine)
    first, second, third = new(1), new(2), new(3)
    assert [answer.id for answer in (await fire(engine, version, term, first)).tasks] == [first.id]
    hand = await worker(engine)
    claimed = await hand.claim_one()
    skipped = await fire(engine, version, term, second, next_at=7)
    assert skipped.tasks == ()
    assert (await fired_state(engine))["next_at"] == 7
    assert await engine.get([second.id]) == (None,)
    await hand.done(claimed)
    assert [answer.id for answer in (await fire(engine, version, term, third)).tasks] == [third.id]


async def test_overlap_skip_repeated_is_not_its_own_overlap(engine: Engine) -> None:
    version, term = await scheduled(engine, "skip"), await led(engine)
    task = new()
    for _ in range(3):
        assert [answer.id for answer in (await fire(engine, version, term, task)).tasks] == [task.id]


async def test_overlap_replace_cancels_the_last_one(engine: Engine) -> None:
    version, term = await scheduled(engine, "replace"), await led(engine)
    first, second, third = new(1), new(2), new(3)
    await fire(engine, version, term, first)
    await fire(engine, version, term, second)
    assert await states(engine, [first.id, second.id]) == [State.CANCELLED, State.PENDING]
    hand = await worker(engine)
    claimed = await hand.claim_one()
    assert claimed.id == second.id
    await fire(engine, version, term, third)
    assert await states(engine, [second.id, third.id]) == [State.RUNNING, State.PENDING]
    assert (await hand.beat()).cancelled == (second.id,)


async def test_overlap_replace_repeated_does_not_cancel_its_own(engine: Engine) -> None:
    version, term = await scheduled(engine, "replace"), await led(engine)
    task = new()
    for _ in range(3):
        await fire(engine, version, term, task)
    assert await state(engine, task.id) is State.PENDING


async def test_a_task_that_is_refused_is_told(engine: Engine) -> None:
    """Otherwise a schedule of a type that nobody knows would fire into nothing for ever."""
    version, term = await scheduled(engine), await led(engine)
    fired = await fire(engine, version, term, new(type="unknown", queue=None), new())
    assert [answer.status is Status.REFUSED for answer in fired.tasks] == [True, False]


async def test_an_unknown_schedule(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.fire("nobody", 1, [new()], None, await led(engine))


async def test_an_old_version_makes_nothing(engine: Engine) -> None:
    version, term = await scheduled(engine), await led(engine)
    put = await engine.put("schedule", "nightly", b'{"cron": "0 4 * * *", "overlap": "allow"}', version=version)
    with pytest.raises(StaleVersion):
        await fire(engine, version, term, new())
    assert await all_tasks(engine) == []
    await fire(engine, put.version, term, new())
    assert len(await all_tasks(engine)) == 1


async def test_a_deposed_leader_makes_nothing(engine: Engine, clock: ManualClock) -> None:
    version = await scheduled(engine)
    old = await deposed(engine, clock)
    with pytest.raises(StaleTerm):
        await fire(engine, version, old, new())
    assert await all_tasks(engine) == []
    assert await item(engine, "fired", "nightly") is None


async def test_the_same_firing_from_many_sides_makes_one_task(engine: Engine, store: Store) -> None:
    version, term = await scheduled(engine), await led(engine)
    engines = [engine, *await store.engines(2)]
    task = new()
    answers = await guarded(asyncio.gather(*(fire(engines[n % 3], version, term, task) for n in range(9))))
    assert {answer.id for fired in answers for answer in fired.tasks} == {task.id}
    assert len(await all_tasks(engine)) == 1


async def test_a_dropped_schedule_forgets_when_it_fired(engine: Engine) -> None:
    """Put again some day, it is a new one: it makes up for nothing."""
    version, term = await scheduled(engine), await led(engine)
    await fire(engine, version, term, new())
    await engine.drop("schedule", "nightly")
    assert await item(engine, "fired", "nightly") is None


async def test_a_schedule_has_not_fired_before_it_made_a_task(engine: Engine, clock: ManualClock) -> None:
    version, term = await scheduled(engine), await led(engine)
    await fire(engine, version, term, next_at=clock.now() + HOUR)
    assert "fired_at" not in await fired_state(engine)
    clock.advance(1)
    await fire(engine, version, await led(engine), new())
    assert (await fired_state(engine))["fired_at"] == clock.now()
