"""How PostgreSQL finds the rows of a finish among 100,000: each by its id, whatever the planner believes about the state of the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from taskmill.engine import Checkpoint, Ending
from taskmill.engines.postgres import finish
from taskmill.engines.postgres.connecting import Connection
from taskmill.engines.postgres.store import Store
from tests.engines.postgres.leases import WORKER, Lease, leases, opened_store, outcome

ROWS = 100_000
BATCH = 500
EXPLAIN = """
LOAD 'auto_explain'; SET client_min_messages = log; SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json"""
PROBES = {"store", "falling", "late_edge"}
"""A table of one row, and those that are only asked whether there is a row."""
KEYS = {
    ("task", "task_pkey"),
    ("body", "body_pkey"),
    ("ended", "ended_pkey"),
    ("ordered", "ordered_pkey"),
    ("held", "held_id"),
    ("signal", "signal_pkey"),
    ("signal", "signal_id_signal_id_key"),
}


class Plans:
    """The plans of every statement that the connection runs, also of those inside functions."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def hear(self, _: object, said: asyncpg.PostgresLogMessage) -> None:
        text: str = said.message
        if "plan:\n" in text:
            self._add(msgspec.json.decode(text.partition("plan:\n")[2])["Plan"])

    def _add(self, node: dict[str, Any]) -> None:
        self.nodes.append(node)
        for below in node.get("Plans", ()):
            self._add(below)

    def reads(self) -> set[tuple[str, str | None]]:
        """Which table is read by which index; None: from end to end."""
        scans = [node for node in self.nodes if "Relation Name" in node and node["Node Type"].endswith("Scan") and node["Relation Name"] not in PROBES]
        return {(node["Relation Name"], node["Index Name"] if "Index Cond" in node else None) for node in scans}


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    async with opened_store(postgres_url) as store:
        yield store


async def explained(connection: Connection) -> Plans:
    plans = Plans()
    await connection.execute(EXPLAIN)
    connection.add_log_listener(plans.hear)
    return plans


async def many(store: Store, *, flags: int = 0, lanes: int = 0) -> list[Lease]:
    held = await leases(store, ROWS, flags=flags, lanes=lanes)
    await store.pool.fetch("ANALYZE taskmill.task")
    return held


@pytest.mark.parametrize("analysed", [True, False], ids=["statistics", "no statistics"])
async def test_completed_tasks_are_found_by_their_ids(store: Store, analysed: bool) -> None:
    held = await leases(store, ROWS, flags=1 | 8 | 32 | 1024, lanes=100)
    if analysed:
        await store.pool.fetch("ANALYZE taskmill.task")
    async with store.pool.transaction() as connection:
        plans = await explained(connection)
        answer = await finish.finish(store, [outcome(each) for each in held[:BATCH]], db=connection)
        assert answer.refused == ()
        await finish.finish(store, [outcome(each) for each in held[: BATCH * 2]], db=connection)
        stale = await finish.finish(store, [outcome(Lease(each.task, 0)) for each in held[-BATCH:]], db=connection)
        assert len(stale.refused) == BATCH
    assert ("task", "task_pkey") in plans.reads()
    assert plans.reads() <= KEYS


async def test_no_batch_is_multiplied_by_itself(store: Store) -> None:
    """Two sets of the caller's that are joined without an index between them cost the square of the batch."""
    held = await many(store, lanes=1_000)
    async with store.pool.transaction() as connection:
        plans = await explained(connection)
        await connection.execute("SET auto_explain.log_analyze = on")
        await finish.finish(store, [outcome(each) for each in held[:BATCH]], db=connection)
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plans.nodes) <= BATCH
    assert max(node.get("Rows Removed by Join Filter", 0) for node in plans.nodes) == 0


async def test_other_steps_touch_their_own_rows_only(store: Store) -> None:
    held = await many(store, flags=1 | 8 | 32 | 1024, lanes=100)
    endings = [ending for ending in Ending if ending is not Ending.COMPLETED]
    async with store.pool.transaction() as connection:
        plans = await explained(connection)
        for place, ending in enumerate(endings):
            batch = [outcome(each, ending, tasks=(held[-1].task,), signals=("go",)) for each in held[place * 20 :][:20]]
            assert (await finish.finish(store, batch, db=connection)).refused == ()
        await connection.fetch("SELECT * FROM taskmill.signal($1, 'go', '1', 'signal-1', NULL)", held[0].task)
        entries = [Checkpoint(task=each.task, worker=WORKER, token=each.token, name="one") for each in held[-20:]]
        columns = [[getattr(entry, field) for entry in entries] for field in ("task", "token", "worker", "name", "value", "progress", "unwind", "phase")]
        assert await connection.fetch("SELECT * FROM taskmill.checkpoint($1, $2, $3, $4, $5, $6, $7, $8, NULL)", *columns) == []
    assert [read for read in plans.reads() if read[1] is None] == []
    assert {index for table, index in plans.reads() if table == "task"} == {"task_pkey"}
