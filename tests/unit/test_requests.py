"""What a caller can say, read once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskmill import requests
from taskmill.clock import MINUTE, SECOND
from taskmill.engine import Filter
from taskmill.errors import InvalidInput, nearest
from taskmill.requests import Words
from taskmill.task import State, new_id


def refused(call: Any, *args: Any, **named: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidInput) as raised:
        call(*args, **named)
    assert raised.value.hint
    return raised.value.code, raised.value.field


def test_a_filter_of_everything_that_can_be_said() -> None:
    found = requests.filter_of(
        state=["dead", State.CANCELLED], type="charge", queue=("mail", "sms"), tenant="acme", tags=["a=1", ("b", "2")], since=SECOND, until=2 * SECOND
    )
    assert found == Filter(
        states=frozenset({State.DEAD, State.CANCELLED}),
        types=frozenset({"charge"}),
        queues=frozenset({"mail", "sms"}),
        tenant="acme",
        tags={"a": "1", "b": "2"},
        created_from=SECOND,
        created_to=2 * SECOND,
    )
    assert requests.filter_of() == Filter()
    assert requests.filter_of(tenant="").tenant == ""


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        ({"state": "deed"}, "invalid_value", "state"),
        ({"type": "Mail"}, "invalid_name", "type"),
        ({"queue": ""}, "invalid_name", "queue"),
        ({"tenant": "x" * 129}, "invalid_key", "tenant"),
        ({"tags": ["a"]}, "invalid_tag", "tag"),
        ({"tags": {"A B": "1"}}, "invalid_name", "tag"),
        ({"tags": {"a": "\n"}}, "invalid_key", "tag"),
        ({"tags": ["a=1", "a=2"]}, "contradiction", "tag"),
        ({"tags": {f"t{n}": "1" for n in range(101)}}, "too_many", "tag"),
        ({"type": [f"t{n}" for n in range(101)]}, "too_many", "type"),
        ({"queue": [f"q{n}" for n in range(101)]}, "too_many", "queue"),
        ({"since": "yesterday"}, "invalid_time", "since"),
        ({"until": "2026-01-01T00:00:00"}, "timezone_required", "until"),
        ({"since": 2, "until": 2}, "contradiction", "since"),
        ({"since": 3, "until": 2}, "contradiction", "since"),
    ],
)
def test_a_condition_that_cannot_be(given: dict[str, Any], code: str, field: str) -> None:
    assert refused(requests.filter_of, **given) == (code, field)


def test_the_field_is_the_word_of_the_surface() -> None:
    assert refused(requests.filter_of, state="deed", words=Words(state="--state")) == ("invalid_value", "--state")


def test_which_tasks_are_changed() -> None:
    one, two = new_id(), new_id()
    assert requests.which_of([one, two, one], None, confirm=False, dry_run=False) == (one, two)
    for confirm, dry_run in ((True, False), (False, True)):
        assert requests.which_of(None, Filter(), confirm=confirm, dry_run=dry_run) == Filter()
    assert refused(requests.which_of, None, Filter(), confirm=False, dry_run=False) == ("confirm_required", "confirm")
    assert refused(requests.which_of, [one], Filter(), confirm=True, dry_run=False) == ("contradiction", "ids")
    assert refused(requests.which_of, None, None, confirm=True, dry_run=False) == ("which_required", "ids")
    assert refused(requests.which_of, [], None, confirm=True, dry_run=False) == ("batch_empty", "ids")
    assert refused(requests.which_of, ["nobody"], None, confirm=True, dry_run=False) == ("invalid_id", "ids")
    assert refused(requests.ids_of, (new_id() for _ in range(10_001))) == ("batch_too_large", "ids")


def test_waits_and_bounds() -> None:
    assert requests.wait_of("60s") == MINUTE
    assert refused(requests.wait_of, "61s") == ("invalid_duration", "wait")
    assert refused(requests.page_size, 0) == ("out_of_range", "limit")
    assert refused(requests.page_size, 1_001) == ("out_of_range", "limit")
    assert requests.cursor_of("") is None
    assert refused(requests.cursor_of, "x" * 24_001) == ("invalid_cursor", "cursor")


def test_the_name_that_was_meant() -> None:
    assert nearest("Mial", ["mail", "sms"]) == "mail"
    assert nearest("nothing", ["mail", "sms"]) is None


def test_a_long_name_costs_no_more_than_a_short_one() -> None:
    known = [f"queue-{number}" for number in range(1_000)]

    def cost(letters: int) -> float:
        began = time.process_time()
        for _ in range(5):
            nearest("queue" * (letters // 5), known)
        return time.process_time() - began

    cost(100)
    assert cost(3_000_000) < 20 * cost(100) + 0.2
