"""A store of PostgreSQL with a million tasks that wait, a million behind a closed limit, and a million that ended; filled as the engine would.

Beside them: delayed tasks and retries in a plain line and in lanes, tasks that wait for others, the leases of a dead worker, and what has expired.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql

__all__ = ["BELIEFS", "DEAD_WORKER", "MILLION", "OPEN", "believe", "fill", "id_of"]

MILLION = 1_000_000
LANES = 20_000
OPEN = 1_000
"""Every lane has a limit of its own; in most of them everything sleeps, in the first ones something is ready."""
DEAD_WORKER = "dead-1"
LARGE = ["task", "body", "ended"]

NOW = time.time_ns() // 1000
AGO, LATER, FOREVER = f"{NOW - 3_600_000_000} + n", f"{NOW + 3_600_000_000} + n", 4611686018427387904
KINDS = ["ended", "closed", "plain", "later", "asleep", "ready", "waiting", "held"]
"""In the order of submission; each has the ids and the numbers of its own million."""


def id_of(kind: str, n: int) -> str:
    digits = f"{(KINDS.index(kind) << 32) + n:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _id(kind: str, n: str = "n") -> str:
    return f"lpad(to_hex(({KINDS.index(kind)}::bigint << 32) + {n}), 32, '0')::uuid"


def _tasks(kind: str, count: int, queue: str = "default", **columns: object) -> str:
    """Live tasks of one kind; what is not named is as in a pending task, an hour old."""
    row = {"id": _id(kind), "seq": f"{KINDS.index(kind) * MILLION} + n", "lane": "-q.id", "type": "'work'", "state": 0, "priority": 1}
    row |= {"ready_at": AGO, "updated_at": AGO, **columns}
    values = ", ".join(map(str, row.values()))
    return f"INSERT INTO task ({', '.join(row)}) SELECT {values} FROM generate_series(1, {count}) n, queue q WHERE q.name = '{queue}'"


def _bodies(records: str) -> str:
    """Every thousandth has a type of its own and a tag, every hundredth a tenant."""
    return f"""
INSERT INTO body (id, seq, type, queue, tenant, priority, created_at, run_at, timeout, max_crashes, tags, payload)
SELECT id, seq, CASE WHEN seq % 1000 = 0 THEN 'rare' ELSE 'work' END, queue, CASE WHEN seq % 100 = 0 THEN 'acme' ELSE '' END, priority, at, at, 60000000, 3,
  CASE WHEN seq % 1000 = 0 THEN jsonb '{{"customer": "acme"}}' END, '{{"user": 42}}' FROM ({records}) x"""


FIRST_LANE = "SELECT min(l.id) FROM lane l JOIN queue k ON k.id = l.queue WHERE k.name = 'lanes'"
CLOSED_LANE = "SELECT id FROM lane WHERE shut IS NOT NULL"
LIVE = """SELECT t.id, t.seq, q.name AS queue, t.priority, t.updated_at AS at FROM task t LEFT JOIN lane l ON l.id = t.lane
JOIN queue q ON q.id = coalesce(l.queue, -t.lane) WHERE"""

NAMES = [
    "INSERT INTO queue (name) VALUES ('default'), ('later'), ('lanes')",
    "INSERT INTO share (queue, name, top) SELECT id, '', CASE name WHEN 'lanes' THEN 1 END FROM queue WHERE name <> 'later'",
    f"INSERT INTO counter (name, cap) SELECT 'closed', 0 UNION ALL SELECT 'own:' || n, 1000 FROM generate_series(1, {LANES}) n",
    f"""INSERT INTO lane (queue, share, limits, counters, order_key, type, top, head_at, head_seq, shut)
    SELECT q.id, s.id, '{{closed}}', ARRAY[c.id], '', '', 3, {NOW - 3_600_000_000} + 1, {MILLION} + 1, c.id
    FROM counter c, queue q JOIN share s ON s.queue = q.id WHERE c.name = 'closed' AND q.name = 'default'""",
    "INSERT INTO stand (counter, share, queue, turn, top) SELECT shut, share, queue, 0, top FROM lane",
    f"""INSERT INTO lane (queue, share, limits, counters, order_key, type, top, head_at, head_seq)
    SELECT q.id, s.id, ARRAY[c.name], ARRAY[c.id], '', '', CASE WHEN n <= {OPEN} THEN 1 END, CASE WHEN n <= {OPEN} THEN {AGO} END,
      CASE WHEN n <= {OPEN} THEN {KINDS.index("ready") * MILLION} + n END
    FROM queue q JOIN share s ON s.queue = q.id, counter c, LATERAL (SELECT substr(c.name, 5)::integer AS n) x
    WHERE q.name = 'lanes' AND c.name LIKE 'own:%' ORDER BY n""",
    f"""INSERT INTO workers (id, queues, types, lease, joined_at, beat_at, info)
    VALUES ('{DEAD_WORKER}', '{{default}}', '{{work}}', 4000000, {NOW}, 0, '{{}}')""",
    f"SELECT setval('seq', {len(KINDS) * MILLION})",
]
TASKS = [
    # The first are waited for, some have failed before or were delayed, the last have expired.
    _tasks("plain", MILLION, state="CASE n % 20 WHEN 0 THEN 1 WHEN 1 THEN 2 ELSE 0 END", flags="CASE WHEN n <= 50000 THEN 32 ELSE 0 END",
        expires_at=f"CASE WHEN n > {MILLION - 1_000} THEN {NOW} END"),
    _tasks("closed", MILLION, lane=f"({CLOSED_LANE})", priority=3),
    f"""INSERT INTO ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at)
    SELECT {_id("ended")}, n, CASE n % 20 WHEN 0 THEN 6 WHEN 10 THEN 7 ELSE 5 END, 0, 3, 1, 0, 0, 0, at, nextval('token'), 'worker-0', at - 1000, at - 1000
    FROM generate_series(1, {MILLION}) n, LATERAL (SELECT {NOW - 2_592_000_000_000} + n * 2592000::bigint AS at) x""",
    _tasks("later", 100_000, "later", state="1 + n % 2", ready_at=LATER),
    _tasks("asleep", 100_000, "lanes", lane=f"({FIRST_LANE}) + n % {LANES}", state="1 + n % 2", ready_at=LATER),
    _tasks("ready", 10 * OPEN, "lanes", lane=f"({FIRST_LANE}) + (n - 1) % {OPEN}"),
    _tasks("waiting", 50_000, state=4, ready_at=FOREVER, flags=16, open_edges=1),
    _tasks("held", 1_000, state=3, token="nextval('token')", worker=f"'{DEAD_WORKER}'", request=1, claimed_at=AGO, executions=1, version=2),
]  # fmt: skip
REST = [
    _bodies("SELECT id, seq, 'default' AS queue, 1 AS priority, finished_at - 1000000 AS at FROM ended"),
    _bodies(f"{LIVE} t.lane = ({CLOSED_LANE})"),
    _bodies(f"{LIVE} t.lane <> ({CLOSED_LANE})"),
    f"""INSERT INTO edge (parent, child, on_failure) SELECT {_id("waiting")}, {_id("plain")}, 0 FROM generate_series(1, 50000) n
    UNION ALL SELECT {_id("ended")}, {_id("ended", "n - 1")}, 0 FROM generate_series(2, {MILLION}, 10) n""",
    f"""INSERT INTO task_attempts (id, number, worker, token, started_at, ended_at, outcome)
    SELECT {_id("ended")}, 1, 'worker-0', n, 1, 2, 'failed' FROM generate_series(1, {MILLION}, 20) n""",
    f"INSERT INTO known (id, state, hash, until) SELECT gen_random_uuid(), 5, '', {LATER} FROM generate_series(1, 50000) n",
    f"""INSERT INTO expiry (at, id) SELECT {NOW}, {_id("plain")} FROM generate_series({MILLION - 999}, {MILLION}) n
    UNION ALL SELECT {LATER}, {_id("closed")} FROM generate_series(1, 50000) n""",
]
INDEXES = """
SELECT i.indrelid::regclass::text, i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), pg_get_constraintdef(c.oid)
FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid WHERE i.indrelid::regclass::text = ANY (%s)"""


def fill(url: str) -> None:
    """Indexes of the large tables are made after their rows, nothing of them is logged, two things are done at a time: a sixth of what it takes otherwise."""
    with _connected(url) as db:
        tables = [name for (name,) in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'taskmill'")]
        made = db.execute(INDEXES, (LARGE,)).fetchall()
    # No statistics but those that a test wants.
    _run(url, (f"ALTER TABLE {table} SET (autovacuum_enabled = off)" for table in tables), 1)
    _run(url, (f"ALTER TABLE {table} SET UNLOGGED" for table in LARGE), 1)
    _run(url, (f"ALTER TABLE {table} DROP CONSTRAINT {index}" if key else f"DROP INDEX {index}" for table, index, _, key in made), 1)
    _run(url, NAMES, 1)
    _run(url, TASKS, 2)
    _run(url, REST, 2)
    _run(url, (f"ALTER TABLE {table} ADD CONSTRAINT {index} {key}" if key else definition for table, index, definition, key in made), 2)


def _run(url: str, statements: Iterable[str], at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(lambda statement: _execute(url, statement), statements):
            pass


def _execute(url: str, statement: str) -> None:
    with _connected(url) as db:
        db.execute(_text(statement))


def _connected(url: str) -> psycopg.Connection[tuple[str, ...]]:
    """Without statistics a join of large tables could be taken for one of small ones, and end never."""
    settings = {"search_path": "taskmill", "maintenance_work_mem": "256MB", "max_parallel_maintenance_workers": "0", "enable_nestloop": "off"}
    return psycopg.connect(url, autocommit=True, options=" ".join(f"-c {name}={value}" for name, value in settings.items()))


NO_STATISTICS = "DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'taskmill'::regnamespace{of_these})"
PAGES_OF_NOTHING = """UPDATE pg_class c SET relpages = 50, reltuples = 0, relallvisible = 0 FROM pg_class t LEFT JOIN pg_index i ON i.indrelid = t.oid
WHERE c.oid IN (t.oid, i.indexrelid) AND t.relkind = 'r' AND t.relnamespace = 'taskmill'::regnamespace{of_these}"""
HISTORY = "('body', 'ended')"
BELIEFS = {
    "analysed": ["ANALYZE"],
    "never analysed": [
        NO_STATISTICS.format(of_these=""),
        "UPDATE pg_class SET relpages = 0, reltuples = -1, relallvisible = 0 WHERE relnamespace = 'taskmill'::regnamespace AND relkind = 'r'",
        "UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE relnamespace = 'taskmill'::regnamespace AND relkind = 'i'",
    ],
    "analysed when nothing waited": [
        "ANALYZE",
        NO_STATISTICS.format(of_these=f" AND relname NOT IN {HISTORY}"),
        PAGES_OF_NOTHING.format(of_these=f" AND t.relname NOT IN {HISTORY}"),
    ],
    "analysed when empty": [NO_STATISTICS.format(of_these=""), PAGES_OF_NOTHING.format(of_these="")],
}
"""What the planner can be made to believe of the tables: the truth; nothing; that there are no rows in their pages, as after everything was deleted."""


def believe(url: str, belief: str) -> None:
    _run(url, BELIEFS[belief], 1)


def _text(statement: str) -> sql.SQL:
    return sql.SQL(statement)
