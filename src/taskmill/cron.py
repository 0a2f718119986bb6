"""When a schedule fires: cron expressions in a time zone, right on the days the clocks change.

    minute hour day month weekday              "0 9 * * MON-FRI"
    second minute hour day month weekday       "*/10 * * * * *": six fields, and the first is the second
    @yearly @annually @monthly @weekly @daily @midnight @hourly
    @every 5m                                  start + k × 5 m of real time, whatever the zone; without a start, from 1970

When both day and weekday are given, either one is enough; when one of them begins with `*`, both must match (as in Debian's cron).

The days the clocks change. An entry with a `*` in its minute or hour is an interval: it fires whenever the clock on the wall shows a
matching time, so it keeps its step, also through a repeated hour; what the clock never shows, it does not make up for. Every other
entry means a time of day and keeps its appointment once: a time that the clock skips fires right after the gap (several skipped ones
together fire once), a time that comes twice fires at the first. `@every` does not look at the clock on the wall at all.

The fields are read, and days matched, by cronsim. The walk through time is ours: cronsim 2.8 answers a time in the past inside a
repeated hour, skips part of an hour after Lord Howe's half-hour change, and leaves six fields out of its care for clock changes.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import zoneinfo
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec
from cronsim import CronSim, CronSimError

from taskmill.clock import MINUTE, SECOND, duration, instant
from taskmill.errors import InvalidInput

__all__ = ["Cron", "Misfire", "Overlap", "due"]

_DAY = 86_400
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_ANY_TIME = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)  # cronsim wants one; only its fields are used
_LAST_DAY = dt.date(9999, 12, 30).toordinal() - _EPOCH_ORDINAL
_HORIZON = 50 * 366  # days; the rarest entry, a leap day on one weekday, comes within 40 years
_LONGEST_TEXT = 512
_MOST_TIMES = 100_000

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = {
    "second": (60, "0-59"),
    "minute": (60, "0-59"),
    "hour": (24, "0-23"),
    "day-of-month": (31, "1-31, L for the last day or LW for the last weekday"),
    "month": (12, "1-12 or JAN-DEC"),
    "day-of-week": (8, "0-7 or SUN-SAT, where 0 and 7 are Sunday; MON#2 is the second Monday, 5L the last Friday"),
}


class Misfire(enum.StrEnum):
    """What becomes of fire times that nobody was there to make."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(enum.StrEnum):
    """What becomes of a fire time while the task of an earlier one has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"


class Cron(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An expression in a time zone; make one with `parse`. It fires only after `start`, microseconds since 1970."""

    expression: str
    timezone: str = "UTC"
    start: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "expression", _tidy(self.expression))
        _plan(self.expression)
        if not isinstance(self.timezone, str):
            raise _unknown_zone(self.timezone)
        _zone(self.timezone)
        if self.start is not None:
            instant(self.start, field="start")

    @classmethod
    def parse(cls, expression: str, timezone: str = "UTC", *, start: int | None = None) -> Cron:
        """Read an expression as people write it; refused when it can never fire."""
        return cls(expression, timezone, start)

    def times(self, after: int) -> Iterator[int]:
        """The fire times after an instant, in order, to the end of the calendar."""
        plan = _plan(self.expression)
        if isinstance(plan, _Every):
            return plan.times(after, self.start or 0)
        return plan.times(after if self.start is None else max(after, self.start), _zone(self.timezone))

    def next_after(self, instant_us: int) -> int:
        """The first fire time later than this instant."""
        found = next(self.times(instant(instant_us, field="after")), None)
        if found is None:
            raise _bad(f'"{self.expression}" does not fire again before the year 9999', "ask for an earlier time")
        return found

    def next_times(self, after: int, n: int = 5) -> list[int]:
        """The next fire times, for showing."""
        if not 0 <= n <= _MOST_TIMES:
            raise InvalidInput(f"{n} times cannot be shown", field="n", hint=f"from 0 to {_MOST_TIMES}")
        return list(islice(self.times(instant(after, field="after")), n))

    def to_data(self) -> dict[str, object]:
        """Plain JSON values, defaults left out."""
        pairs = (("expression", self.expression, None), ("timezone", self.timezone, "UTC"), ("start", self.start, None))
        return {name: value for name, value, default in pairs if value != default}

    @classmethod
    def from_data(cls, data: object) -> Cron:
        """What `to_data` wrote, or a caller sent."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise _bad(str(error), 'an object with "expression", "timezone" and "start"') from None

    def encode(self) -> str:
        """One short text; equal entries give equal texts."""
        return msgspec.json.encode(self.to_data()).decode()

    @classmethod
    def decode(cls, text: str) -> Cron:
        """The entry of a text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise _bad(str(error), "a text as Cron.encode writes it") from None


def due(cron: Cron, last_next_at: int, now: int, misfire: Misfire, *, cap: int = 100, tolerance: int = MINUTE) -> tuple[list[int], int]:
    """The fire times to make now, oldest first, and the next one to store.

    `last_next_at` is the stored one; it is made as it stands, even when the expression has changed since. Of those up to now,
    `skip` makes the ones that are late by no more than `tolerance`, `once` only the latest, `all` every one. No more than `cap` are
    made; the oldest are dropped, because whoever catches up wants to end at the present.
    """
    if cap < 1:
        raise InvalidInput(f"a cap of {cap} makes nothing", field="cap", hint="at least 1")
    if tolerance < 0:
        raise InvalidInput(f"{tolerance} is too short", field="tolerance", hint="at least 0")
    if now < last_next_at:
        return [], last_next_at
    made = _latest(cron, last_next_at, now, 1 if misfire == Misfire.ONCE else cap)
    if misfire == Misfire.SKIP:
        made = [time for time in made if now - time <= tolerance]
    return made, cron.next_after(now)


def _latest(cron: Cron, first: int, now: int, count: int) -> list[int]:
    """The last `count` fire times from `first` to `now`. Looks back in growing steps, so that years of missed seconds cost no more than a few."""
    span = MINUTE
    while True:
        since = max(first, now - span)
        times = deque(takewhile(lambda time: time <= now, cron.times(since)), maxlen=count)
        if since == first:
            return [first, *times][-count:]
        if len(times) == count:
            return list(times)
        span *= 4


class _Every:
    """An interval of real time."""

    def __init__(self, step: int) -> None:
        self.step = step

    def times(self, after: int, start: int) -> Iterator[int]:
        first = start + (max(after, start) - start) // self.step * self.step + self.step
        return iter(range(first, _LAST_DAY * _DAY * SECOND, self.step))


class _Wall:
    """Times on the clock on the wall. Days are counted from 1970, times in seconds; a wall time is day × 86,400 + time of day."""

    def __init__(self, fields: CronSim) -> None:
        self._fields = fields
        self.interval = any("*" in part for part in fields.parts[1:3])
        hours, minutes, seconds = sorted(fields.hours), sorted(fields.minutes), sorted(fields.seconds)
        self._times = array("i", (hour * 3_600 + minute * 60 + second for hour in hours for minute in minutes for second in seconds))

    def times(self, after: int, zone: zoneinfo.ZoneInfo) -> Iterator[int]:
        """Walks day by day of UTC, in which a zone is on one or two offsets; its wall days are then the day before to the day after."""
        last = after // SECOND
        day = last // _DAY
        while day < _LAST_DAY and (match := self.next_day(day - 1)) is not None:
            day = max(day, match - 1)
            for second in self._day_times(day, last + 1, zone):
                if second > last:
                    last = second
                    yield second * SECOND
            day += 1

    def _day_times(self, day: int, floor: int, zone: zoneinfo.ZoneInfo) -> Iterator[int]:
        """The fire times of one day of UTC, at `floor` or later."""
        shift = _shift(zone, day)
        begin = max(floor, day * _DAY)
        resumed = shift.at
        if not self.interval:
            before = _shift(zone, day - 1)
            begin = max(begin, before.at + before.repeated)
            resumed += max(0, shift.repeated)
        yield from self._between(begin, shift.at, shift.old)
        if not self.interval and any(True for _ in self._between(shift.at, shift.at - shift.repeated, shift.old)):
            yield shift.at
        yield from self._between(max(floor, resumed), (day + 1) * _DAY, shift.new)

    def _between(self, begin: int, end: int, offset: int) -> Iterator[int]:
        """The instants from begin to end whose wall time, at this offset, matches."""
        for day in range((begin + offset) // _DAY, -(-(end + offset) // _DAY)):
            if self._on(day):
                midnight = day * _DAY - offset
                for index in range(bisect_left(self._times, begin - midnight), bisect_left(self._times, end - midnight)):
                    yield midnight + self._times[index]

    def _on(self, day: int) -> bool:
        date = dt.date.fromordinal(day + _EPOCH_ORDINAL)
        return date.month in self._fields.months and self._fields.match_day(date)

    def next_day(self, day: int) -> int | None:
        """The first matching day from this one on, or None when there is none for 50 years."""
        last = min(day + _HORIZON, _LAST_DAY)
        while day <= last:
            date = dt.date.fromordinal(day + _EPOCH_ORDINAL)
            if date.month not in self._fields.months:
                day += 32 - date.day
                day -= dt.date.fromordinal(day + _EPOCH_ORDINAL).day - 1
            elif self._fields.match_day(date):
                return day
            else:
                day += 1
        return None


class _Shift(NamedTuple):
    """A zone's change of offset within one day of UTC; without one it is at the end of the day and changes nothing."""

    at: int
    old: int
    new: int

    @property
    def repeated(self) -> int:
        """Seconds that the clock shows twice; below zero, seconds that it skips."""
        return self.old - self.new


@lru_cache(maxsize=8_192)
def _shift(zone: zoneinfo.ZoneInfo, day: int) -> _Shift:
    low, high = day * _DAY, (day + 1) * _DAY
    old, new = _offset(zone, low), _offset(zone, high)
    if old == new:
        return _Shift(high, old, new)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == old else (low, middle)
    return _Shift(high, old, new)


def _offset(zone: zoneinfo.ZoneInfo, second: int) -> int:
    offset = dt.datetime.fromtimestamp(second, zone).utcoffset()
    return 0 if offset is None else offset // dt.timedelta(seconds=1)


def _tidy(expression: str) -> str:
    if not isinstance(expression, str):
        raise _bad(f"{expression!r} is no cron expression", _SHAPE_HINT)
    text = " ".join(expression.split())
    return text.lower() if text.startswith("@") else text


@lru_cache(maxsize=256)
def _plan(expression: str) -> _Every | _Wall:
    if len(expression) > _LONGEST_TEXT or not expression.isascii():
        raise _bad(f"{expression[:40]!r} is no cron expression", f"plain ASCII, at most {_LONGEST_TEXT} characters")
    if expression.startswith("@every "):
        return _every(expression.removeprefix("@every "))
    if expression.startswith("@") and expression not in _ALIASES:
        near = difflib.get_close_matches(expression, [*_ALIASES, "@every 5m"], n=1)
        raise _bad(f'field 1 "{expression}" is no known name', f'did you mean "{near[0]}"?' if near else "one of " + " ".join([*_ALIASES, '"@every 5m"']))
    plan = _wall(_ALIASES.get(expression, expression).split(), expression)
    if plan.next_day(_ANY_TIME.toordinal() - _EPOCH_ORDINAL) is None:
        raise _never(expression)
    return plan


def _every(text: str) -> _Every:
    try:
        return _Every(duration(text, minimum=SECOND))
    except InvalidInput as error:
        raise _bad(f'field 2 "{text}" of @every: {error.message}', f"{error.hint}") from None


def _wall(parts: list[str], expression: str) -> _Wall:
    if len(parts) not in (5, 6):
        raise _bad(f'"{expression}" has {len(parts)} field{"s" * (len(parts) != 1)}', _SHAPE_HINT)
    names = list(_FIELDS)[-len(parts) :]
    for position, (name, part) in enumerate(zip(names, parts, strict=True), 1):
        _check_steps(position, name, part.upper())
    try:
        return _Wall(CronSim(" ".join(parts), _ANY_TIME))
    except CronSimError as error:
        raise _located(str(error), names, parts, expression) from None


def _located(complaint: str, names: list[str], parts: list[str], expression: str) -> InvalidInput:
    """cronsim names the field it stumbled on, and names the day, too, when no month has it."""
    name = complaint.removeprefix("Bad ")
    if name == "day-of-month" and _readable([*parts[:-2], "*", parts[-1]]):
        return _never(expression)
    position = names.index(name)
    return _bad_field(position + 1, name, parts[position], "is not understood")


def _readable(parts: list[str]) -> bool:
    try:
        CronSim(" ".join(parts), _ANY_TIME)
    except CronSimError:
        return False
    return True


def _check_steps(position: int, name: str, part: str) -> None:
    """Steps that cronsim takes but that do not do what they say: `*/90` fires hourly, `5-5/2` every other minute from 5 on, `L/3` as `L`."""
    for item in part.split(","):
        head, slash, step = item.partition("/")
        low, dash, high = head.partition("-")
        if not slash:
            continue
        if step.isdigit() and int(step) > _FIELDS[name][0]:
            raise _bad_field(position, name, item, "has a step beyond the field", 'for other intervals write "@every 90m"')
        if head in ("L", "LW") or (dash and low == high):
            raise _bad_field(position, name, item, "has a step but only one value")


def _bad_field(position: int, name: str, text: str, complaint: str, hint: str | None = None) -> InvalidInput:
    return _bad(f'field {position} ({name}) "{text}" {complaint}', hint or f"{_FIELDS[name][1]}; * for all, lists 1,2, ranges from low to high 1-5, steps */2")


def _never(expression: str) -> InvalidInput:
    parts = expression.split()
    place = len(parts) - 2
    complaint = f'field {place} (day-of-month) "{parts[place - 1]}" never comes with the month and weekday given'
    return _bad(f'"{expression}" never fires: {complaint}', "choose a day that these months have")


_SHAPE_HINT = 'five fields "minute hour day month weekday", six with the second first, or a name such as @daily or "@every 5m"'


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_cron", field="cron", hint=hint)


@lru_cache(maxsize=1_024)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    """An IANA zone. `localtime` and its like mean another thing on every machine, and `right/` counts leap seconds: refused."""
    if name in _NO_ZONES or name.startswith(("posix/", "right/")):
        raise _unknown_zone(name)
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise _unknown_zone(name) from None


_NO_ZONES = frozenset(("localtime", "posixrules", "Factory"))


def _unknown_zone(name: object) -> InvalidInput:
    shown = str(name)[:64]
    known = _known_zones()
    near = difflib.get_close_matches(shown.lower(), known, n=1)
    hint = f'did you mean "{known[near[0]]}"?' if near else 'an IANA name, for example "Europe/Paris" or "UTC"'
    return InvalidInput(f"{shown!r} is no known time zone", code="invalid_timezone", field="timezone", hint=hint)


@lru_cache(maxsize=1)
def _known_zones() -> dict[str, str]:
    return {zone.lower(): zone for zone in zoneinfo.available_timezones() - _NO_ZONES}
