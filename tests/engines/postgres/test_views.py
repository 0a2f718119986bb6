"""The views for people with psql: times as timestamps, states as words, documents as JSON that can be searched."""

from __future__ import annotations

import datetime as dt
import json

import asyncpg
import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending
from taskmill.task import State, Task
from tests.conformance.tools import new, record, step, submit, submit_one, worker
from tests.conformance.tools_b import led, make
from tests.engines.postgres.stores import Stores


async def shown(db: asyncpg.Connection, task: str) -> asyncpg.Record:
    row = await db.fetchrow("SELECT * FROM taskmill.tasks_v WHERE id = $1", task)
    assert row is not None
    return row


def moment(micros: int | None) -> dt.datetime | None:
    return None if micros is None else dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


@pytest.mark.parametrize("state", list(State))
async def test_a_task_in_every_state(stores: Stores, state: State) -> None:
    engine, db = await stores.engine(), await stores.connect()
    made = await make(engine, state, payload={"n": [1, None]}, tags={"run": "7"}, tenant="acme", priority=2)
    # The views go by the server's clock; the test's own is in another year, and what is due by the server's reads as pending.
    row, task = await shown(db, made.id), await record(engine, made.id)
    assert row["state"] in (task.state, State.PENDING)
    assert (row["type"], row["queue"], row["tenant"], row["priority"]) == (task.type, task.queue, "acme", 2)
    assert json.loads(row["payload"]) == {"n": [1, None]}
    assert json.loads(row["tags"]) == {"run": "7"}
    assert (row["result"], row["worker"]) == ('"made"' if state is State.COMPLETED else None, _worker(task))
    assert (row["created_at"], row["run_at"], row["finished_at"]) == (moment(task.created_at), moment(task.run_at), moment(task.finished_at))
    assert (row["version"], row["executions"], row["failures"]) == (task.version, task.executions, task.failures)


def _worker(task: Task) -> str | None:
    return task.worker if task.state in {State.RUNNING, State.COMPLETED, State.DEAD, State.CANCELLED} else None


async def test_what_is_due_reads_as_pending(stores: Stores) -> None:
    engine, db = await stores.engine(clock=None), await stores.connect()
    late, due = await submit(engine, new(delay=HOUR), new(run_at=1))
    assert [(await shown(db, task))["state"] for task in (late, due)] == ["scheduled", "pending"]


@pytest.mark.parametrize(
    ("document", "seen"),
    [
        (r'"a\u0000b"', "a\ufffdb"),
        (r'{"k\u0000":"\\u0000 \\\u0000"}', {"k\ufffd": "\\u0000 \\\ufffd"}),
        ("1e999999", None),
        ("12345678901234567890", 12345678901234567890),
    ],
)
async def test_documents_that_jsonb_cannot_hold(stores: Stores, document: str, seen: object) -> None:
    """Whatever one row holds, a query over all of them goes through."""
    db = await stores.connect()
    found = await db.fetchval("SELECT taskmill.as_jsonb($1)", document)
    assert (None if found is None else json.loads(found)) == seen


async def test_tasks_can_be_joined_and_counted_with_plain_sql(stores: Stores) -> None:
    engine, db = await stores.engine(), await stores.connect()
    await submit(engine, *(new({"customer": n % 3}) for n in range(9)))
    rows = await db.fetch("SELECT payload ->> 'customer' AS customer, count(*) AS n FROM taskmill.tasks_v WHERE queue = 'default' GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in rows] == [("0", 3), ("1", 3), ("2", 3)]


async def test_attempts_are_those_of_the_engine(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    hand = await worker(engine)
    id = await submit_one(engine)
    for ending in (Ending.RETRY, Ending.CRASHED, Ending.DEAD):
        clock.advance("1m")
        await hand.done(await hand.claim_one(), ending=ending)
    running = await submit_one(engine)
    claimed = await hand.claim_one()
    assert await db.fetchval("SELECT started_at FROM taskmill.task_executions WHERE id = $1", running) is None, "claimed, and not known to have begun"
    assert (await shown(db, running))["started_at"] is None
    assert (await shown(db, running))["claimed_at"] == moment(claimed.claimed_at)
    await engine.checkpoint([step(claimed, started_after=5)])
    assert (await shown(db, running))["started_at"] == moment(claimed.claimed_at + 5)
    for task in (id, running):
        rows = await db.fetch("SELECT * FROM taskmill.task_executions WHERE id = $1 ORDER BY number", task)
        attempts = await engine.attempts(task)
        fields = ("number", "worker", "token", "started_at", "ended_at", "outcome")
        assert [tuple(row[name] for name in fields) for row in rows] == [tuple(getattr(attempt, name) for name in fields) for attempt in attempts]
        assert [row["duration_ms"] for row in rows] == [None if a.ended_at is None else (a.ended_at - a.started_at) / 1_000 for a in attempts]
        people = await db.fetch("SELECT * FROM taskmill.attempts_v WHERE id = $1 ORDER BY number", task)
        assert [(row["type"], row["number"], row["started_at"], row["outcome"]) for row in people] == [
            ("work", attempt.number, moment(attempt.started_at), attempt.outcome) for attempt in attempts
        ]
    errors = [
        None if row["error"] is None else json.loads(row["error"])["code"] for row in await db.fetch("SELECT * FROM taskmill.attempts_v WHERE id = $1", id)
    ]
    assert errors.count("oops") == 2


async def test_schedules(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    put = await engine.put("schedule", "nightly", b'{"cron": "0 3 * * *", "overlap": "skip"}')
    await engine.put("schedule", "never", b'{"cron": "0 4 * * *"}', operator=False)
    await engine.put("pause", "schedule:never", b'{"reason": "orphaned"}')
    task = new()
    await engine.fire("nightly", put.version, [task], clock.now() + HOUR, await led(engine))
    never, nightly = await db.fetch("SELECT * FROM taskmill.schedules ORDER BY name")
    assert (never["name"], never["paused"], never["pause_reason"], never["next_at"], never["operator"]) == ("never", True, "orphaned", None, False)
    assert (nightly["cron"], nightly["overlap"], nightly["paused"], nightly["version"]) == ('"0 3 * * *"', "skip", False, put.version)
    assert (nightly["next_at"], nightly["fired_at"], str(nightly["last_task"])) == (moment(clock.now() + HOUR), moment(clock.now()), task.id)


async def test_scheduled_jobs(stores: Stores, clock: ManualClock) -> None:
    engine, db = await stores.engine(), await stores.connect()
    put = await engine.put("schedule", "nightly", b'{"type": "work", "cron": {"expression": "0 3 * * *", "timezone": "Europe/Paris"}, "payload": {"a": 1}}')
    await engine.put("schedule", "never", b'{"type": "work", "cron": {"expression": "0 4 * * *"}}')
    await engine.put("pause", "schedule:never", b"{}")
    task = new()
    await engine.fire("nightly", put.version, [task], clock.now() + HOUR, await led(engine))
    never, nightly = await db.fetch("SELECT * FROM taskmill.scheduled_jobs ORDER BY name")
    assert (never["expr"], never["timezone"], never["payload"], never["enabled"], never["next_run_at"]) == ("0 4 * * *", "UTC", "null", False, None)
    assert (nightly["expr"], nightly["timezone"], nightly["task_type"], json.loads(nightly["payload"])) == ("0 3 * * *", "Europe/Paris", "work", {"a": 1})
    assert (nightly["enabled"], nightly["next_run_at"], nightly["last_run_at"]) == (True, moment(clock.now() + HOUR), moment(clock.now()))
