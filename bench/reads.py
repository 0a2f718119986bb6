"""What looking at a large SQLite store costs: counts and lists of one condition, in processor time of the process that asks.

The store is filled by SQL in the file itself, in the shape that steps leave: most tasks have ended, a part waits at the end of the line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskmill.engine import Filter
    from taskmill.engines.sqlite.engine import SQLiteEngine

ROOT = Path(__file__).resolve().parent.parent

EPILOG = """
examples:
  python bench/reads.py
  python bench/reads.py --tasks 1000000 --dir /var/tmp
"""

COUNTS_TARGET, LIST_TARGET = 50, 20
"""Milliseconds of processor time that counts and a list may take."""

START = 1_700_000_000_000_000
STEP = 10_000
"""Microseconds between two submits."""

DROP = ["taskmill_task_plain", "taskmill_task_lane", "taskmill_task_asleep", "taskmill_task_due", "taskmill_task_held", "taskmill_task_ended"]
DROP += ["taskmill_task_failed", "taskmill_task_type", "taskmill_task_tenant"]
"""Made anew after the rows: a third of the time."""

NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :tasks)"
TASKS = f"""{NUMBERS}
INSERT INTO taskmill_task (seq, id, type, queue, tenant, lane, state, priority, ready_at, version, executions, created_at, updated_at, finished_at)
SELECT n, printf('%08x-0000-7000-8000-%012x', n >> 32, n), 'type-' || (n % 7), CASE n % 5 WHEN 0 THEN 'letters' WHEN 1 THEN 'reports' ELSE 'default' END,
  CASE WHEN n % 100 = 0 THEN 'acme' ELSE '' END, -1 - (n % 5 < 2) - (n % 5 = 1), s, n % 4, at + CASE WHEN s IN (1, 4) THEN 4000000000000000 ELSE 0 END,
  3, s > 4, at, at, CASE WHEN s > 4 THEN at + 1000 END
FROM (SELECT n, :start + n * :step AS at,
  CASE WHEN n > :tasks * 0.97 THEN 0
    WHEN n % 1000 = 1 THEN 1 WHEN n % 10000 = 2 THEN 4 WHEN n % 200 = 3 THEN 6 WHEN n % 500 = 4 THEN 7 ELSE 5 END AS s FROM numbers)"""
BODIES = f"""{NUMBERS} INSERT INTO taskmill_body (seq, payload, timeout, max_crashes, run_at)
SELECT n, CAST('{{"number": ' || n || '}}' AS BLOB), 60000000, 3, 0 FROM numbers"""
TAGS = "INSERT INTO taskmill_tag (name, value, seq) SELECT 'customer', 'c' || (seq / 50 % 10), seq FROM taskmill_task WHERE seq % 50 = 0"
QUEUES = "INSERT INTO taskmill_queue (id, name) VALUES (1, 'default'), (2, 'letters'), (3, 'reports')"
KEPT = [
    "INSERT INTO taskmill_kind (queue, type, priority) SELECT DISTINCT queue, type, priority FROM taskmill_task",
    """INSERT INTO taskmill_count (kind, state, block, tasks, oldest)
    SELECT k.id, CASE t.state WHEN 3 THEN 0 ELSE t.state END, t.seq >> 10, count(*), 0 FROM taskmill_task t JOIN taskmill_kind k USING (queue, type, priority)
    GROUP BY 1, 2, 3""",
    "INSERT INTO taskmill_count (kind, state, block, tasks, oldest) SELECT kind, state, -1, sum(tasks), 0 FROM taskmill_count GROUP BY 1, 2",
    "INSERT INTO taskmill_span (block, first, last) SELECT seq >> 10, min(created_at), max(created_at) FROM taskmill_task GROUP BY 1",
    "UPDATE taskmill_store SET seq = (SELECT max(seq) FROM taskmill_task)",
]


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(
        prog="bench/reads.py", description=(__doc__ or "").split("\n\n")[0], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=10_000_000, help="tasks in the store (default 10,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is asked; the worst counts (default 5)")
    parser.add_argument("--dir", default=os.environ.get("BENCH_DIR", "."), help="a directory on a real disk for the store (default $BENCH_DIR or here)")
    options = parser.parse_args(arguments)
    from bench.temporary import folder

    with folder(Path(options.dir)) as directory:
        return asyncio.run(_run(directory / "reads.db", options.tasks, options.rounds))


async def _run(path: Path, tasks: int, rounds: int) -> int:
    from taskmill.clock import MINUTE
    from taskmill.engine import EVERYTHING, Filter
    from taskmill.engines.sqlite.engine import SQLiteEngine
    from taskmill.task import State

    engine = SQLiteEngine(path)
    await engine.open()
    await engine.close()
    began = time.perf_counter()
    size = fill(path, tasks)
    print(f"{tasks:,} tasks, {size / 1e9:.1f} GB, made in {time.perf_counter() - began:.0f} s", flush=True)
    end = START + tasks * STEP
    lists = {
        "everything": EVERYTHING,
        **{f"state {state}": Filter(states=frozenset({state})) for state in State},
        "queue letters": Filter(queues=frozenset({"letters"})),
        "queue unknown": Filter(queues=frozenset({"unknown"})),
        "type": Filter(types=frozenset({"type-3"})),
        "type unknown": Filter(types=frozenset({"unknown"})),
        "since a minute": Filter(created_from=end - MINUTE),
        "since the future": Filter(created_from=end + MINUTE),
        "until half": Filter(created_to=START + tasks * STEP // 2),
        "until before all": Filter(created_to=START),
        "tenant": Filter(tenant="acme"),
        "tenant unknown": Filter(tenant="nobody"),
        "tag": Filter(tags={"customer": "c3"}),
        "tag unknown": Filter(tags={"customer": "nobody"}),
    }
    await engine.open()
    try:
        missed = await _shown("counts", COUNTS_TARGET, rounds, partial(_counted, engine))
        for name, which in lists.items():
            missed += await _shown(f"list, {name}", LIST_TARGET, rounds, partial(_listed, engine, which))
    finally:
        await engine.close()
    return missed


async def _counted(engine: SQLiteEngine) -> str:
    engine._counts.forget()
    found = await engine.counts()
    return f"{sum(count.tasks for count in found):,} tasks in {len(found)} rows"


async def _listed(engine: SQLiteEngine, which: Filter) -> str:
    page = await engine.list(which, n=100)
    return f"{len(page.tasks)} tasks"


async def _shown(name: str, target: int, rounds: int, ask: Callable[[], Awaitable[str]]) -> int:
    """The first, with nothing in memory of the process, and the worst of the rest."""
    used = []
    answer = ""
    for _ in range(rounds):
        before = time.process_time()
        answer = await ask()
        used.append((time.process_time() - before) * 1_000)
    verdict = "met" if max(used) <= target else "MISSED"
    print(f"  {name:24} first {used[0]:7.2f} ms, worst after {max(used[1:]):7.2f} ms  <= {target}  {verdict:6}  {answer}", flush=True)
    return int(max(used) > target)


def fill(path: Path, tasks: int) -> int:
    """As the engine would leave it, without its steps. Answers its size."""
    import apsw

    db = apsw.Connection(str(path))
    try:
        db.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 100000").fetchall()
        indexes = [str(sql) for name in DROP for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,))]
        named = {"tasks": tasks, "start": START, "step": STEP}
        with db:
            for name in DROP:
                db.execute(f"DROP INDEX {name}")
            db.execute(TASKS, named)
        for statement in (BODIES, TAGS, QUEUES, *indexes, *KEPT):
            with db:
                db.execute(statement, {"tasks": tasks} if ":tasks" in statement else ()).fetchall()
    finally:
        db.close()
    return path.stat().st_size


if __name__ == "__main__":
    raise SystemExit(main())
