"""Durations and instants as people write them, and a clock that tests can move."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmill.clock import DAY, HOUR, MILLISECOND, MINUTE, SECOND, ManualClock, SystemClock, duration, format_duration, instant, rfc3339
from taskmill.errors import InvalidInput

HUNDRED_YEARS = 100 * 366 * DAY
LAST = 253_402_300_799_999_999
UNITS = {"us": 1, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}

zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
moments = st.datetimes(min_value=dt.datetime(1970, 1, 3), max_value=dt.datetime(9999, 12, 29), timezones=zones)


@given(st.integers(0, HUNDRED_YEARS))
def test_a_formatted_duration_reads_back_the_same(micros: int) -> None:
    assert duration(format_duration(micros)) == micros


@given(st.integers(0, HUNDRED_YEARS))
def test_a_formatted_duration_is_written_in_its_largest_whole_unit(micros: int) -> None:
    text = format_duration(micros)
    unit = text.lstrip("0123456789")
    larger = [size for size in UNITS.values() if size > UNITS[unit]]
    assert micros == 0 or all(micros % size for size in larger)


@given(st.integers(0, 10_000), st.sampled_from(sorted(UNITS)))
def test_a_number_with_a_unit_is_that_many_of_them(number: int, unit: str) -> None:
    assert duration(f"{number}{unit}") == number * UNITS[unit]


@given(st.dictionaries(st.sampled_from(sorted(UNITS)), st.integers(0, 1_000), min_size=1))
def test_parts_add_up(parts: dict[str, int]) -> None:
    text = "".join(f"{number}{unit}" for unit, number in parts.items())
    assert duration(text) == sum(number * UNITS[unit] for unit, number in parts.items())


@given(st.integers(0, HUNDRED_YEARS))
def test_a_timedelta_is_taken_to_the_microsecond(micros: int) -> None:
    assert duration(dt.timedelta(microseconds=micros)) == micros


@given(st.integers(0, 100 * 366 * 24 * 3600))
def test_a_number_is_seconds(seconds: int) -> None:
    assert duration(seconds) == duration(float(seconds)) == seconds * SECOND


@pytest.mark.parametrize(
    ("text", "micros"), [("250ms", 250_000), ("90s", 90 * SECOND), ("1.5h", 90 * MINUTE), ("2h", 2 * HOUR), ("1d12h", 36 * HOUR), ("0s", 0), (0.25, 250_000)]
)
def test_durations_that_people_write(text: str | float, micros: int) -> None:
    assert duration(text) == micros


@given(st.text())
def test_any_text_is_a_duration_or_refused_by_name(text: str) -> None:
    try:
        assert 0 <= duration(text, field="timeout") <= HUNDRED_YEARS
    except InvalidInput as error:
        assert (error.code, error.field) == ("invalid_duration", "timeout")
        assert error.hint


BAD_DURATIONS = ["", " ", "5", "s", "1x", "1 s", "1S", "-1s", "+1s", "1e3s", "1,5s", ".5s", "1.s", "١s", "1s\0", "1s 1s", "inf", "nan", "P1D", "1w"]


@pytest.mark.parametrize("value", [*BAD_DURATIONS, float("nan"), float("inf"), float("-inf"), True, False])
def test_what_is_no_duration_is_refused(value: str | float) -> None:
    with pytest.raises(InvalidInput) as caught:
        duration(value, field="delay")
    assert (caught.value.code, caught.value.field) == ("invalid_duration", "delay")
    assert caught.value.hint


@pytest.mark.parametrize("value", [None, b"1s", [], {}, object(), 1j])
def test_what_is_not_even_a_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        duration(value)


@pytest.mark.parametrize("value", [1e305, -1e305, "9" * 400 + "d", 10**5000], ids=["float", "negative", "text", "digits"])
def test_a_number_past_all_bounds_is_refused(value: str | float) -> None:
    with pytest.raises(InvalidInput):
        duration(value)


@given(st.one_of(st.integers(max_value=-1), st.floats(max_value=-1e-5, min_value=-1e9), st.timedeltas(max_value=dt.timedelta(microseconds=-1))))
def test_a_negative_duration_is_refused(value: float | dt.timedelta) -> None:
    with pytest.raises(InvalidInput, match="too short"):
        duration(value)


@pytest.mark.parametrize("value", ["36601d", 10**30, 1e15, dt.timedelta.max])
def test_more_than_a_hundred_years_is_refused(value: str | float | dt.timedelta) -> None:
    with pytest.raises(InvalidInput, match="too long"):
        duration(value)


def test_the_minimum_is_named() -> None:
    assert duration("1s", minimum=SECOND) == SECOND
    with pytest.raises(InvalidInput, match="at least 1s"):
        duration("999ms", minimum=SECOND)


@given(st.integers(0, LAST))
def test_an_instant_reads_back_the_same(micros: int) -> None:
    assert instant(rfc3339(micros)) == instant(micros) == micros


@given(moments)
def test_an_aware_datetime_is_the_same_moment_in_every_zone(moment: dt.datetime) -> None:
    micros = instant(moment)
    assert micros == instant(moment.isoformat()) == instant(moment.astimezone(dt.UTC))
    assert dt.datetime.fromisoformat(rfc3339(micros)) == moment


@given(st.integers(0, LAST), st.integers(0, LAST))
def test_instants_keep_their_order(first: int, second: int) -> None:
    assert (first < second) == (dt.datetime.fromisoformat(rfc3339(first)) < dt.datetime.fromisoformat(rfc3339(second)))


def test_microseconds_are_written_only_where_there_are_any() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00Z"
    assert rfc3339(1) == "1970-01-01T00:00:00.000001Z"
    assert rfc3339(LAST) == "9999-12-31T23:59:59.999999Z"


@given(st.datetimes(min_value=dt.datetime(1970, 1, 1), max_value=dt.datetime(9999, 1, 1)))
def test_a_time_without_a_zone_is_refused(naive: dt.datetime) -> None:
    for value in (naive, naive.isoformat()):
        with pytest.raises(InvalidInput) as caught:
            instant(value, field="expires_at")
        assert (caught.value.code, caught.value.field) == ("timezone_required", "expires_at")


@given(st.text())
def test_any_text_is_an_instant_or_refused_by_name(text: str) -> None:
    try:
        assert 0 <= instant(text) <= LAST
    except InvalidInput as error:
        assert error.code in {"invalid_time", "timezone_required"}
        assert error.field == "run_at"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "tomorrow",
        "2026-02-30T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:60Z",
        "10000-01-01T00:00:00Z",
        "1800000000",
    ],
)
def test_an_impossible_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        instant(text)
    assert caught.value.code == "invalid_time"
    assert caught.value.hint


@pytest.mark.parametrize("value", [-1, LAST + 1, 10**40, "1969-12-31T23:59:59Z", "1970-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_a_time_out_of_range_is_refused(value: int | str) -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        instant(value)


@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_is_no_time(value: bool) -> None:
    with pytest.raises(InvalidInput, match="not a time"):
        instant(value)


class _Nowhere(dt.tzinfo):
    """A zone that does not know its offset: aware by its looks only."""

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta | None:
        return None

    def dst(self, _: dt.datetime | None) -> dt.timedelta | None:
        return None

    def tzname(self, _: dt.datetime | None) -> str | None:
        return None


UNUSABLE = [None, 1.5, dt.date(2026, 1, 1), 10**5000, dt.datetime(2026, 1, 1, tzinfo=_Nowhere())]


@pytest.mark.parametrize("value", UNUSABLE, ids=["none", "float", "date", "digits", "zone"])
def test_what_is_not_even_a_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        instant(value)


@given(st.lists(st.integers(0, 1_000 * DAY), max_size=20))
def test_a_manual_clock_moves_both_times_together(steps: list[int]) -> None:
    clock = ManualClock()
    wall, steady = clock.now(), clock.monotonic()
    for step in steps:
        clock.advance(dt.timedelta(microseconds=step))
    assert (clock.now() - wall, clock.monotonic() - steady) == (sum(steps), sum(steps))


@given(st.integers(-DAY, DAY))
def test_setting_the_wall_clock_passes_no_time(by: int) -> None:
    clock = ManualClock()
    wall, steady = clock.now(), clock.monotonic()
    clock.step(by)
    assert (clock.now() - wall, clock.monotonic() - steady) == (by, 0)


def test_a_manual_clock_stands_still_and_never_goes_back() -> None:
    clock = ManualClock()
    assert clock.now() == clock.now()
    with pytest.raises(InvalidInput):
        clock.advance(-1)


def test_the_system_clock_counts_microseconds() -> None:
    clock = SystemClock()
    before = dt.datetime.now(dt.UTC)
    now = clock.now()
    after = dt.datetime.now(dt.UTC)
    assert before - dt.timedelta(milliseconds=1) <= dt.datetime.fromisoformat(rfc3339(now)) <= after
    first = clock.monotonic()
    assert first <= clock.monotonic()
