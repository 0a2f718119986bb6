"""The floor on PostgreSQL: a table whose rows change their state in place, and nothing else. No leases, no limits, no history, no events.

One connection claims a batch (one UPDATE … RETURNING over what FOR UPDATE SKIP LOCKED gave it, by an index of what is ready) and finishes it (one UPDATE over
its ids), each a transaction of its own. What an engine costs beyond this is what its promises cost.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Coroutine
from typing import Any

import asyncpg

__all__ = ["Commits", "claim_and_finish"]

SCHEMA = """
CREATE TABLE job (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL, state smallint NOT NULL DEFAULT 0, priority smallint NOT NULL DEFAULT 1,
  ready_at timestamptz NOT NULL DEFAULT now(), attempts smallint NOT NULL DEFAULT 0, worker text, lease timestamptz, payload jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz) WITH (fillfactor = 50);
CREATE INDEX job_ready ON job (queue, priority DESC, ready_at, id) WHERE state = 0;
CREATE INDEX job_lease ON job (lease) WHERE state = 1;
"""

CLAIM = """
WITH next AS MATERIALIZED (
  SELECT id FROM job WHERE queue = 'default' AND state = 0 AND ready_at <= now() ORDER BY priority DESC, ready_at, id LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE job SET state = 1, attempts = attempts + 1, worker = $1, lease = now() + interval '30 s' FROM next WHERE job.id = next.id
RETURNING job.id, job.payload, job.attempts
"""

FINISH = "UPDATE job SET state = 2, ended_at = now(), lease = NULL WHERE id = ANY($1::bigint[]) AND state = 1"


def claim_and_finish(url: str, jobs: int, batch: int, payload: str) -> float:
    """Jobs a second, through a table made for it in an empty database; the jobs are there before the clock starts."""
    return _in_a_loop(_claim_and_finish(url, jobs, batch, payload))


async def _claim_and_finish(url: str, jobs: int, batch: int, payload: str) -> float:
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute(SCHEMA)
        for start in range(0, jobs, 10_000):
            rows = [("default", payload)] * min(10_000, jobs - start)
            await connection.copy_records_to_table("job", records=rows, columns=["queue", "payload"])
        await connection.execute("VACUUM (ANALYZE) job")
        began = time.perf_counter()
        done = 0
        while claimed := await connection.fetch(CLAIM, "bench", batch):
            await connection.execute(FINISH, [row[0] for row in claimed])
            done += len(claimed)
        assert done == jobs, f"{done} of {jobs} jobs were finished"
        return done / (time.perf_counter() - began)
    finally:
        await connection.close()


def _in_a_loop(coroutine: Coroutine[Any, Any, float]) -> float:
    """The fastest kind there is, as a worker has."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=importlib.import_module("uvloop").new_event_loop) as runner:
        return runner.run(coroutine)


class Commits:
    """Commits of one small row: what the disk alone makes a writer wait, measured in between the steps of an engine."""

    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self._url = url
        self._connection: Any = None

    async def measure(self) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
            await self._connection.execute("CREATE TABLE probe (at timestamptz)")
        began = time.perf_counter()
        await self._connection.execute("INSERT INTO probe VALUES (now())")
        self.seconds.append(time.perf_counter() - began)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
