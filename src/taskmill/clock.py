"""Time: what it is now, and how people write durations and instants.

Inside Taskmill every instant is an integer of microseconds since 1970 (UTC) and every duration an integer of microseconds. People
write `"250ms" "90s" "10m" "2h" "1d"`, numbers of seconds or timedeltas, and RFC 3339 for instants; `duration` and `instant` are the only doors.

A clock tells two times. `now` is the wall clock: run_at, created_at, windows. `monotonic` never steps, is the same for all
processes of one boot, and judges beats and terms. Tests move both with `ManualClock`; nothing else in the product reads time.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import time
from typing import Protocol

from taskmill.errors import InvalidInput

__all__ = [
    "DAY",
    "HOUR",
    "MILLISECOND",
    "MINUTE",
    "SECOND",
    "Clock",
    "DurationLike",
    "ManualClock",
    "SystemClock",
    "duration",
    "format_duration",
    "instant",
    "rfc3339",
]

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

DurationLike = str | int | float | dt.timedelta

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_UNITS = {"us": 1, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)", re.ASCII)
_LONGEST_DURATION = 64  # letters: each of six units with nine digits
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_LONGEST = 100 * 366 * DAY
_BEYOND = 1e12  # seconds: far over the longest, far under where arithmetic ends
_LAST_INSTANT = 253_402_300_799_999_999  # the end of year 9999, the last that RFC 3339 can write


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Wall clock, microseconds since 1970."""
        ...

    def monotonic(self) -> int:
        """Microseconds since some moment of this boot; never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1_000


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: int = 1_800_000_000 * SECOND, monotonic: int = 1_000 * SECOND) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> int:
        return self._now

    def monotonic(self) -> int:
        return self._monotonic

    def advance(self, by: DurationLike) -> None:
        """Time passes."""
        step = duration(by)
        self._now += step
        self._monotonic += step

    def step(self, by: int) -> None:
        """Somebody sets the wall clock, forward or back; no time passes."""
        self._now += by


def duration(value: DurationLike, *, field: str = "duration", minimum: int = 0) -> int:
    """A duration as people write it, in microseconds."""
    micros = _micros(value, field)
    if micros < minimum:
        raise InvalidInput(f"{_shown(value)} is too short", code="invalid_duration", field=field, hint=f"at least {format_duration(minimum)}")
    if micros > _LONGEST:
        raise InvalidInput(f"{_shown(value)} is too long", code="invalid_duration", field=field, hint="at most 100 years")
    return micros


def _micros(value: DurationLike, field: str) -> int:
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(f"{value!r} is not a duration", code="invalid_duration", field=field, hint="a finite number of seconds")
        return round(max(-_BEYOND, min(value, _BEYOND)) * SECOND)
    if isinstance(value, str):
        parts = _DURATION.findall(value) if len(value) <= _LONGEST_DURATION else []
        units = {unit for _, unit in parts}
        if parts and len(units) == len(parts) and "".join(number + unit for number, unit in parts) == value:
            return sum(round(min(float(number) * _UNITS[unit], _BEYOND * SECOND)) for number, unit in parts)
    raise InvalidInput(
        f"{_shown(value)} is not a duration",
        code="invalid_duration",
        field=field,
        hint='write "250ms", "90s", "10m", "2h", "1d", "1h30m", or a number of seconds',
    )


def _shown(value: object) -> str:
    """A value for a message: bounded, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "such a number"
    return f"{value!r:.80}" if isinstance(value, str) else f"{value!s:.80}"


def format_duration(micros: int) -> str:
    """The shortest text that `duration` reads back as the same."""
    if micros == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        if micros % _UNITS[unit] == 0:
            return f"{micros // _UNITS[unit]}{unit}"
    return f"{micros}us"


def instant(value: str | int | dt.datetime, *, field: str = "run_at") -> int:
    """An absolute time: RFC 3339 text, an aware datetime, or microseconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, (str, int, dt.datetime)):
        raise InvalidInput(f"{_shown(value)} is not a time", code="invalid_time", field=field, hint='RFC 3339, for example "2026-01-31T09:00:00Z"')
    if isinstance(value, int):
        micros = value
    else:
        moment = _parse_moment(value, field) if isinstance(value, str) else value
        if moment.utcoffset() is None:
            raise InvalidInput(
                f"{_shown(value)} has no time zone",
                code="timezone_required",
                field=field,
                hint='add one, for example "2026-01-31T09:00:00+01:00" or a "Z" for UTC',
            )
        micros = (moment - _EPOCH) // dt.timedelta(microseconds=1)
    if not 0 <= micros <= _LAST_INSTANT:
        raise InvalidInput(f"{_shown(value)} is out of range", code="invalid_time", field=field, hint="between the years 1970 and 9999")
    return micros


def _parse_moment(text: str, field: str) -> dt.datetime:
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError(text)
        return dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{_shown(text)} is not a time", code="invalid_time", field=field, hint='RFC 3339, for example "2026-01-31T09:00:00Z"') from None


def rfc3339(micros: int) -> str:
    """An instant for people and JSON, in UTC with microseconds only where there are any."""
    moment = _EPOCH + dt.timedelta(microseconds=micros)
    return moment.replace(tzinfo=None).isoformat() + "Z"
