"""Schedules through the loop that fires them: one task for each fire time, whatever happens to clocks, settings and leaders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from taskmill.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from taskmill.engine import Engine, Fired, Joining, Status, Target
from taskmill.errors import AnswerLost
from taskmill.events import Kind
from taskmill.maintenance.schedules import Schedules
from taskmill.schedule import Schedule, tasks_for
from taskmill.task import State, TypeSettings
from tests.conformance.tools import all_tasks, record, worker
from tests.conformance.tools_b import decoded, item
from tests.surfaces.maintenance import HANGS, logged, made, opened, play, running, schedule

NOON = 1_800_014_400 * SECOND
"""2027-01-15T12:00:00Z."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def engine(clock: ManualClock) -> AsyncIterator[Engine]:
    async with opened(clock=clock) as engine:
        yield engine


@pytest.fixture
def schedules(engine: Engine) -> Schedules:
    return Schedules(engine, "me")


async def stored_next(engine: Engine, name: str = "tick") -> object:
    found = await item(engine, "fired", name)
    return None if found is None else decoded(found.value)["next_at"]


# The life of a schedule


async def test_a_schedule_begins_with_its_next_time(engine: Engine, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *", misfire="all"))
    assert await schedules.once() == 0
    assert await stored_next(engine) == NOON + HOUR
    assert await schedules.once() == 0
    assert await made(engine) == {}


async def test_it_makes_one_task_at_its_time(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *", payload=b'{"n":1}', priority=3))
    await schedules.once()
    clock.advance((HOUR - 1) / SECOND)
    assert await schedules.once() == 0
    clock.advance("1us")
    assert await schedules.once() == 1
    assert await schedules.once() == 0
    [task] = await all_tasks(engine)
    assert (task.run_at, task.payload, task.priority, task.state) == (NOON + HOUR, b'{"n":1}', 3, State.PENDING)
    assert await stored_next(engine) == NOON + 2 * HOUR


async def test_a_day_of_everything(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    for name, expression in {"tick": "*/20 * * * *", "noon": "0 12 * * *", "every": "@every 7h", "second": "30 0 13 * * *"}.items():
        await engine.put("schedule", name, schedule(expression))
    await play(schedules, clock, NOON + DAY)
    assert await made(engine) == {
        "tick": [NOON + n * 20 * MINUTE for n in range(1, 73)],
        "noon": [NOON + DAY],
        "every": [time for time in range(0, NOON + DAY + 1, 7 * HOUR) if time > NOON],
        "second": [NOON + HOUR + 30 * SECOND],
    }


async def test_many_at_once(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    for number in range(250):
        await engine.put("schedule", f"tick-{number}", schedule("0 * * * *"))
    await schedules.once()
    clock.advance("1h")
    assert await schedules.once() == 250
    assert set(map(tuple, (await made(engine)).values())) == {(NOON + HOUR,)}


async def test_overlap(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    for overlap in ("allow", "skip", "replace"):
        await engine.put("schedule", overlap, schedule("0 * * * *", overlap=overlap))
    await play(schedules, clock, NOON + 3 * HOUR)
    times = [NOON + n * HOUR for n in (1, 2, 3)]
    assert await made(engine) == {"allow": times, "skip": times[:1], "replace": times}
    live = [task.headers["taskmill-schedule"] for task in await all_tasks(engine) if task.state is State.PENDING]
    assert sorted(live) == ["allow", "allow", "allow", "replace", "skip"]


async def test_overlap_goes_on_when_the_last_one_has_ended(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *", overlap="skip"))
    await play(schedules, clock, NOON + HOUR)
    hand = await worker(engine, "work")
    await hand.done(await hand.claim_one())
    await play(schedules, clock, NOON + 2 * HOUR)
    assert await made(engine) == {"tick": [NOON + HOUR, NOON + 2 * HOUR]}


# What people change


@pytest.mark.parametrize(
    ("before", "after", "following"),
    [("0 0 * * *", "0 * * * *", NOON + 90 * MINUTE + 30 * MINUTE), ("0 * * * *", "0 15 * * *", NOON + 3 * HOUR), ("0 14 * * *", "0 14 * * *", NOON + 2 * HOUR)],
    ids=["sooner", "later", "same"],
)
async def test_a_changed_expression_counts_from_now(engine: Engine, clock: ManualClock, schedules: Schedules, before: str, after: str, following: int) -> None:
    await engine.put("schedule", "tick", schedule(before, misfire="all"))
    await schedules.once()
    clock.advance("90m")
    await engine.put("schedule", "tick", schedule(after, misfire="all"))
    assert await schedules.next_at() == following
    assert await schedules.once() == 0
    assert await stored_next(engine) == following


async def test_another_zone_is_another_entry(engine: Engine, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 15 * * *"))
    await schedules.once()
    await engine.put("schedule", "tick", schedule("0 15 * * *", "Asia/Kolkata"))
    await schedules.once()
    assert await stored_next(engine) == NOON + DAY - 150 * MINUTE


async def test_an_override_with_the_version_of_what_it_overrides(engine: Engine, schedules: Schedules) -> None:
    """What code declares and what an operator puts are counted apart, so the version alone does not tell them from each other."""
    declared = await engine.put("schedule", "tick", schedule("0 0 * * *"), operator=False)
    await schedules.once()
    assert (await engine.put("schedule", "tick", schedule("0 * * * *"))).version == declared.version
    await schedules.once()
    assert await stored_next(engine) == NOON + HOUR
    await engine.drop("schedule", "tick")
    await schedules.once()
    assert await stored_next(engine) == NOON + 12 * HOUR


async def test_another_payload_misses_no_time(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *", payload=b"1"))
    await schedules.once()
    clock.advance("61m")
    await engine.put("schedule", "tick", schedule("0 * * * *", payload=b"2"))
    assert await schedules.once() == 1
    [task] = await all_tasks(engine)
    assert (task.run_at, task.payload) == (NOON + HOUR, b"2")


async def test_what_is_dropped_fires_no_more(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *"))
    await schedules.once()
    await engine.drop("schedule", "tick")
    clock.advance("2h")
    assert await schedules.once() == 0
    assert await schedules.next_at() is None


async def test_paused_and_resumed(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    """No task while it is paused, and none afterwards for the times that passed."""
    await engine.put("schedule", "tick", schedule("0 * * * *", misfire="all"))
    await play(schedules, clock, NOON + HOUR)
    await engine.put("pause", "schedule:tick", b"{}")
    await schedules.once()
    assert await schedules.next_at() is None
    clock.advance("5h")
    assert await schedules.once() == 0
    await engine.drop("pause", "schedule:tick")
    clock.advance("30m")
    await play(schedules, clock, NOON + 7 * HOUR)
    assert await made(engine) == {"tick": [NOON + HOUR, NOON + 7 * HOUR]}


async def test_paused_before_it_was_ever_seen(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("pause", "schedule:tick", b"{}")
    await engine.put("schedule", "tick", schedule("0 * * * *", misfire="all"))
    await schedules.once()
    clock.advance("5h")
    await engine.drop("pause", "schedule:tick")
    await schedules.once()
    assert await made(engine) == {}
    assert await stored_next(engine) == NOON + 6 * HOUR


async def test_a_pause_of_one_is_a_pause_of_no_other(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    for name in ("tick", "tock"):
        await engine.put("schedule", name, schedule("0 * * * *"))
    await engine.put("pause", "schedule:tick", b"{}")
    await engine.put("pause", "queue:tock", b"{}")
    await play(schedules, clock, NOON + HOUR)
    assert await made(engine) == {"tock": [NOON + HOUR]}


async def test_what_an_app_declares_no_longer_fires_no_more(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    def joining(version: int, *names: str) -> Joining:
        declared = {name: schedule("0 * * * *") for name in names}
        return Joining(worker=f"w-{version}", queues=("default",), types={"work": TypeSettings()}, app="shop", version=version, schedules=declared)

    await engine.join(joining(1, "old", "kept"))
    await play(schedules, clock, NOON + HOUR)
    await engine.join(joining(2, "kept"))
    await play(schedules, clock, NOON + 2 * HOUR)
    assert await made(engine) == {"old": [NOON + HOUR], "kept": [NOON + HOUR, NOON + 2 * HOUR]}
    await engine.join(joining(3, "kept", "old"))
    await play(schedules, clock, NOON + 3 * HOUR)
    assert (await made(engine))["old"] == [NOON + HOUR, NOON + 3 * HOUR]


# Clocks that are set


@pytest.mark.parametrize(("misfire", "minutes"), [("once", [60]), ("skip", [59, 60]), ("all", list(range(1, 61)))], ids=["once", "skip", "all"])
@pytest.mark.parametrize("how", ["the clock jumps", "nobody was there"])
async def test_an_hour_ahead(engine: Engine, clock: ManualClock, schedules: Schedules, how: str, misfire: str, minutes: list[int]) -> None:
    await engine.put("schedule", "tick", schedule("* * * * *", misfire=misfire))
    await schedules.once()
    if how == "the clock jumps":
        clock.step(HOUR)
    else:
        clock.advance("1h")
    await schedules.once()
    assert await made(engine) == {"tick": [NOON + minute * MINUTE for minute in minutes]}
    assert await stored_next(engine) == NOON + 61 * MINUTE


async def test_an_hour_back(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    """What was made is not made again; the schedule goes on with the first time that was not made, when the clock shows it."""
    await engine.put("schedule", "tick", schedule("*/10 * * * *", misfire="all"))
    await play(schedules, clock, NOON + 2 * HOUR)
    clock.step(-HOUR)
    await play(schedules, clock, NOON + 2 * HOUR)
    assert await made(engine) == {"tick": [NOON + n * 10 * MINUTE for n in range(1, 13)]}
    await play(schedules, clock, NOON + 3 * HOUR)
    assert await made(engine) == {"tick": [NOON + n * 10 * MINUTE for n in range(1, 19)]}


async def test_an_hour_back_and_everything_counted_anew(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    """A change in that hour counts from the clock as it is; times that were made before still have one task each."""
    await engine.put("schedule", "tick", schedule("*/10 * * * *"))
    await play(schedules, clock, NOON + 2 * HOUR)
    clock.step(-HOUR)
    await engine.put("schedule", "tick", schedule("*/5 * * * *", payload=b'"other"'))
    await play(schedules, clock, NOON + 2 * HOUR)
    times = (await made(engine))["tick"]
    assert times == sorted(set(times))
    assert set(times) == {NOON + n * 10 * MINUTE for n in range(1, 13)} | {NOON + HOUR + n * 5 * MINUTE for n in range(1, 13)}


# What cannot be fired


async def test_a_type_that_nobody_knows_is_told_once_for_each_version(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *", type="unheard-of"))
    await engine.put("schedule", "tock", schedule("0 * * * *"))
    with logged() as log:
        await play(schedules, clock, NOON + 5 * HOUR)
        assert len(log.lines("tick")) == 1
        assert "unheard-of" in log.lines("tick")[0]
        await engine.put("schedule", "tick", schedule("0 * * * *", type="unheard-of", priority=2))
        await play(schedules, clock, NOON + 10 * HOUR)
        assert len(log.lines("tick")) == 2
    assert await made(engine) == {"tock": [NOON + n * HOUR for n in range(1, 11)]}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tick", b'{"type": "work"}'), ("tick", b'{"type": "work", "cron": "99 * * * *"}'), ("Not A Name", schedule("0 * * * *"))],
    ids=["no-cron", "no-expression", "no-name"],
)
async def test_a_schedule_that_cannot_be_used_is_told_once_and_stops_no_other(
    engine: Engine, clock: ManualClock, schedules: Schedules, name: str, value: bytes
) -> None:
    await engine.put("schedule", name, value)
    await engine.put("schedule", "tock", schedule("0 * * * *"))
    with logged() as log:
        await play(schedules, clock, NOON + 5 * HOUR)
    assert len(log.lines(name)) == 1
    assert await made(engine) == {"tock": [NOON + n * HOUR for n in range(1, 6)]}


class Meddled:
    """An engine in front of which something happens the first time that something is fired."""

    def __init__(self, engine: Engine, meddle: Any) -> None:
        self._engine = engine
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def fire(self, *args: Any) -> Fired:
        meddle, self._meddle = self._meddle, None
        if meddle is not None and args[2]:
            await meddle(self._engine, *args)
        elif meddle is not None:
            self._meddle = meddle
        return await self._engine.fire(*args)


async def test_a_schedule_that_is_changed_under_its_hands_is_read_again(engine: Engine, clock: ManualClock) -> None:
    async def change(real: Engine, *_: object) -> None:
        await real.put("schedule", "tick", schedule("0 * * * *", payload=b'"new"'))

    await engine.put("schedule", "tick", schedule("0 * * * *", payload=b'"old"'))
    await play(Schedules(cast("Engine", Meddled(engine, change)), "me"), clock, NOON + HOUR)
    assert [(task.run_at, task.payload) for task in await all_tasks(engine)] == [(NOON + HOUR, b'"new"')]


async def test_a_schedule_that_is_dropped_under_its_hands(engine: Engine, clock: ManualClock) -> None:
    async def drop(real: Engine, *_: object) -> None:
        await real.drop("schedule", "tick")

    await engine.put("schedule", "tick", schedule("0 * * * *"))
    await engine.put("schedule", "tock", schedule("0 * * * *"))
    await play(Schedules(cast("Engine", Meddled(engine, drop)), "me"), clock, NOON + 2 * HOUR)
    assert (await made(engine))["tock"] == [NOON + HOUR, NOON + 2 * HOUR]
    assert len((await made(engine)).get("tick", [])) <= 1


async def test_an_answer_that_was_lost_makes_no_second_task(engine: Engine, clock: ManualClock) -> None:
    async def lose(real: Engine, *args: Any) -> None:
        await real.fire(*args)
        raise AnswerLost("nobody heard it")

    await engine.put("schedule", "tick", schedule("0 * * * *", overlap="replace"))
    schedules = Schedules(cast("Engine", Meddled(engine, lose)), "me")
    await schedules.once()
    clock.advance("1h")
    with pytest.raises(AnswerLost):
        await schedules.once()
    assert await schedules.once() == 0
    [task] = await all_tasks(engine)
    assert (task.run_at, task.state) == (NOON + HOUR, State.PENDING)


# Leaders


async def test_only_the_leader_fires(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path / "s.db", clock) as one, opened(tmp_path / "s.db", clock) as two:
        first, second = Schedules(one, "first"), Schedules(two, "second")
        await one.put("schedule", "tick", schedule("0 * * * *"))
        await first.once()
        clock.advance("1s")
        assert await second.once() == 0
        assert (first.leader.term is None, second.leader.term is None) == (False, True)
        await first.leader.resign()
        assert await second.once() == 0
        assert second.leader.term is not None
        clock.advance("1h")
        assert [await second.once(), await first.once()] == [1, 0]
        assert await made(one) == {"tick": [NOON + HOUR]}


async def test_a_leader_that_was_silent_is_refused_and_makes_no_noise(tmp_path: Path, clock: ManualClock) -> None:
    """Between its reading and its firing another one led, fired, and the times it had read are no longer its own."""
    async with opened(tmp_path / "s.db", clock) as one, opened(tmp_path / "s.db", clock) as two:
        second = Schedules(two, "second")

        async def pass_by(*_: object) -> None:
            clock.advance("5s")
            await second.once()

        first = Schedules(cast("Engine", Meddled(one, pass_by)), "first")
        await one.put("schedule", "tick", schedule("0 * * * *"))
        await first.once()
        clock.advance("1h")
        with logged() as log:
            assert await first.once() == 0
            assert first.leader.term is None
            assert await first.once() == 0
        assert log.lines() == []
        assert await made(one) == {"tick": [NOON + HOUR]}


async def test_next_at_needs_no_leader(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    assert await schedules.next_at() is None
    await engine.put("schedule", "tick", schedule("0 * * * *"))
    await engine.put("schedule", "later", schedule("0 0 * * *"))
    assert await Schedules(engine, "other").next_at() == NOON + HOUR
    await schedules.once()
    clock.advance("2h")
    assert await Schedules(engine, "other").next_at() == NOON + HOUR
    await engine.put("pause", "schedule:tick", b"{}")
    assert await Schedules(engine, "other").next_at() == NOON + 12 * HOUR


async def test_a_month_of_cron(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *"))
    await play(schedules, clock, NOON + 30 * DAY)
    assert len((await made(engine))["tick"]) == 720


# The loop


async def test_the_loop_fires_by_itself_and_gives_up_its_term_when_it_stops(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as engine, aclosing(await engine.events()) as events:
        async with asyncio.timeout(HANGS), running(Schedules(engine, "me").run()):
            await engine.put("schedule", "tick", schedule("* * * * * *", overlap="allow"))
            submitted = 0
            async for event in events:
                submitted += event.kind is Kind.SUBMITTED
                if submitted == 2:
                    break
        assert await engine.lead("schedules", "successor") is not None
        times = (await made(engine))["tick"]
        assert [time - times[0] for time in times[:2]] == [0, SECOND]
        early = [task.id for task in await all_tasks(engine) if task.created_at < task.run_at]
        assert early == []


async def test_what_is_fired_twice_by_hand_is_one_task(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    """The store forgets the fired state (an operator's repair): the tasks of those times are still there, and stay one each."""
    await engine.put("schedule", "tick", schedule("0 * * * *"))
    await play(schedules, clock, NOON + HOUR)
    [task] = await all_tasks(engine)
    await engine.cancel([Target(task.id)])
    await engine.delete([Target(task.id)])
    found = await item(engine, "schedule", "tick")
    assert found is not None
    term = await schedules.leader.lead()
    assert term is not None
    fired = await engine.fire("tick", found.version, tasks_for("tick", Schedule.decode(found.value), [NOON + HOUR]), None, term)
    assert [answer.status for answer in fired.tasks] == [Status.DUPLICATE]
    assert await all_tasks(engine) == []


async def test_a_task_says_when_it_was_meant_to_run(engine: Engine, clock: ManualClock, schedules: Schedules) -> None:
    await engine.put("schedule", "tick", schedule("0 * * * *", expires=10 * MINUTE))
    await schedules.once()
    clock.advance("65m")
    await schedules.once()
    [task] = await all_tasks(engine)
    assert (await record(engine, task.id)).headers == {"taskmill-schedule": "tick", "taskmill-fire-time": "2027-01-15T13:00:00Z"}
    assert task.expires_at == NOON + 70 * MINUTE
