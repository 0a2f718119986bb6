"""A store that the program before made and filled: what it holds goes on under the rules of this one."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Joining, Room, Status
from taskmill.engines.postgres import migrate, sql
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.postgres.target import parse
from taskmill.task import NewTask, OnLimit, State, Task, TypeSettings, new_id
from tests.faults.invariants_postgres import broken

BEFORE = 11
"""The last migration of the program before."""
SUBMIT = """SELECT * FROM submit($1, $2, $3, $4::text::json, NULL, NULL, NULL, $5, NULL, $6, $7, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    (SELECT generation FROM store), 100, true, NULL)"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The migrations of the version before."""
    for file in Path(str(sql.MIGRATIONS)).glob("*.sql"):
        if int(file.name[:4]) <= BEFORE:
            shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture
async def old(empty_url: str, folder: Path) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a store of the version before."""
    pool = Pool(parse(empty_url))
    await pool.open()
    await migrate.upgrade(pool, folder=folder)
    await pool.close()
    db = await asyncpg.connect(**parse(empty_url).arguments(), server_settings={"search_path": parse(empty_url).schema})
    yield db
    await db.close()


async def put(db: asyncpg.Connection, kind: str, name: str, value: dict[str, Any]) -> None:
    await db.fetch("SELECT put_setting($1, $2, true, $3, NULL, NULL)", kind, name, json.dumps(value).encode())


async def submitted(db: asyncpg.Connection, number: int, meta: dict[str, Any], *, key: str | None = None, **line: Any) -> str:
    """As the program before wrote it."""
    id = new_id()
    fields = {"type": "work", "queue": "default", "priority": 1, "timeout": 60_000_000, "max_crashes": 3, **line}
    keys = None if key is None else [key]
    rows = await db.fetch(
        SUBMIT, [id], [str(number)], [1], json.dumps([fields]), [json.dumps(meta, separators=(",", ":"))], keys, None if key is None else [b"\0"]
    )
    assert [row["status"] for row in rows] in ([], ["rejected"])
    return id


async def upgraded(url: str) -> PostgresEngine:
    engine = PostgresEngine(parse(url), clock=ManualClock(1_900_000_000_000_000))
    assert await engine.migrate()
    await engine.open()
    await engine.join(Joining(worker="w", queues=("default",), types={"work": TypeSettings(queue="default")}))
    return engine


async def test_keys_of_tenants_become_their_own(old: asyncpg.Connection, empty_url: str) -> None:
    await put(old, "limit", "per-user", {"cap": 1})
    ids = {}
    for number, tenant in enumerate(("acme", "best", "acme", "")):
        meta = {"limits": ["per-user:1"], "share": "gold", "order": "k"}
        ids[number] = await submitted(old, number, meta, tenant=tenant, limits=["per-user:1"], share="gold", order_key="k")
    first = await submitted(old, 9, {"share": "acme"}, tenant="acme", share="acme")
    engine = await upgraded(empty_url)
    try:
        shown = [task for task in await engine.get(list(ids.values())) if isinstance(task, Task)]
        assert {(task.limits, task.fair_key, task.order_key) for task in shown} == {(("per-user:1",), "gold", "k")}
        claimed = await engine.claim("w", 1, ["default"], Room(10))
        assert {task.id for task in claimed.tasks} == {ids[0], ids[1], ids[3], first}, "each tenant's own order and cap; the second of acme waits for the first"
        shares = [row[0] for row in await old.fetch('SELECT name FROM share WHERE top IS NOT NULL OR id IN (SELECT share FROM lane) ORDER BY name COLLATE "C"')]
        assert {"acme\x1fgold", "best\x1fgold", "gold", "acme"} <= set(shares)
        metas = [json.loads(row[0]) for row in await old.fetch("SELECT meta FROM body WHERE tenant = 'acme' AND meta LIKE '%order%'")]
        assert all((meta["order"], meta["limits"], meta["share"]) == ("acme\x1fk", ["per-user:acme\x1f1"], "acme\x1fgold") for meta in metas)
        assert not await broken(old)
    finally:
        await engine.close()


async def test_running_tasks_are_counted_under_their_new_keys(old: asyncpg.Connection, empty_url: str) -> None:
    await put(old, "limit", "per-user", {"cap": 1, "rate": 5, "window": 60_000_000})
    await old.fetch("SELECT join_worker('o', '{default}', '{work}', 4000000, '{}', '', 0, '{}', '{}', '{}', NULL, NULL)")
    for number in range(2):
        await submitted(old, number, {"limits": ["per-user:1"]}, tenant="acme", limits=["per-user:1"])
    rows = await old.fetch("SELECT * FROM claim('o', 1, '{default}', 10, NULL, 0, 1000000, NULL)")
    assert len(rows) == 2, "one, and the row at the end"
    engine = await upgraded(empty_url)
    try:
        assert (await engine.claim("w", 1, ["default"], Room(10))).tasks == (), "the cap is full"
        counters = {row["name"]: row["running"] for row in await old.fetch("SELECT name, running FROM counter")}
        assert counters == {"per-user:1": 0, "per-user:acme\x1f1": 1}
        assert await old.fetchval("SELECT sum(tasks) FROM start s JOIN counter c ON c.id = s.counter WHERE c.name = $1", "per-user:acme\x1f1") == 1
        assert not await broken(old)
    finally:
        await engine.close()


async def test_what_was_rejected_before_holds_no_key(old: asyncpg.Connection, empty_url: str) -> None:
    await put(old, "limit", "full", {"rate": 1, "window": 3_600_000_000})
    meta = {"key": "k", "limits": ["full"], "own": True}
    await submitted(old, 1, {"limits": ["full"], "own": True}, limits=["full"], rejects=True)
    dead = await submitted(old, 1, meta, key="k", limits=["full"], rejects=True)
    engine = await upgraded(empty_url)
    try:
        repeat = NewTask(type="work", queue="default", payload=b"1", id=dead, idempotency_key="k", limits=("full",), on_limit=OnLimit.REJECT)
        [answer] = await engine.submit([repeat])
        assert (answer.status, answer.id) == (Status.REJECTED, dead)
        [answer] = await engine.submit([NewTask(type="work", queue="default", payload=b"1", idempotency_key="k")])
        assert answer.status is Status.CREATED
        [task] = await engine.get([dead])
        assert isinstance(task, Task)
        assert (task.state, task.suspect) == (State.DEAD, False)
    finally:
        await engine.close()
