"""What must hold in a SQLite store between any two transactions, whatever was killed, paused, cut off or filled up.

The schema keeps some facts twice, so that no step has to count: a limit's running tasks, a task's open edges, the head of a lane, the best priority of a
share, who holds a unique key. `broken` counts them again the slow way. Each check is one query or one small function that yields what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

__all__ = ["broken", "broken_at", "miscounted"]

PENDING, RUNNING, WAITING, COMPLETED = 0, 3, 4, 5
FAR = 1 << 62

QUERIES = {
    "has no body": "SELECT id FROM taskmill_task WHERE seq NOT IN (SELECT seq FROM taskmill_body)",
    "is a body without a task": "SELECT seq FROM taskmill_body WHERE seq NOT IN (SELECT seq FROM taskmill_task)",
    "is a number that the store has not given": "SELECT seq FROM taskmill_task WHERE seq > (SELECT seq FROM taskmill_store)",
    "has a token that the store has not given": "SELECT id FROM taskmill_task WHERE token > (SELECT token FROM taskmill_store)",
    "runs without a whole lease": "SELECT id FROM taskmill_task WHERE state = 3 AND (token IS NULL OR worker IS NULL OR request IS NULL OR claimed_at IS NULL)",
    "runs under a worker that is not registered": "SELECT id FROM taskmill_task WHERE state = 3 AND worker NOT IN (SELECT id FROM taskmill_worker)",
    "shares its token": "SELECT group_concat(id) FROM taskmill_task WHERE state = 3 GROUP BY token HAVING count(*) > 1",
    "has ended at no time": "SELECT id FROM taskmill_task WHERE state >= 5 AND finished_at IS NULL",
    "lives and has ended": "SELECT id FROM taskmill_task WHERE state < 5 AND finished_at IS NOT NULL",
    "is in no queue": "SELECT id FROM taskmill_task WHERE lane < 0 AND (-lane, queue) NOT IN (SELECT id, name FROM taskmill_queue)",
    "is in no lane": """SELECT t.id FROM taskmill_task t WHERE lane > 0 AND state < 5
        AND NOT EXISTS (SELECT 1 FROM taskmill_lane l JOIN taskmill_queue q ON q.id = l.queue WHERE l.id = t.lane AND q.name = t.queue)""",
    "is not ordered as its lane is": """SELECT t.id FROM taskmill_task t JOIN taskmill_lane l ON l.id = t.lane
        WHERE t.state < 5 AND (t.flags & 1 <> 0) <> (l.order_key <> '')""",
    "is a lane without its share": "SELECT id FROM taskmill_lane WHERE (share, queue) NOT IN (SELECT id, queue FROM taskmill_share)",
    "is an empty lane that stands at a limit": "SELECT id FROM taskmill_lane WHERE top IS NULL AND (shut IS NOT NULL OR head_at IS NOT NULL)",
    "is a share with a wrong top": """SELECT s.id FROM taskmill_share s
        WHERE s.top IS NOT (SELECT max(l.top) FROM taskmill_lane l WHERE l.share = s.id AND l.top IS NOT NULL AND l.shut IS NULL)""",
    "counts its open edges wrong": """SELECT t.id FROM taskmill_task t
        WHERE t.open_edges <> (SELECT count(*) FROM taskmill_edge e WHERE e.parent = t.seq AND e.outcome IS NULL)""",
    "has an edge that never falls": """SELECT e.child_id FROM taskmill_edge e JOIN taskmill_task c ON c.seq = e.child
        WHERE e.outcome IS NULL AND c.state >= 5 AND (c.state = 5 OR e.on_failure <> 2) AND c.seq NOT IN (SELECT seq FROM taskmill_falling)""",
    "is an edge of nobody": "SELECT id FROM taskmill_edge WHERE parent NOT IN (SELECT seq FROM taskmill_task)",
    "is waited for by an open edge and gone": """SELECT child_id FROM taskmill_edge
        WHERE outcome IS NULL AND child <> 0 AND child NOT IN (SELECT seq FROM taskmill_task UNION ALL SELECT seq FROM taskmill_falling)""",
    "is there and waited for as if it were to come": "SELECT child_id FROM taskmill_edge WHERE child = 0 AND child_id IN (SELECT id FROM taskmill_task)",
    "numbers its edges wrong": "SELECT parent FROM taskmill_edge GROUP BY parent HAVING count(DISTINCT number) <> count(*) OR max(number) <> count(*)",
    "is waited for and does not know it": "SELECT t.id FROM taskmill_task t WHERE t.flags & 32 = 0 AND t.seq IN (SELECT child FROM taskmill_edge)",
    "has edges and does not know it": "SELECT t.id FROM taskmill_task t WHERE t.flags & 16 = 0 AND t.seq IN (SELECT parent FROM taskmill_edge)",
    "falls and has not ended": "SELECT f.seq FROM taskmill_falling f WHERE f.seq IN (SELECT seq FROM taskmill_task WHERE state < 5)",
    "waits for nothing": f"SELECT id FROM taskmill_task WHERE state = 4 AND open_edges = 0 AND flags & (64 | 128) = 0 AND ready_at >= {FAR}",
    "has checkpoints and does not know it": "SELECT id FROM taskmill_task WHERE flags & 512 = 0 AND seq IN (SELECT seq FROM taskmill_checkpoint)",
    "has signals and does not know it": "SELECT id FROM taskmill_task WHERE flags & 1024 = 0 AND seq IN (SELECT seq FROM taskmill_signal)",
    "has ended and has signals": "SELECT id FROM taskmill_task WHERE state >= 5 AND seq IN (SELECT seq FROM taskmill_signal)",
    "is an attempt of nobody": "SELECT seq FROM taskmill_attempt WHERE seq NOT IN (SELECT seq FROM taskmill_task)",
    "is an attempt beyond its executions": "SELECT t.id FROM taskmill_task t JOIN taskmill_attempt a USING (seq) WHERE a.number > t.executions",
    "has two attempts of one number": "SELECT seq FROM taskmill_attempt GROUP BY seq, number HAVING count(*) > 1",
    "is a checkpoint of nobody": "SELECT seq FROM taskmill_checkpoint WHERE seq NOT IN (SELECT seq FROM taskmill_task)",
    "is a signal of nobody": "SELECT seq FROM taskmill_signal WHERE seq NOT IN (SELECT seq FROM taskmill_task)",
    "is a tag of nobody": "SELECT seq FROM taskmill_tag WHERE seq NOT IN (SELECT seq FROM taskmill_task)",
    "is an ending of nobody": "SELECT seq FROM taskmill_ending WHERE seq NOT IN (SELECT seq FROM taskmill_task UNION SELECT child FROM taskmill_edge)",
    "is a unique key that no live task holds": "SELECT key FROM taskmill_held WHERE seq NOT IN (SELECT seq FROM taskmill_task WHERE state < 5)",
    "lives without its unique key": "SELECT id FROM taskmill_task WHERE flags & 8 AND state < 5 AND seq NOT IN (SELECT seq FROM taskmill_held)",
    "lives without its idempotency key": """SELECT t.id FROM taskmill_task t JOIN taskmill_body b USING (seq)
        WHERE t.state < 5 AND b.meta ->> '$.key' IS NOT NULL
        AND (t.tenant, t.type, b.meta ->> '$.key', t.id) NOT IN (SELECT tenant, type, key, id FROM taskmill_dedupe)""",
    "is there and remembered as gone": "SELECT id FROM taskmill_task WHERE id IN (SELECT id FROM taskmill_known)",
    "was removed before its outbox entry was delivered": """SELECT subject FROM taskmill_outbox WHERE kind IN ('ended', 'dead')
        AND subject NOT IN (SELECT id FROM taskmill_task)""",
}


def broken_at(path: Path) -> list[str]:
    """Everything that is wrong in the store at this path; opened as any reader would."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(30_000)
        return broken(connection)
    finally:
        connection.close()


def broken(db: apsw.Connection, *, pages: bool = True) -> list[str]:
    """Everything that is wrong in the store; read in one transaction, so writers may go on. `pages`: the file itself too."""
    with db:
        found = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"] if pages else []
        found += [f"{row[0]} {what}" for what, query in QUERIES.items() for row in db.execute(query)]
        found += [text for check in CHECKS for text in check(db)]
    return found


def _counters(db: apsw.Connection) -> Iterator[str]:
    running: dict[str, int] = {}
    for text, count in db.execute("SELECT l.limits, count(*) FROM taskmill_task t JOIN taskmill_lane l ON l.id = t.lane WHERE t.state = 3 GROUP BY l.id"):
        for limit in json.loads(text):
            name = limit.removeprefix("cap ")
            running[name] = running.get(name, 0) + count
    counted = dict(db.execute("SELECT name, running FROM taskmill_counter"))
    for name in sorted(running.keys() | counted.keys()):
        if counted.get(name, 0) != running.get(name, 0):
            yield f"limit {name} counts {counted.get(name)} running tasks, there are {running.get(name, 0)}"


def _heads(db: apsw.Connection) -> Iterator[str]:
    for lane, order_key, type_name, needs, *said in db.execute("SELECT id, order_key, type, needs, top, head_at, head_seq FROM taskmill_lane"):
        head = _ordered_head(db, lane) if order_key else _head(db, lane)
        if said != list(head[:3] if head else (None, None, None)):
            yield f"lane {lane} says its head is {said}, it is {head}"
        if needs != (head[3] if order_key and head else needs if order_key else type_name):
            yield f"lane {lane} needs {needs!r}, its head is {head}"


Head = tuple[int, int, int, str]
"""Priority, age, number and type of the task that is next."""


def _head(db: apsw.Connection, lane: int) -> Head | None:
    query = "SELECT priority, ready_at, seq, type FROM taskmill_task WHERE lane = ? AND state = 0 ORDER BY priority DESC, ready_at, seq LIMIT 1"
    found: Head | None = db.execute(query, (lane,)).fetchone()
    return found


def _ordered_head(db: apsw.Connection, lane: int) -> Head | None:
    query = "SELECT state, priority, ready_at, seq, type FROM taskmill_task WHERE lane = ? AND state <= 4 ORDER BY seq LIMIT 1"
    found: Any = db.execute(query, (lane,)).fetchone()
    return found[1:] if found and found[0] == PENDING else None


def _shut_lanes(db: apsw.Connection) -> Iterator[str]:
    """A lane that stands at a limit with room, and nothing that will ever open it: its tasks would wait for ever."""
    counters = {number: (name, running, wake_at) for number, name, running, wake_at in db.execute("SELECT id, name, running, wake_at FROM taskmill_counter")}
    caps = _caps(db)
    opened: dict[str, int] = {}
    for (text,) in db.execute("SELECT limits FROM taskmill_lane WHERE top IS NOT NULL AND shut IS NULL"):
        for name in json.loads(text):
            opened[name] = opened.get(name, 0) + 1
    for lane, shut, text in db.execute("SELECT id, shut, limits FROM taskmill_lane WHERE shut IS NOT NULL"):
        limit = "cap " * (shut < 0) + counters[abs(shut)][0] if abs(shut) in counters else ""
        if limit not in json.loads(text):
            yield f"lane {lane} stands at limit {shut}, which is none of its own"
            continue
        name, running, wake_at = counters[abs(shut)]
        cap = caps.get(name.partition(":")[0])
        room = FAR if cap is None else cap - running
        if (wake_at is None or shut < 0) and room > opened.get(limit, 0):
            yield f"lane {lane} stands at {limit}, which runs {running} of {cap}, has {opened.get(limit, 0)} open lanes and no time to wake"


def _caps(db: apsw.Connection) -> dict[str, int | None]:
    rows = db.execute("SELECT name, value FROM taskmill_item WHERE kind = 'limit' ORDER BY operator")
    return {name: json.loads(value).get("cap") for name, value in rows}


def miscounted(db: apsw.Connection) -> Iterator[str]:
    """What the kept counts say, and what there is."""
    kept = set(
        db.execute("""SELECT k.queue, k.type, k.priority, c.state, c.block, c.tasks FROM taskmill_count c JOIN taskmill_kind k ON k.id = c.kind
        WHERE c.block >= 0 OR c.tasks <> 0""")
    )
    there = set(
        db.execute("""SELECT queue, type, priority, CASE state WHEN 3 THEN 0 ELSE state END, seq >> 10, count(*) FROM taskmill_task GROUP BY 1, 2, 3, 4, 5
        UNION ALL SELECT queue, type, priority, CASE state WHEN 3 THEN 0 ELSE state END, -1, count(*) FROM taskmill_task GROUP BY 1, 2, 3, 4""")
    )
    yield from (f"{row} is kept as a count and wrong" for row in sorted(kept - there))
    yield from (f"{row} is not kept as a count" for row in sorted(there - kept))
    older = """SELECT t.id FROM taskmill_task t JOIN taskmill_kind k USING (queue, type, priority) JOIN taskmill_count c ON c.kind = k.id
        WHERE c.state = 0 AND c.block = -1 AND t.state = 0 AND t.ready_at < c.oldest"""
    yield from (f"{task} is older than the oldest of its kind" for (task,) in db.execute(older))
    outside = "SELECT t.id FROM taskmill_task t LEFT JOIN taskmill_span s ON s.block = t.seq >> 10 WHERE (t.created_at BETWEEN s.first AND s.last) IS NOT 1"
    yield from (f"{task} was created outside of its block's span" for (task,) in db.execute(outside))


CHECKS: tuple[Callable[[apsw.Connection], Iterator[str]], ...] = (_counters, _heads, _shut_lanes, miscounted)
