"""The days the clocks change, in zones with rules of every sort, through the real loop on a real store, against an oracle.

The oracle is slow and simple: it walks through every minute of UTC, asks the zone what the clock on the wall shows, and applies the
policy of `cron.py` word by word. An interval (a `*` in minute or hour) fires at every minute that matches. Anything else is an
appointment: the first time the wall shows it; and when the wall clock jumps over it, the first minute behind the jump.
"""

from __future__ import annotations

import datetime as dt
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from taskmill.clock import ManualClock
from taskmill.maintenance.schedules import Schedules
from tests.surfaces.maintenance import made, opened, play, schedule

ZONES = ["America/New_York", "Europe/Paris", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca"]
YEAR = 2027
MINUTE = dt.timedelta(minutes=1)
BEFORE, AFTER = dt.timedelta(hours=26), dt.timedelta(hours=26)

EXPRESSIONS = {
    "quarters": "*/15 * * * *",
    "hourly": "5 * * * *",
    "twenty-past-two-to-three": "*/20 1-3 * * *",
    "midnight": "0 0 * * *",
    "half-past-one": "30 1 * * *",
    "half-past-two": "30 2 * * *",
    "quarter-past-two": "15 2 * * *",
    "many-in-the-gap": "0,10,40,50 2 * * *",
    "around": "59,0,1 1,2,3 * * *",
    "three": "0 3 * * *",
    "sundays": "45 1,2 * * 0",
}


def values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        numbers = range(low, high + 1) if span == "*" else range(int(first), int(last or first) + 1)
        found |= set(numbers[:: int(step or 1)])
    return found


def matches(expression: str, wall: dt.datetime) -> bool:
    minute, hour, day, month, weekday = expression.split()
    assert day == month == "*"
    return wall.minute in values(minute, 0, 59) and wall.hour in values(hour, 0, 23) and wall.isoweekday() % 7 in values(weekday, 0, 6)


def oracle(expression: str, zone: ZoneInfo, start: dt.datetime, end: dt.datetime) -> list[dt.datetime]:
    """The fire times after `start` and up to `end`; what the wall showed on the day before start counts as shown."""
    interval = any("*" in field for field in expression.split()[:2])
    fires: list[dt.datetime] = []
    shown: set[dt.datetime] = set()
    utc = start - dt.timedelta(days=1)
    previous = wall_at(utc - MINUTE, zone)
    while utc <= end:
        wall = wall_at(utc, zone)
        if interval:
            fire = matches(expression, wall)
        else:
            skipped = [previous + n * MINUTE for n in range(1, (wall - previous) // MINUTE)]
            fire = any(matches(expression, time) for time in skipped) or (wall not in shown and matches(expression, wall))
        if fire and utc > start:
            fires.append(utc)
        shown.add(wall)
        previous, utc = wall, utc + MINUTE
    return fires


def wall_at(utc: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    return utc.astimezone(zone).replace(tzinfo=None)


@cache
def changes(name: str) -> list[dt.datetime]:
    """The minutes of the year at which the zone's offset is another than a minute before."""
    zone = ZoneInfo(name)
    found = []
    hour = dt.datetime(YEAR, 1, 1, tzinfo=dt.UTC)
    while hour.year == YEAR:
        following = hour + dt.timedelta(hours=1)
        if hour.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            minutes = [hour + n * MINUTE for n in range(1, 61)]
            found += [minute for minute in minutes if (minute - MINUTE).astimezone(zone).utcoffset() != minute.astimezone(zone).utcoffset()]
        hour = following
    return found


def micros(moment: dt.datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def test_the_oracle_knows_both_days_and_their_sizes() -> None:
    """The oracle would be right about anything if nothing changed on those days."""
    sizes = {}
    for name in ZONES:
        zone = ZoneInfo(name)
        sizes[name] = sorted((wall_at(at, zone) - wall_at(at - MINUTE, zone)) // MINUTE - 1 for at in changes(name))
    assert sizes == {name: [-30, 30] if name == "Australia/Lord_Howe" else [-60, 60] for name in ZONES}


def test_the_oracle_against_days_told_by_hand() -> None:
    paris, spring, autumn = ZoneInfo("Europe/Paris"), dt.datetime(2027, 3, 27, 12, tzinfo=dt.UTC), dt.datetime(2027, 10, 30, 12, tzinfo=dt.UTC)
    day = dt.timedelta(days=1)
    assert oracle("30 2 * * *", paris, spring, spring + day) == [dt.datetime(2027, 3, 28, 1, 0, tzinfo=dt.UTC)]
    assert oracle("30 2 * * *", paris, autumn, autumn + day) == [dt.datetime(2027, 10, 31, 0, 30, tzinfo=dt.UTC)]
    assert len(oracle("5 * * * *", paris, autumn, autumn + day)) == 24
    assert len(oracle("*/20 2 * * *", paris, spring, spring + day)) == 0
    assert len(oracle("*/20 2 * * *", paris, autumn, autumn + day)) == 6


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("zone", ZONES)
async def test_a_day_the_clocks_change(zone: str, which: int) -> None:
    change = changes(zone)[which]
    start, end = change - BEFORE, change + AFTER
    clock = ManualClock(micros(start))
    async with opened(clock=clock) as engine:
        for name, expression in EXPRESSIONS.items():
            await engine.put("schedule", name, schedule(expression, zone))
        await play(Schedules(engine, "me"), clock, micros(end))
        found = await made(engine)
    expected = {name: [micros(time) for time in oracle(expression, ZoneInfo(zone), start, end)] for name, expression in EXPRESSIONS.items()}
    assert found == {name: times for name, times in expected.items() if times}


@pytest.mark.parametrize("zone", ZONES)
async def test_a_loop_that_slept_through_the_change_makes_each_missed_time_once(zone: str) -> None:
    change = changes(zone)[1]
    start, end = change - dt.timedelta(hours=3), change + dt.timedelta(hours=4)
    clock = ManualClock(micros(start))
    async with opened(clock=clock) as engine:
        for name, expression in EXPRESSIONS.items():
            await engine.put("schedule", name, schedule(expression, zone, misfire="all"))
        schedules = Schedules(engine, "me")
        await schedules.once()
        clock.step(micros(end) - micros(start))
        await schedules.once()
        found = await made(engine)
    expected = {name: [micros(time) for time in oracle(expression, ZoneInfo(zone), start, end)] for name, expression in EXPRESSIONS.items()}
    assert found == {name: times for name, times in expected.items() if times}
