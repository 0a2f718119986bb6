"""Cron: what is read and refused, the days the clocks change against a brute-force oracle, and what is due after a pause."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskmill.clock import DAY, HOUR, MINUTE, SECOND, instant, rfc3339
from taskmill.cron import Cron, Misfire, Overlap, due
from taskmill.errors import InvalidInput

CHANGES = [
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Europe/Paris", "2026-03-29"),
    ("Europe/Paris", "2026-10-25"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Africa/Cairo", "2026-04-24"),
    ("Africa/Cairo", "2026-10-30"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("Asia/Tehran", "2022-03-22"),
    ("Asia/Tehran", "2022-09-22"),
    ("America/Nuuk", "2025-03-30"),  # the gap ends at midnight
    ("America/St_Johns", "2010-11-07"),  # back over midnight, into the day before
    ("Antarctica/Troll", "2026-03-29"),  # two hours
    ("Africa/Tripoli", "2012-11-10"),  # at midnight UTC, back
    ("Africa/Tripoli", "2013-03-29"),  # at midnight UTC, forward
    ("Pacific/Apia", "2011-12-30"),  # a whole day skipped
]
EXPRESSIONS = [
    "30 2 * * *",
    "0,15,45 2 * * *",
    "0 2,3 * * *",
    "30 1 * * *",
    "45 1 * * SUN",
    "0 0 * * *",
    "30 23 * * *",
    "0-59/20 0-3 * * *",
    "* * * * *",
    "*/10 3 * * *",
    "*/15 0 * * *",
    "7 * * * *",
    "0 */2 * * *",
    "30 12 30 12 *",
]


def numbers(text: str, low: int, high: int) -> set[int]:
    """A field, read again by other means than the product's: the oracle shares nothing with it."""
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or first))
        found.update(value for value in range(begin, end + 1) if (value - begin) % int(step or 1) == 0)
    return found


class Oracle:
    """Looks at every step of real time, and at what the clock on the wall shows then."""

    def __init__(self, expression: str) -> None:
        fields = expression.replace("SUN", "0").split()
        second, minute, hour, day, month, weekday = fields if len(fields) == 6 else ["0", *fields]
        self.times = [numbers(second, 0, 59), numbers(minute, 0, 59), numbers(hour, 0, 23)]
        self.days, self.months, self.weekdays = numbers(day, 1, 31), numbers(month, 1, 12), {n % 7 for n in numbers(weekday, 0, 7)}
        self.both = day.startswith("*") or weekday.startswith("*")
        self.interval = "*" in minute + hour

    def matches(self, wall: dt.datetime) -> bool:
        if wall.month not in self.months or any(value not in field for value, field in zip((wall.second, wall.minute, wall.hour), self.times, strict=True)):
            return False
        found = (wall.day in self.days, wall.isoweekday() % 7 in self.weekdays)
        return all(found) if self.both else any(found)

    def fires(self, clock: tuple[tuple[int, dt.datetime], ...], step: int) -> Iterator[int]:
        for (_, before), (second, wall) in pairwise(clock):
            if self.interval:
                hit = self.matches(wall)
            else:
                skipped = range(1, int((wall - before.replace(fold=wall.fold)).total_seconds()) // step)
                hit = (self.matches(wall) and wall.fold == 0) or any(self.matches(before + dt.timedelta(seconds=step * n)) for n in skipped)
            if hit:
                yield second * SECOND


@lru_cache(maxsize=64)
def wall_clock(zone: str, begin: int, end: int, step: int) -> tuple[tuple[int, dt.datetime], ...]:
    return tuple((second, dt.datetime.fromtimestamp(second, ZoneInfo(zone)).replace(tzinfo=None)) for second in range(begin - step, end, step))


def around(day: str) -> tuple[int, int]:
    middle = instant(f"{day}T00:00:00Z") // SECOND
    return middle - 30 * 3_600, middle + 54 * 3_600


def fires_between(cron: Cron, begin: int, end: int) -> list[int]:
    """From begin, itself included, up to end."""
    found = []
    at = cron.next_after(begin * SECOND - 1)
    while at < end * SECOND:
        found.append(at)
        at = cron.next_after(at)
    return found


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_the_clock_does_change_on_the_days_tested(zone: str, day: str) -> None:
    begin, end = around(day)
    first, last = (dt.datetime.fromtimestamp(second, ZoneInfo(zone)).utcoffset() for second in (begin, end))
    assert first != last


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_on_the_days_the_clock_changes(zone: str, day: str, expression: str) -> None:
    begin, end = around(day)
    expected = list(Oracle(expression).fires(wall_clock(zone, begin, end, 60), 60))
    assert [rfc3339(at) for at in fires_between(Cron.parse(expression, zone), begin, end)] == [rfc3339(at) for at in expected]


@pytest.mark.parametrize("expression", ["0 30 2 * * *", "*/20 30 1,2 * * *", "15 45 1 * * *", "*/25 * * * * *", "30 */20 1,2 * * *"])
@pytest.mark.parametrize(
    ("zone", "hour"), [("Europe/Paris", "2026-03-29T00:00:00Z"), ("Europe/Paris", "2026-10-24T23:00:00Z"), ("Australia/Lord_Howe", "2026-04-04T14:00:00Z")]
)
def test_six_fields_follow_the_same_rule(zone: str, hour: str, expression: str) -> None:
    begin = instant(hour) // SECOND
    end = begin + 4 * 3_600
    expected = list(Oracle(expression).fires(wall_clock(zone, begin, end, 1), 1))
    assert expected
    assert fires_between(Cron.parse(expression, zone), begin, end) == expected


def field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    spans = st.tuples(value, value).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    steps = st.builds("{}/{}".format, st.one_of(st.just("*"), spans), st.integers(1, high - low))
    items = st.one_of(value.map(str), spans, steps)
    return st.one_of(st.just("*"), st.lists(items, min_size=1, max_size=3).map(",".join))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CHANGES), st.tuples(field(0, 59), field(0, 23), field(1, 31), st.just("*"), field(0, 7)).map(" ".join), st.integers(0, 84 * 3_600))
@example(("America/New_York", "2026-11-01"), "45 1 * * *", 60 * 3_600 + 1_800)
def test_any_expression_from_any_moment_on(change: tuple[str, str], expression: str, moment: int) -> None:
    zone, day = change
    begin, end = around(day)
    expected = [at for at in Oracle(expression).fires(wall_clock(zone, begin, end, 60), 60) if at >= (begin + moment) * SECOND]
    assert fires_between(Cron.parse(expression, zone), begin + moment, end) == expected


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([*EXPRESSIONS, "@every 7m", "0 0 29 2 *", "*/7 * * * * *"]), st.sampled_from(CHANGES), st.integers(0, 4_000_000_000 * SECOND))
def test_the_next_time_is_later_and_nothing_lies_between(expression: str, change: tuple[str, str], at: int) -> None:
    cron = Cron.parse(expression, change[0])
    found = cron.next_after(at)
    assert found > at
    assert cron.next_after(found - 1) == found
    assert cron.next_after((at + found) // 2) == found
    assert cron.next_times(at, 3) == [found, cron.next_after(found), cron.next_after(cron.next_after(found))]


def shown(expression: str, after: str, n: int = 3, zone: str = "UTC") -> list[str]:
    return [rfc3339(at) for at in Cron.parse(expression, zone).next_times(instant(after), n)]


def test_a_skipped_time_fires_once_right_after_the_gap() -> None:
    assert shown("30 2 * * *", "2026-03-07T12:00:00Z", 2, "America/New_York") == ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]


def test_a_repeated_time_fires_at_the_first_and_asking_in_the_second_pass_gives_tomorrow() -> None:
    assert shown("45 1 * * *", "2026-11-01T04:00:00Z", 2, "America/New_York") == ["2026-11-01T05:45:00Z", "2026-11-02T06:45:00Z"]
    assert shown("45 1 * * *", "2026-11-01T06:30:00Z", 1, "America/New_York") == ["2026-11-02T06:45:00Z"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("@annually", "2027-01-01T00:00:00Z"),
        ("@monthly", "2026-06-01T00:00:00Z"),
        ("@weekly", "2026-05-17T00:00:00Z"),
        ("@daily", "2026-05-13T00:00:00Z"),
        ("@Midnight", "2026-05-13T00:00:00Z"),
        ("@hourly", "2026-05-12T11:00:00Z"),
        ("  0 9\t* * mon-fri ", "2026-05-13T09:00:00Z"),
        ("0 9 * JAN,jul *", "2026-07-01T09:00:00Z"),
        ("0 0 * * 7", "2026-05-17T00:00:00Z"),
        ("0 0 13 * FRI", "2026-05-13T00:00:00Z"),
        ("0 0 L * *", "2026-05-31T00:00:00Z"),
        ("0 0 LW * *", "2026-05-29T00:00:00Z"),
        ("0 0 * * MON#1", "2026-06-01T00:00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
        ("0 0 29 2 */7", "2032-02-29T00:00:00Z"),
        ("5 * * * * *", "2026-05-12T10:30:05Z"),
        ("@every 1h30m", "2026-05-12T12:00:00Z"),
    ],
)
def test_expressions_and_their_next_time(expression: str, expected: str) -> None:
    assert shown(expression, "2026-05-12T10:30:00Z", 1) == [expected]


def test_leap_days_on_one_weekday_are_found_over_forty_years() -> None:
    assert shown("0 0 * 2 MON#5", "2072-03-01T00:00:00Z", 1) == ["2112-02-29T00:00:00Z"]


def test_every_counts_from_its_start_in_real_time() -> None:
    start = instant("2026-03-08T05:07:03.5Z")
    cron = Cron.parse("@every 90m", "America/New_York", start=start)
    assert cron.next_times(0, 3) == [start + 90 * MINUTE, start + 180 * MINUTE, start + 270 * MINUTE]
    assert cron.next_after(start + 90 * MINUTE - 1) == start + 90 * MINUTE
    assert cron.next_after(start + 90 * MINUTE) == start + 180 * MINUTE
    assert Cron.parse("@every 1d").next_after(5 * DAY + 1) == 6 * DAY


def test_nothing_fires_at_or_before_its_start() -> None:
    start = instant("2026-05-12T10:30:00Z")
    assert Cron.parse("* * * * *", start=start).next_after(0) == start + MINUTE


def test_a_month_of_minutes_is_complete() -> None:
    after = instant("2026-10-20T00:00:00Z")
    assert Cron.parse("* * * * *", "America/New_York").next_times(after, 50_000) == list(range(after + MINUTE, after + 50_001 * MINUTE, MINUTE))


@pytest.mark.parametrize("cron", [Cron.parse("0 9 * * MON"), Cron.parse("@every 5m", "Europe/Paris", start=77), Cron.parse("@daily", "Asia/Tehran")])
def test_an_entry_survives_its_text_and_its_data(cron: Cron) -> None:
    assert Cron.decode(cron.encode()) == cron
    assert Cron.from_data(cron.to_data()) == cron
    assert hash(Cron.decode(cron.encode())) == hash(cron)


def test_the_text_leaves_defaults_out_and_is_tidy() -> None:
    assert Cron.parse(" 0  9 * * * ", "utc".upper()).encode() == '{"expression":"0 9 * * *"}'
    assert Cron.from_data({"expression": "@Daily"}) == Cron.parse("@daily")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("60 * * * *", 'field 1 (minute) "60"'),
        ("*/0 * * * *", 'field 1 (minute) "*/0"'),
        ("5-1 * * * *", 'field 1 (minute) "5-1"'),
        ("0 24 * * *", 'field 2 (hour) "24"'),
        ("0 0 0 * *", 'field 3 (day-of-month) "0"'),
        ("0 0 * 13 *", 'field 4 (month) "13"'),
        ("0 0 * * 8", 'field 5 (day-of-week) "8"'),
        ("0 0 * * FRI-SUN", 'field 5 (day-of-week) "FRI-SUN"'),
        ("60 * * * * *", 'field 1 (second) "60"'),
        ("0 0 99 * * *", 'field 3 (hour) "99"'),
        ("a b c d e", 'field 1 (minute) "a"'),
        ("1,,2 * * * *", 'field 1 (minute) "1,,2"'),
        ("-1 * * * *", 'field 1 (minute) "-1"'),
        ("1.5 * * * *", 'field 1 (minute) "1.5"'),
        ("*/90 * * * *", 'field 1 (minute) "*/90" has a step beyond the field'),
        ("5-5/2 * * * *", 'field 1 (minute) "5-5/2" has a step but only one value'),
        ("0 0 L/3 * *", 'field 3 (day-of-month) "L/3" has a step but only one value'),
        ("0 0 31 2 *", 'never fires: field 3 (day-of-month) "31"'),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 0 31 2 *", 'never fires: field 4 (day-of-month) "31"'),
        ("0 0 LW * */7", "never fires"),
        ("0 0 32 2 *", 'field 3 (day-of-month) "32"'),
        ("@yearlyy", 'field 1 "@yearlyy"'),
        ("@reboot", 'field 1 "@reboot"'),
        ("@every", 'field 1 "@every"'),
        ("@every 0s", 'field 2 "0s"'),
        ("@every 999ms", 'field 2 "999ms"'),
        ("@every -5m", 'field 2 "-5m"'),
        ("@every 5 m", 'field 2 "5 m"'),
        ("0 0 * * \u017fun", "no cron expression"),
        ("9" * 5_000 + " * * * *", "no cron expression"),
        (5, "no cron expression"),
        (None, "no cron expression"),
    ],
)
def test_a_bad_expression_is_refused_with_its_place(expression: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.parse(expression)
    assert (caught.value.code, caught.value.field) == ("invalid_cron", "cron")
    assert said in caught.value.message
    assert caught.value.hint


def test_near_names_are_offered() -> None:
    with pytest.raises(InvalidInput, match='did you mean "@yearly"'):
        Cron.parse("@yearlyy")
    with pytest.raises(InvalidInput, match='did you mean "Europe/Paris"'):
        Cron.parse("@daily", "europe/paris")


@pytest.mark.parametrize(
    "zone", ["Mars/Phobos", "", "Europe", "../UTC", "/etc/localtime", "a\0b", "x" * 5_000, "\ud800", "localtime", "right/UTC", "zone.tab", None, 5, []]
)
def test_an_unknown_zone_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.parse("@daily", zone)
    assert (caught.value.code, caught.value.field) == ("invalid_timezone", "timezone")
    assert caught.value.hint
    assert "localtime" not in caught.value.hint


@pytest.mark.parametrize("data", [[], {}, {"expression": 5}, {"expression": "@daily", "zone": "UTC"}, {"expression": "@daily", "timezone": 5}])
def test_bad_data_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Cron.from_data(data)
    assert caught.value.code == "invalid_cron"


def test_other_bad_input_names_its_field() -> None:
    daily = Cron.parse("@daily")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: Cron.parse("@daily", start=-1), "start"),
        (lambda: daily.next_after(-1), "after"),
        (lambda: daily.next_times(0, 100_001), "n"),
        (lambda: daily.next_after(instant("9999-12-31T12:00:00Z")), "cron"),
        (lambda: Cron.decode("{"), "cron"),
        (lambda: due(daily, 0, 0, Misfire.ALL, cap=0), "cap"),
        (lambda: due(daily, 0, 0, Misfire.SKIP, tolerance=-1), "tolerance"),
    ]
    for call, named in calls:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == named


NOON = instant("2026-05-12T12:00:00Z")
HOURLY = Cron.parse("@hourly")


@pytest.mark.parametrize("misfire", list(Misfire))
def test_nothing_is_due_before_its_time(misfire: Misfire) -> None:
    assert due(HOURLY, NOON, NOON - 1, misfire) == ([], NOON)


@pytest.mark.parametrize("misfire", list(Misfire))
def test_what_is_on_time_is_made_once(misfire: Misfire) -> None:
    assert due(HOURLY, NOON, NOON + SECOND, misfire) == ([NOON], NOON + HOUR)


def test_after_a_pause_each_policy_does_what_it_says() -> None:
    now = NOON + 3 * HOUR + 10 * MINUTE
    missed = [NOON + n * HOUR for n in range(4)]
    following = NOON + 4 * HOUR
    assert due(HOURLY, NOON, now, Misfire.ALL) == (missed, following)
    assert due(HOURLY, NOON, now, Misfire.ALL, cap=2) == (missed[-2:], following)
    assert due(HOURLY, NOON, now, Misfire.ONCE) == (missed[-1:], following)
    assert due(HOURLY, NOON, now, Misfire.SKIP) == ([], following)
    assert due(HOURLY, NOON, now, Misfire.SKIP, tolerance=10 * MINUTE) == (missed[-1:], following)
    assert due(HOURLY, NOON, now, Misfire.SKIP, tolerance=10 * MINUTE - 1) == ([], following)


def test_ten_years_of_missed_seconds_end_with_the_latest() -> None:
    seconds = Cron.parse("* * * * * *")
    made, following = due(seconds, NOON - 3_650 * DAY, NOON, Misfire.ALL, cap=3)
    assert (made, following) == ([NOON - 2 * SECOND, NOON - SECOND, NOON], NOON + SECOND)


def test_a_stored_time_that_the_expression_no_longer_has_is_still_made() -> None:
    assert due(HOURLY, NOON + 5, NOON + 6, Misfire.ALL) == ([NOON + 5], NOON + HOUR)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["* * * * *", "0 */3 * * *", "30 2 * * *", "@every 7m", "0 9 * * MON"]),
    st.integers(0, 40 * DAY),
    st.sampled_from(list(Misfire)),
    st.integers(1, 500),
)
def test_due_makes_only_fire_times_in_order_and_leaves_none_behind(expression: str, late: int, misfire: Misfire, cap: int) -> None:
    cron = Cron.parse(expression, "Europe/Paris")
    first = cron.next_after(NOON)
    now = first + late
    made, following = due(cron, first, now, misfire, cap=cap)
    every = [first]
    while (at := cron.next_after(every[-1])) <= now:
        every.append(at)
    expected = {Misfire.ALL: every[-cap:], Misfire.ONCE: every[-1:], Misfire.SKIP: [at for at in every if now - at <= MINUTE][-cap:]}
    assert made == expected[misfire]
    assert following == at


def test_the_words_of_the_policies() -> None:
    assert [*Misfire] == ["skip", "once", "all"]
    assert [*Overlap] == ["allow", "skip", "replace"]
