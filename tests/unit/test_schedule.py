"""A schedule as data, and the tasks of its fire times."""

from __future__ import annotations

import json
import uuid

import pytest

from taskmill.clock import HOUR, SECOND
from taskmill.cron import Cron, Misfire, Overlap
from taskmill.errors import TaskmillError
from taskmill.retry import Retry
from taskmill.schedule import FIRE_TIME, SCHEDULE, Schedule, task_id, tasks_for

NINE = 1_800_003_600 * SECOND

FULL = Schedule(
    type="report",
    cron=Cron.parse("0 9 * * MON-FRI", "Europe/Paris", start=5),
    payload=b'{"region":7,"exact":9007199254740993}',
    overlap=Overlap.SKIP,
    misfire=Misfire.ALL,
    queue="reports",
    priority=2,
    retry=Retry.fixed(max_retries=2, delay="5s"),
    timeout=30 * SECOND,
    max_crashes=1,
    expires=HOUR,
    tenant="acme",
    headers={"traceparent": "00-1"},
    tags={"team": "finance"},
    limits=("printer", "region:{region}"),
)
SMALL = Schedule(type="report", cron=Cron.parse("@daily"))


@pytest.mark.parametrize("schedule", [FULL, SMALL], ids=["full", "small"])
def test_it_comes_back_as_it_was(schedule: Schedule) -> None:
    assert Schedule.decode(schedule.encode()) == schedule
    assert Schedule.decode(schedule.encode()).encode() == schedule.encode()
    assert Schedule.from_data(json.loads(schedule.encode())) == schedule


def test_what_is_left_out_is_not_written() -> None:
    assert json.loads(SMALL.encode()) == {"type": "report", "cron": {"expression": "@daily"}}


def test_what_an_operator_puts() -> None:
    short = Schedule.decode(b'{"type": "report", "cron": "0  9 * * *", "payload": {"region": 7}, "overlap": "replace"}')
    assert short == Schedule(type="report", cron=Cron.parse("0 9 * * *"), payload=b'{"region":7}', overlap=Overlap.REPLACE)


REFUSED = {
    "no object": ([], "schedule"),
    "nothing": ({}, "schedule"),
    "no cron": ({"type": "a"}, "schedule"),
    "no type": ({"cron": "@daily"}, "schedule"),
    "type": ({"type": "No Name", "cron": "@daily"}, "type"),
    "expression": ({"type": "a", "cron": "* * *"}, "cron"),
    "cron of a wrong form": ({"type": "a", "cron": 5}, "cron"),
    "zone": ({"type": "a", "cron": {"expression": "@daily", "timezone": "Mars/Base"}}, "timezone"),
    "unknown field": ({"type": "a", "cron": "@daily", "overlaps": "skip"}, "schedule"),
    "overlap": ({"type": "a", "cron": "@daily", "overlap": "maybe"}, "schedule"),
    "misfire": ({"type": "a", "cron": "@daily", "misfire": 1}, "schedule"),
    "queue": ({"type": "a", "cron": "@daily", "queue": "A B"}, "queue"),
    "priority": ({"type": "a", "cron": "@daily", "priority": 4}, "priority"),
    "timeout": ({"type": "a", "cron": "@daily", "timeout": 1}, "timeout"),
    "expires": ({"type": "a", "cron": "@daily", "expires": -5}, "expires"),
    "tags": ({"type": "a", "cron": "@daily", "tags": {"a": ""}}, "tags.a"),
    "limit without its key": ({"type": "a", "cron": "@daily", "limits": ["user:{user}"]}, "payload.user"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_task_could_have_is_refused(case: str) -> None:
    data, field = REFUSED[case]
    with pytest.raises(TaskmillError) as refused:
        Schedule.decode(json.dumps(data).encode())
    assert refused.value.field == field
    assert refused.value.hint


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"type":"a","type":"b","cron":"@daily"}'], ids=["empty", "cut", "bytes", "twice"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(TaskmillError) as refused:
        Schedule.decode(text)
    assert refused.value.field == "schedule"


def test_a_payload_that_is_no_json_is_refused() -> None:
    with pytest.raises(TaskmillError) as refused:
        Schedule(type="a", cron=Cron.parse("@daily"), payload=b"{oops")
    assert refused.value.field == "payload"


def test_the_tasks_of_fire_times() -> None:
    first, second = tasks_for("morning", FULL, [NINE, NINE + HOUR])
    assert (first.type, first.payload, first.queue, first.priority) == ("report", FULL.payload, "reports", 2)
    assert (first.retry, first.timeout, first.max_crashes, first.tenant) == (FULL.retry, 30 * SECOND, 1, "acme")
    assert (first.run_at, second.run_at) == (NINE, NINE + HOUR)
    assert (first.expires_at, second.expires_at) == (NINE + HOUR, NINE + 2 * HOUR)
    assert dict(first.headers) == {"traceparent": "00-1", SCHEDULE: "morning", FIRE_TIME: "2027-01-15T09:00:00Z"}
    assert (first.tags, first.limits) == (FULL.tags, FULL.limits)


def test_an_id_is_that_of_a_name_and_a_time() -> None:
    ids = {task.id for name in ("morning", "evening") for task in tasks_for(name, SMALL, [NINE, NINE + 1])}
    assert len(ids) == 4
    assert [task.id for task in tasks_for("morning", FULL, [NINE])] == [task.id for task in tasks_for("morning", SMALL, [NINE])] == [task_id("morning", NINE)]
    assert all(str(uuid.UUID(id)) == id for id in ids)


def test_ids_stay_the_same_over_releases() -> None:
    """A leader of the last release and one of this one must mean the same task."""
    assert task_id("morning", NINE) == "847f7b1d-d3e2-5a5b-977b-d55d32b677a4"


def test_a_name_that_is_none_makes_nothing() -> None:
    with pytest.raises(TaskmillError) as refused:
        tasks_for("No Name", SMALL, [NINE])
    assert refused.value.field == "schedule"
