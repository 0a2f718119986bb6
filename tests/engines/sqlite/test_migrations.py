"""Stores that an earlier version wrote: every migration brings them to what this version expects, with all that is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Durability
from taskmill.engines.sqlite import migrate
from taskmill.engines.sqlite.connection import connect
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.engines.sqlite.sql import migrations
from taskmill.task import new_id

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
