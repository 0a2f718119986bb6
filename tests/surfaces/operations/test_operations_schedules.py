"""Schedules: seen, put, paused, fired by hand, and how many may fire each second."""

from __future__ import annotations

import pytest

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.cron import Cron
from taskmill.engine import Engine, Joining, Status
from taskmill.errors import Conflict, InvalidInput, NotFound, StaleVersion
from taskmill.operations import Operations, schedules
from taskmill.schedule import FIRE_TIME, SCHEDULE, Schedule, tasks_for
from taskmill.task import State
from tests.conformance.tools_b import led

HOURLY = Schedule(type="report", cron=Cron.parse("@hourly"), queue="default", payload=b'{"region":7}', tags={"kind": "report"})
EACH_SECOND = Schedule(type="report", cron=Cron.parse("* * * * * *"), queue="default")


async def declare(engine: Engine, **declared: Schedule) -> None:
    """An app that declares these schedules starts a worker."""
    await engine.join(Joining(worker="w", queues=("default",), types={}, app="app", schedules={name: each.encode() for name, each in declared.items()}))


async def test_none_yet(operations: Operations) -> None:
    assert await operations.schedules() == ()
    with pytest.raises(NotFound, match="there are none yet") as raised:
        await operations.schedule("nightly")
    assert (raised.value.code, raised.value.status) == ("unknown_schedule", 404)


async def test_put_and_see(operations: Operations) -> None:
    put = await operations.put_schedule("hourly", HOURLY)
    assert (put.name, put.schedule, put.version, put.operator, put.paused, put.next_at, put.last) == ("hourly", HOURLY, 1, True, False, None, None)
    assert await operations.schedule("hourly") == put
    assert await operations.schedules() == (put,)


async def test_put_again_is_the_same(operations: Operations) -> None:
    first = await operations.put_schedule("hourly", HOURLY, version=0)
    assert await operations.put_schedule("hourly", HOURLY, version=0) == first
    second = await operations.put_schedule("hourly", EACH_SECOND, version=first.version)
    assert await operations.put_schedule("hourly", EACH_SECOND, version=first.version) == second
    with pytest.raises(StaleVersion):
        await operations.put_schedule("hourly", HOURLY, version=first.version)


async def test_a_name_that_is_none(operations: Operations) -> None:
    with pytest.raises(InvalidInput) as raised:
        await operations.put_schedule("No Name", HOURLY)
    assert (raised.value.code, raised.value.field) == ("invalid_name", "name")


async def test_where_it_stands_once_it_has_fired(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    put = await operations.put_schedule("hourly", HOURLY)
    [task] = tasks_for("hourly", HOURLY, [clock.now()])
    await engine.fire("hourly", put.version, [task], clock.now() + MINUTE, await led(engine))
    info = await operations.schedule("hourly")
    assert (info.next_at, info.last, info.fired_at) == (clock.now() + MINUTE, task.id, clock.now())


async def test_what_this_program_cannot_read_hides_no_other(operations: Operations, engine: Engine) -> None:
    await engine.put("schedule", "strange", b'{"type": "report", "cron": "@hourly", "colour": "red"}')
    await operations.put_schedule("hourly", HOURLY)
    hourly, strange = await operations.schedules()
    assert (hourly.error, strange.schedule) == (None, None)
    assert strange.error is not None
    assert "colour" in strange.error
    for ask in (operations.trigger_schedule, operations.next_times):
        with pytest.raises(InvalidInput, match="cannot be read") as raised:
            await ask("strange")
        assert raised.value.code == "invalid_schedule"


# Over what code declares


async def test_a_person_s_stands_over_the_code_s(operations: Operations, engine: Engine) -> None:
    await declare(engine, hourly=HOURLY)
    declared = await operations.schedule("hourly")
    assert not declared.operator
    with pytest.raises(StaleVersion):
        await operations.put_schedule("hourly", EACH_SECOND, version=9)
    put = await operations.put_schedule("hourly", EACH_SECOND, version=declared.version)
    assert (put.schedule, put.operator) == (EACH_SECOND, True)
    await operations.delete_schedule("hourly")
    assert await operations.schedule("hourly") == declared
    with pytest.raises(Conflict, match="declared by code") as raised:
        await operations.delete_schedule("hourly")
    assert raised.value.code == "declared"
    assert raised.value.hint


async def test_delete_takes_its_pause_with_it(operations: Operations) -> None:
    await operations.put_schedule("hourly", HOURLY)
    await operations.pause_schedule("hourly")
    await operations.delete_schedule("hourly")
    with pytest.raises(NotFound):
        await operations.delete_schedule("hourly")
    assert not (await operations.put_schedule("hourly", HOURLY)).paused


# Pausing


async def test_pause_and_resume(operations: Operations) -> None:
    await operations.put_schedule("hourly", HOURLY)
    assert await operations.pause_schedule("hourly", reason="holidays")
    assert not await operations.pause_schedule("hourly", reason="holidays")
    info = await operations.schedule("hourly")
    assert (info.paused, info.reason) == (True, "holidays")
    assert await operations.resume_schedule("hourly")
    assert not await operations.resume_schedule("hourly")
    assert not (await operations.schedule("hourly")).paused


async def test_one_that_its_app_no_longer_declares_cannot_be_resumed(operations: Operations, engine: Engine) -> None:
    await declare(engine, hourly=HOURLY, nightly=HOURLY)
    await declare(engine, nightly=HOURLY)
    info = await operations.schedule("hourly")
    assert (info.paused, info.reason) == (True, "orphaned")
    with pytest.raises(Conflict, match="orphaned") as raised:
        await operations.resume_schedule("hourly")
    assert raised.value.code == "orphaned"
    assert raised.value.hint


@pytest.mark.parametrize("verb", ["schedule", "delete_schedule", "pause_schedule", "resume_schedule", "trigger_schedule", "next_times"])
async def test_a_schedule_nobody_named(operations: Operations, verb: str) -> None:
    await operations.put_schedule("nightly", HOURLY)
    with pytest.raises(NotFound, match="did you mean 'nightly'") as raised:
        await getattr(operations, verb)("nightli")
    assert raised.value.code == "unknown_schedule"


# By hand


async def test_trigger_makes_its_task_now_and_leaves_its_times(operations: Operations, clock: ManualClock) -> None:
    before = await operations.put_schedule("hourly", HOURLY)
    await operations.pause_schedule("hourly")
    first, second = await operations.trigger_schedule("hourly"), await operations.trigger_schedule("hourly")
    assert (first.status, second.status) == (Status.CREATED, Status.CREATED)
    assert first.id != second.id
    task = await operations.get(first.id)
    assert (task.state, task.type, task.payload, task.tags) == (State.PENDING, "report", b'{"region":7}', {"kind": "report"})
    assert task.headers[SCHEDULE] == "hourly"
    assert FIRE_TIME in task.headers
    after = await operations.schedule("hourly")
    assert (after.next_at, after.last, after.version) == (before.next_at, before.last, before.version)
    assert first.id not in {made.id for made in tasks_for("hourly", HOURLY, [clock.now()])}


async def test_trigger_of_a_type_nobody_has(operations: Operations) -> None:
    await operations.put_schedule("hourly", Schedule(type="unheard", cron=Cron.parse("@hourly")))
    with pytest.raises(InvalidInput) as raised:
        await operations.trigger_schedule("hourly")
    assert raised.value.code == "unknown_type"


async def test_next_times(operations: Operations, clock: ManualClock) -> None:
    await operations.put_schedule("each-second", EACH_SECOND)
    assert await operations.next_times("each-second", 3) == tuple(clock.now() + n * SECOND for n in (1, 2, 3))
    assert len(await operations.next_times("each-second")) == 5
    with pytest.raises(InvalidInput):
        await operations.next_times("each-second", -1)


# How many


async def test_a_quota_for_those_that_fire_often(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MOST_FREQUENT", 2)
    await operations.put_schedule("one", EACH_SECOND)
    await operations.put_schedule("two", Schedule(type="report", cron=Cron.parse("@every 30s"), queue="default"))
    with pytest.raises(InvalidInput) as raised:
        await operations.put_schedule("three", EACH_SECOND)
    assert (raised.value.status, raised.value.code, raised.value.field) == (422, "schedule_quota", "cron")
    await operations.put_schedule("three", Schedule(type="report", cron=Cron.parse("* * * * *"), queue="default"))
    await operations.put_schedule("two", EACH_SECOND)
    await operations.delete_schedule("one")
    await operations.put_schedule("three", EACH_SECOND)


async def test_the_quota_is_a_hundred(operations: Operations, engine: Engine) -> None:
    for n in range(schedules.MOST_FREQUENT):
        await engine.put("schedule", f"often-{n}", EACH_SECOND.encode())
    with pytest.raises(InvalidInput, match="100 schedules already fire"):
        await operations.put_schedule("once-more", EACH_SECOND)
