"""Running tasks made by plain SQL, so that what one step does with them can be shown alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from taskmill.clock import SECOND
from taskmill.engine import Durability, Ending, Outcome
from taskmill.engines.postgres.store import Store
from taskmill.task import Rules, new_id
from tests.engines.postgres.tools import opened

__all__ = ["WORKER", "Lease", "blocked", "lease", "leases", "opened_store", "outcome"]

WORKER = "worker-1"
GENEROUS = 30.0
MAKE = """
WITH queue AS (INSERT INTO taskmill.queue (name) VALUES ('default') ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id), made AS (
    INSERT INTO taskmill.task (id, seq, lane, type, state, priority, flags, version, executions, ready_at, updated_at, token, worker, request, claimed_at)
    SELECT u.id, nextval('taskmill.seq'), CASE WHEN $2 = 0 THEN -queue.id ELSE u.place % $2 + 1 END, 'work', 3, 2, $3, 2, 1, 1, 1,
        nextval('taskmill.token'), $4, 1, 1
    FROM unnest($1::uuid[]) WITH ORDINALITY u(id, place), queue RETURNING id, seq, token)
INSERT INTO taskmill.body (id, seq, type, queue, tenant, priority, created_at, run_at, timeout, max_crashes, payload)
SELECT id, seq, 'work', 'default', '', 2, 1, 1, 60000000, 3, '{}' FROM made ORDER BY id"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Lease(Struct, frozen=True):
    task: str
    token: int


@contextlib.asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[Store]:
    async with opened(url) as pool:
        yield Store(pool, pool.target.schema, clock=None, durability=Durability.FSYNC, lease=4 * SECOND, term=10 * SECOND, rules=Rules())


async def leases(store: Store, n: int, *, flags: int = 0, lanes: int = 0) -> list[Lease]:
    """So many running tasks of one worker, in the order of their ids; in a queue's plain line, or spread over so many lanes."""
    ids = sorted(new_id() for _ in range(n))
    await store.pool.fetch(MAKE, ids, lanes, flags, WORKER)
    rows = await store.pool.fetch("SELECT id::text, token FROM taskmill.task WHERE id = ANY ($1::uuid[]) ORDER BY id", ids)
    return [Lease(*row) for row in rows]


async def lease(store: Store, *, flags: int = 0) -> Lease:
    [made] = await leases(store, 1, flags=flags)
    return made


def outcome(held: Lease, ending: Ending = Ending.COMPLETED, **fields: Any) -> Outcome:
    return Outcome(task=held.task, worker=WORKER, token=held.token, ending=ending, **fields)


async def blocked(store: Store, n: int = 1) -> None:
    """Until so many steps wait for a lock."""
    deadline = time.monotonic() + GENEROUS
    while await store.pool.fetchval(WAITING) < n:
        assert time.monotonic() < deadline, "nobody waits"
        await asyncio.sleep(0.005)
