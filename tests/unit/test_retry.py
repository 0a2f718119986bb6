"""Retry policies: the delays, the end of retrying, the rules, and the text they are stored as."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmill.clock import DAY, MINUTE, SECOND
from taskmill.errors import InvalidInput
from taskmill.retry import MAX_RETRIES, Decision, Retry, Rule, decide, error_names

NAMES = error_names(ValueError)

chances = st.floats(0, 1)
failure_counts = st.integers(1, 1_000)
rules = st.builds(
    lambda error, action, after: Rule(error=error, action=action, after=after if action == "after" else 0),
    st.sampled_from(["ValueError", "builtins.OSError", "app.errors.Timeout", "m.f.<locals>.E"]),
    st.sampled_from(["retry", "fail", "after"]),
    st.integers(0, DAY),
)
common: dict[str, Any] = {"max_retries": st.integers(0, MAX_RETRIES), "jitter": st.floats(0, 1), "rules": st.lists(rules, max_size=3).map(tuple)}


@st.composite
def growing(draw: st.DrawFn) -> Retry:
    base = draw(st.integers(0, DAY))
    return Retry(
        kind=draw(st.sampled_from(["exponential", "quadratic"])),
        base=base,
        cap=draw(st.integers(base, 366 * DAY)),
        factor=draw(st.floats(1, 1_000)),
        max_retries=draw(common["max_retries"]),
        jitter=draw(common["jitter"]),
    )


fixed = st.builds(Retry, kind=st.just("fixed"), base=st.integers(0, 366 * DAY), **common)
listed = st.builds(Retry, kind=st.just("list"), delays=st.lists(st.integers(0, 366 * DAY), min_size=1, max_size=20).map(tuple), **common)
policies = st.one_of(growing(), fixed, listed)


@given(growing(), failure_counts, chances)
def test_a_delay_never_exceeds_the_cap_with_its_jitter(retry: Retry, failures: int, random: float) -> None:
    assert 0 <= retry.delay(failures, random) <= retry.cap * (1 + retry.jitter)


@given(growing(), st.integers(1, 999))
def test_without_jitter_delays_never_shrink(retry: Retry, failures: int) -> None:
    assert retry.delay(failures, 0.5) <= retry.delay(failures + 1, 0.5)


@given(policies, failure_counts, chances)
def test_jitter_stays_inside_its_share_of_the_plain_delay(retry: Retry, failures: int, random: float) -> None:
    plain = msgspec.structs.replace(retry, jitter=0.0).delay(failures, random)
    assert math.floor(plain * (1 - retry.jitter)) <= retry.delay(failures, random) <= plain * (1 + retry.jitter)


@given(st.integers(0, MAX_RETRIES), chances)
def test_exactly_max_retries_retries(max_retries: int, random: float) -> None:
    retry = Retry.exponential(max_retries=max_retries)
    retried = [failures for failures in range(1, MAX_RETRIES + 2) if not decide(retry, failures, NAMES, random).dead]
    assert retried == list(range(1, max_retries + 1))


@pytest.mark.parametrize("base", ["0s", "1us", "1s"])
def test_a_thousand_failures_with_the_largest_factor_do_not_overflow(base: str) -> None:
    retry = Retry.exponential(max_retries=1_000, base=base, factor=1_000.0, cap="366d", jitter=0)
    assert retry.delay(1_000, 0.5) == (0 if base == "0s" else 366 * DAY)


def test_the_default_is_one_two_four_seconds_and_dead_after_the_third_retry() -> None:
    outcomes = [decide(Retry(), failures, NAMES, 0.5) for failures in (1, 2, 3, 4)]
    assert outcomes == [Decision(SECOND, "retry"), Decision(2 * SECOND, "retry"), Decision(4 * SECOND, "retry"), Decision(None, "exhausted")]
    assert Retry() == Retry.exponential()
    assert Retry.exponential(max_retries=50).delay(50, 0.5) == 5 * MINUTE


def test_jitter_is_ten_percent_to_both_sides() -> None:
    assert [Retry().delay(1, random) for random in (0.0, 0.5, 1.0)] == [900_000, SECOND, 1_100_000]


def test_quadratic_is_base_times_the_square() -> None:
    retry = Retry.quadratic(base="2s", cap="1m", jitter=0)
    assert [retry.delay(n, 0.3) // SECOND for n in (1, 2, 3, 5, 6)] == [2, 8, 18, 50, 60]


def test_fixed_and_list_know_no_cap_but_their_own_delays() -> None:
    assert [Retry.fixed("1h", jitter=0).delay(n, 0.3) for n in (1, 9)] == [60 * MINUTE, 60 * MINUTE]
    retry = Retry.list(["1s", 30, dt.timedelta(hours=1)], jitter=0)
    assert retry.max_retries == 3
    assert [retry.delay(n, 0.3) for n in (1, 2, 3, 7)] == [SECOND, 30 * SECOND, 60 * MINUTE, 60 * MINUTE]


class AppTimeout(TimeoutError):
    pass


def test_the_first_rule_that_covers_the_error_or_a_base_of_it_decides() -> None:
    retry = Retry.fixed("1s", jitter=0).on(AppTimeout, after="10s").on("ConnectionError").on("builtins.OSError", "fail")
    assert decide(retry, 1, error_names(AppTimeout), 0.5) == Decision(10 * SECOND, "retry")
    assert decide(retry, 1, error_names(ConnectionResetError), 0.5) == Decision(SECOND, "retry")
    assert decide(retry, 1, error_names(TimeoutError), 0.5) == Decision(None, "not_retried")
    assert decide(retry, 1, error_names(KeyError), 0.5) == Decision(SECOND, "retry")


def test_a_qualified_rule_does_not_mean_a_namesake() -> None:
    retry = Retry().on("other.module.AppTimeout", "fail")
    assert decide(retry, 1, error_names(AppTimeout), 0.5).reason == "retry"
    assert decide(Retry().on("AppTimeout", "fail"), 1, error_names(AppTimeout), 0.5).reason == "not_retried"
    assert decide(Retry().on("Timeout", "fail"), 1, error_names(AppTimeout), 0.5).reason == "retry"


def test_a_rule_that_retries_gives_no_retry_more_than_the_policy() -> None:
    retry = Retry.exponential(max_retries=1).on("ValueError", after="1s")
    assert not decide(retry, 1, NAMES, 0.5).dead
    assert decide(retry, 2, NAMES, 0.5) == Decision(None, "exhausted")


def test_a_delay_the_handler_asks_for_stands_above_rules_but_not_above_max_retries() -> None:
    retry = Retry.exponential(max_retries=1).on("ValueError", "fail")
    assert decide(retry, 1, NAMES, 0.5, after=7) == Decision(7, "retry")
    assert decide(retry, 2, NAMES, 0.5, after=7) == Decision(None, "exhausted")


@given(policies)
def test_a_policy_survives_its_text_and_its_data(retry: Retry) -> None:
    assert Retry.decode(retry.encode()) == retry
    assert Retry.from_data(retry.to_data()) == retry
    assert Retry.decode(retry.encode()).encode() == retry.encode()
    assert msgspec.json.decode(retry.encode()) == retry.to_data()
    assert hash(Retry.from_data(retry.to_data())) == hash(retry)


def test_the_text_is_short_and_the_same_text_is_decoded_once() -> None:
    assert Retry().encode() == "{}"
    assert Retry.exponential(max_retries=5).encode() == '{"max_retries":5}'
    assert Retry.exponential(factor=3).encode() == '{"factor":3.0}'
    text = Retry.list(["1s"]).on("ValueError", "fail").encode()
    assert text == '{"kind":"list","max_retries":1,"delays":[1000000],"rules":[{"error":"ValueError","action":"fail"}]}'
    assert Retry.decode(text) is Retry.decode(text)


BAD: list[tuple[Any, str]] = [
    (lambda: Retry.exponential(max_retries=-1), "max_retries"),
    (lambda: Retry.exponential(max_retries=1_001), "max_retries"),
    (lambda: Retry(max_retries=True), "max_retries"),
    (lambda: Retry.exponential(factor=0.5), "factor"),
    (lambda: Retry.exponential(factor=math.nan), "factor"),
    (lambda: Retry.exponential(factor=math.inf), "factor"),
    (lambda: Retry.exponential(jitter=1.5), "jitter"),
    (lambda: Retry.fixed(jitter=-0.1), "jitter"),
    (lambda: Retry.exponential(base="-1s"), "base"),
    (lambda: Retry.exponential(base="soon"), "base"),
    (lambda: Retry.exponential(base="367d", cap="368d"), "base"),
    (lambda: Retry.exponential(base="10m"), "cap"),
    (lambda: Retry.quadratic(cap="1ms"), "cap"),
    (lambda: Retry.fixed("400d"), "base"),
    (lambda: Retry.list([]), "delays"),
    (lambda: Retry.list("10s"), "delays"),
    (lambda: Retry.list(["1s"] * 1_001), "delays"),
    (lambda: Retry.list(["1s", "x"]), "delays"),
    (lambda: Retry(kind="fixed", delays=(1,)), "delays"),
    (lambda: Retry().on("not a name"), "rules.error"),
    (lambda: Retry().on("ValueError", "fail", after="1s"), "rules.after"),
    (lambda: Retry().on("ValueError", after="-1s"), "rules.after"),
    (lambda: Retry(rules=tuple(Rule(error="E") for _ in range(101))), "rules"),
    (lambda: Rule(error="E", action="fail", after=5), "rules.after"),
    (lambda: Retry.from_data({"max_retries": "three"}), "retry.max_retries"),
    (lambda: Retry.from_data({"rules": [{"error": 5}]}), "retry.rules[0].error"),
    (lambda: Retry.from_data({"max_retry": 3}), "retry"),
    (lambda: Retry.from_data({"factor": 0.0}), "factor"),
    (lambda: Retry.decode("{"), "retry"),
    (lambda: Retry.decode('"\ud800"'), "retry"),
    (lambda: Retry.decode('{"kind":"hopeful"}'), "retry.kind"),
    (lambda: decide(Retry(), 0, NAMES, 0.5), "failures"),
    (lambda: decide(Retry(), 1, NAMES, 1.1), "random"),
]


@pytest.mark.parametrize(("make", "field"), BAD)
def test_bad_input_is_refused_with_its_field_and_a_hint(make: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.hint
    assert caught.value.code in ("invalid_retry", "invalid_duration")
