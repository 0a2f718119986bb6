"""The floor: a table whose rows change their state, and nothing else. No leases, no limits, no events, no threads.

It claims a batch (one UPDATE … RETURNING over an index of what is ready) and finishes it (one UPDATE a row), each in a transaction of its own, in a WAL
database at synchronous=FULL. What an engine costs beyond this is what its promises cost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

__all__ = ["Commits", "claim_and_finish"]

SCHEMA = """
CREATE TABLE job (
  id INTEGER PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL, priority INTEGER NOT NULL, ready_at INTEGER NOT NULL, attempts INTEGER NOT NULL,
  worker TEXT, lease INTEGER, payload TEXT NOT NULL, created_at INTEGER NOT NULL, ended_at INTEGER);
CREATE INDEX job_ready ON job (queue, priority DESC, ready_at, id) WHERE state = 0;
CREATE INDEX job_lease ON job (lease) WHERE state = 1;
"""

ADD = "INSERT INTO job (queue, state, priority, ready_at, attempts, payload, created_at) VALUES ('default', 0, 1, ?1, 0, ?2, ?1)"

CLAIM = """
UPDATE job SET state = 1, attempts = attempts + 1, worker = ?1, lease = ?2 WHERE id IN (
  SELECT id FROM job WHERE queue = 'default' AND state = 0 AND ready_at <= ?3 ORDER BY priority DESC, ready_at, id LIMIT ?4)
RETURNING id, payload, attempts
"""

FINISH = "UPDATE job SET state = 2, ended_at = ?1, lease = NULL WHERE id = ?2 AND state = 1"

LEASE = 30_000_000


def connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY", "cache_size = -65536", "mmap_size = 268435456"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def now() -> int:
    return time.time_ns() // 1_000


def claim_and_finish(path: Path, jobs: int, batch: int, payload: str) -> float:
    """Jobs a second, through a database made for it; the jobs are there before the clock starts."""
    with contextlib.closing(connect(path)) as connection:
        connection.execute(SCHEMA)
        for start in range(0, jobs, 10_000):
            with transaction(connection):
                connection.executemany(ADD, [(now(), payload)] * min(10_000, jobs - start))
        began = time.perf_counter()
        done = 0
        while claimed := _claim(connection, batch):
            with transaction(connection):
                ended_at = now()
                connection.executemany(FINISH, [(ended_at, job) for job, _, _ in claimed])
            done += len(claimed)
        assert done == jobs, f"{done} of {jobs} jobs were finished"
        return done / (time.perf_counter() - began)


def _claim(connection: apsw.Connection, batch: int) -> list[tuple[int, str, int]]:
    with transaction(connection):
        at = now()
        return list(connection.execute(CLAIM, ("bench", at + LEASE, at, batch)))


class Commits:
    """Commits of one small row: what the disk alone makes a writer wait, measured in between the steps of an engine."""

    def __init__(self, path: Path) -> None:
        self.seconds: list[float] = []
        self._connection = connect(path)
        self._connection.execute("CREATE TABLE probe (at INTEGER)")

    async def measure(self) -> None:
        began = time.perf_counter()
        self._connection.execute("INSERT INTO probe VALUES (?)", (now(),))
        self.seconds.append(time.perf_counter() - began)

    async def close(self) -> None:
        self._connection.close()
