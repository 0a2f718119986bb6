"""Stores that an earlier version wrote: every migration brings them to what this version expects, with all that is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Durability, Ending, Filter, Joining, Outcome, Room
from taskmill.engines.sqlite import migrate
from taskmill.engines.sqlite.connection import connect
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.engines.sqlite.sql import migrations
from taskmill.task import State, Task, TypeSettings, new_id
from tests.faults.invariants import broken, miscounted

FAR = 1 << 62


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def old(path: Path, clock: ManualClock) -> Iterator[apsw.Connection]:
    """A store of the first schema, to be filled by hand."""
    db = connect(path, durability=Durability.FSYNC, busy_timeout=SECOND)
    assert isinstance(db, apsw.Connection)
    number, name, statements = migrations()[0]
    with db:
        migrate._apply(db, number, name, statements, clock.now())
    yield db
    db.close()


def add_task(db: apsw.Connection, seq: int, clock: ManualClock, **columns: object) -> str:
    row = {"seq": seq, "id": new_id(), "type": "work", "queue": "default", "tenant": "", "lane": -1, "state": 0, "priority": 1}
    row |= {"ready_at": clock.now(), "created_at": clock.now(), "updated_at": clock.now(), **columns}
    meta = row.pop("meta", None)
    db.execute(f"INSERT INTO taskmill_task ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    db.execute("INSERT INTO taskmill_body (seq, payload, timeout, max_crashes, run_at, meta) VALUES (?, 'null', 60000000, 3, ?, ?)", (seq, clock.now(), meta))
    db.execute("UPDATE taskmill_store SET seq = max(seq, ?)", (seq,))
    db.execute("INSERT INTO taskmill_queue (id, name) VALUES (1, 'default') ON CONFLICT DO NOTHING")
    return str(row["id"])


async def test_edges_get_their_numbers_in_order(old: apsw.Connection, path: Path, clock: ManualClock) -> None:
    children = [add_task(old, n, clock) for n in range(1, 6)]
    parents = [add_task(old, n, clock, state=4, ready_at=FAR, flags=16, open_edges=5) for n in (6, 7)]
    coming = new_id()
    for n in range(5):
        for parent in (6, 7):
            old.execute("INSERT INTO taskmill_edge (parent, child, child_id, on_failure) VALUES (?, ?, ?, 0)", (parent, n + 1, children[n]))
    old.execute("INSERT INTO taskmill_edge (parent, child, child_id, on_failure) VALUES (7, -1, ?, 0)", (coming,))
    engine = SQLiteEngine(path, clock=clock)
    await engine.open()
    try:
        assert [edge.task for edge in await engine.edges(parents[0], after=1, n=3)] == children[1:4]
        assert [edge.task for edge in await engine.edges(parents[1])] == [*children, coming]
    finally:
        await engine.close()
    assert old.execute("SELECT child FROM taskmill_edge WHERE child_id = ?", (coming,)).fetchall() == [(0,)]


async def test_counts_of_tasks_that_were_there(old: apsw.Connection, path: Path, clock: ManualClock) -> None:
    for n in range(1, 3_001):
        add_task(old, n, clock, state=(0, 5, 5, 6)[n % 4], type=f"type-{n % 3}", finished_at=None if n % 4 == 0 else clock.now())
    engine = SQLiteEngine(path, clock=clock)
    await engine.open()
    try:
        counts = await engine.counts()
        assert sum(count.tasks for count in counts) == 3_000
        assert {count.tasks for count in counts if count.state is State.PENDING} == {250}
        assert {count.oldest for count in counts if count.state is State.PENDING} == {clock.now()}
        assert len((await engine.list(Filter(states=frozenset({State.PENDING})), n=1_000)).tasks) == 750
        assert len((await engine.list(Filter(created_to=clock.now()), n=1_000)).tasks) == 0
        assert len((await engine.list(Filter(created_from=clock.now()), n=1_000)).tasks) == 1_000
    finally:
        await engine.close()
    assert list(miscounted(old)) == []


SHARED = '{"order":"k","limits":["per:1"],"share":"x"}'


async def test_keys_of_tenants_become_their_own(old: apsw.Connection, path: Path, clock: ManualClock) -> None:
    """Four tasks of two tenants and one of nobody shared one lane; the first of them runs."""
    old.execute("INSERT INTO taskmill_share (id, queue, name) VALUES (1, 1, 'x')")
    old.execute("INSERT INTO taskmill_lane (id, queue, share, limits, order_key, type) VALUES (1, 1, 1, '[\"per:1\"]', 'k', '')")
    old.execute("INSERT INTO taskmill_counter (id, name, running) VALUES (1, 'per:1', 1)")
    old.execute("INSERT INTO taskmill_item (kind, name, operator, value, version) VALUES ('limit', 'per', 1, '{\"cap\":1}', 1)")
    worker = ("w", '["default"]', '["work"]', 4_000_000, clock.now(), "{}")
    old.execute("INSERT INTO taskmill_worker (id, queues, types, lease, joined_at, info) VALUES (?, ?, ?, ?, ?, ?)", worker)
    lease = {"state": 3, "token": 7, "worker": "w", "request": 1, "claimed_at": clock.now(), "executions": 1}
    tasks = []
    for n, (tenant, more) in enumerate([("acme", lease), ("beta", {}), ("acme", {}), ("beta", {}), ("", {})], 1):
        tasks.append(add_task(old, n, clock, lane=1, tenant=tenant, flags=1, meta=SHARED, **more))
        old.execute("INSERT INTO taskmill_ordered (lane, seq) VALUES (1, ?)", (n,))
        clock.advance(1)
    engine = SQLiteEngine(path, clock=clock)
    await engine.open()
    try:
        await engine.join(Joining(worker="v", queues=("default",), types={"work": TypeSettings()}))
        first = await engine.claim("v", 1, ["default"], Room(10))
        assert sorted(task.id for task in first.tasks) == sorted([tasks[1], tasks[4]]), "each the first of its own; that of acme runs"
        assert {task.limits for task in first.tasks} == {("per:1",)}
        await engine.finish([Outcome(task=tasks[0], worker="w", token=7, ending=Ending.COMPLETED)])
        second = await engine.claim("v", 2, ["default"], Room(10))
        assert [task.id for task in second.tasks] == [tasks[2]]
        [shown] = await engine.get([tasks[3]])
        assert isinstance(shown, Task)
        assert (shown.order_key, shown.limits, shown.fair_key) == ("k", ("per:1",), "x")
    finally:
        await engine.close()
    assert broken(old) == []
