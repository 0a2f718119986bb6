"""What must hold in a PostgreSQL store when nobody is at work in it, whatever was killed, cut off, locked or rolled back before.

The schema keeps some facts twice, so that no step has to count: a limit's running tasks, a task's open edges, the head of a lane, the best priority of a
share, who holds a unique key. What steps have left in the inboxes is applied first, as whoever comes next would do it; then all of it is counted the slow way.
"""

from __future__ import annotations

import asyncpg

from taskmill.engines.postgres.target import parse

__all__ = ["QUERIES", "broken", "broken_in"]

FAR = 1 << 62
OPEN = """SELECT e.* FROM edge e LEFT JOIN ended d ON d.id = e.child LEFT JOIN known k ON k.id = e.child
    WHERE e.outcome IS NULL AND (coalesce(d.state, k.state) IS NULL OR (coalesce(d.state, k.state) > 5 AND e.on_failure = 2))"""
EVERY = "SELECT id, flags, open_edges, executions FROM task UNION ALL SELECT id, flags, open_edges, executions FROM ended"
TOKENS = """SELECT id, token FROM task WHERE token IS NOT NULL UNION SELECT id, token FROM ended WHERE token IS NOT NULL
    UNION SELECT id, token FROM task_attempts"""
HEADS = """SELECT l.id, l.order_key, l.type AS lane_type, l.needs, l.top, l.head_at, l.head_seq, h.* FROM lane l LEFT JOIN LATERAL (
    SELECT t.priority, t.ready_at, t.seq, t.type FROM task t WHERE t.lane = l.id AND t.state = 0 AND (l.order_key = ''
        OR t.seq = (SELECT min(o.seq) FROM task o WHERE o.lane = l.id)) ORDER BY t.priority DESC, t.ready_at, t.seq LIMIT 1) h ON true"""

QUERIES = {
    "has no body": "SELECT id FROM task WHERE id NOT IN (SELECT id FROM body)",
    "has ended and has no body": "SELECT id FROM ended WHERE id NOT IN (SELECT id FROM body)",
    "is a body without a task": "SELECT id FROM body WHERE id NOT IN (SELECT id FROM task UNION SELECT id FROM ended)",
    "lives and has ended": "SELECT id FROM task WHERE id IN (SELECT id FROM ended) OR state > 4",
    "has two numbers": "SELECT id FROM body b JOIN (SELECT id, seq FROM task UNION ALL SELECT id, seq FROM ended) x USING (id) WHERE b.seq <> x.seq",
    "is a number that the store has not given": "SELECT id FROM body WHERE seq > (SELECT last_value FROM seq)",
    "has a token that the store has not given": f"SELECT id FROM ({TOKENS}) x WHERE token > (SELECT last_value FROM token)",
    "is a token of two tasks": f"SELECT token FROM ({TOKENS}) x GROUP BY token HAVING count(*) > 1",
    "runs without a whole lease": "SELECT id FROM task WHERE state = 3 AND (token IS NULL OR worker IS NULL OR request IS NULL OR claimed_at IS NULL)",
    "runs under a worker that is not registered": "SELECT id FROM task WHERE state = 3 AND worker NOT IN (SELECT id FROM workers)",
    "is in no queue": "SELECT id FROM task WHERE lane < 0 AND -lane NOT IN (SELECT id FROM queue)",
    "is in no lane": "SELECT id FROM task WHERE lane > 0 AND lane NOT IN (SELECT id FROM lane)",
    "is not ordered as its lane is": "SELECT t.id FROM task t JOIN lane l ON l.id = t.lane WHERE (t.flags & 1 <> 0) <> (l.order_key <> '')",
    "is ordered and has no place": "SELECT id FROM task WHERE flags & 1 <> 0 AND (lane, seq, id) NOT IN (SELECT lane, seq, id FROM ordered)",
    "is a place of nobody": "SELECT id FROM ordered WHERE id NOT IN (SELECT id FROM task)",
    "is a lane without its share": "SELECT id FROM lane l WHERE NOT EXISTS (SELECT 1 FROM share s WHERE s.id = l.share AND s.queue = l.queue)",
    "is an empty lane that stands at a limit": "SELECT id FROM lane WHERE top IS NULL AND (shut IS NOT NULL OR head_at IS NOT NULL)",
    "is a lane with a wrong head": f"SELECT id FROM ({HEADS}) h WHERE (top, head_at, head_seq) IS DISTINCT FROM (priority, ready_at, seq)",
    "is a lane that needs another type": f"""SELECT id FROM ({HEADS}) h
        WHERE needs <> CASE WHEN order_key = '' THEN lane_type WHEN type IS NULL THEN needs ELSE type END""",
    "is a share with a wrong top": """SELECT s.id FROM share s
        WHERE s.top IS DISTINCT FROM (SELECT max(l.top) FROM lane l WHERE l.share = s.id AND l.top IS NOT NULL AND l.shut IS NULL)""",
    "is a limit that counts its running tasks wrong": """SELECT c.name FROM counter c WHERE c.running <>
        (SELECT count(*) FROM task t JOIN lane l ON l.id = t.lane WHERE t.state = 3 AND (c.id = ANY (l.counters) OR -c.id = ANY (l.counters)))""",
    "stands at a limit that is none of its own": "SELECT id FROM lane WHERE shut IS NOT NULL AND shut <> ALL (counters)",
    "stands at a limit that has room, and nothing opens it": f"""SELECT l.id FROM lane l JOIN counter c ON c.id = abs(l.shut)
        WHERE (c.wake_at IS NULL OR l.shut < 0)
        AND coalesce(c.cap, {FAR}) - c.running > (SELECT count(*) FROM lane o
            WHERE o.top IS NOT NULL AND o.shut IS NULL AND (c.id = ANY (o.counters) OR -c.id = ANY (o.counters)))""",
    "is a share that does not stand as its lanes do": """SELECT coalesce(s.share, l.share) FROM stand s
        FULL JOIN (SELECT shut AS counter, share, max(top) AS top FROM lane WHERE shut IS NOT NULL GROUP BY shut, share) l USING (counter, share)
        WHERE s.top IS DISTINCT FROM l.top""",
    "counts its open edges wrong": f"SELECT t.id FROM ({EVERY}) t WHERE t.open_edges <> (SELECT count(*) FROM ({OPEN}) e WHERE e.parent = t.id)",
    "is an edge of nobody": "SELECT number FROM edge WHERE parent NOT IN (SELECT id FROM body)",
    "is waited for by an open edge and gone": f"""SELECT e.child FROM ({OPEN}) e WHERE e.child NOT IN (SELECT id FROM body)
        AND e.number NOT IN (SELECT edge FROM late_edge WHERE absent)""",
    "is waited for and does not know it": f"SELECT t.id FROM ({EVERY}) t WHERE t.flags & 32 = 0 AND t.id IN (SELECT child FROM ({OPEN}) e)",
    "has edges and does not know it": f"SELECT t.id FROM ({EVERY}) t WHERE t.flags & 16 = 0 AND t.id IN (SELECT parent FROM edge)",
    "waits for nothing": f"SELECT id FROM task WHERE state = 4 AND open_edges = 0 AND flags & (64 | 128) = 0 AND ready_at >= {FAR}",
    "is left in the inbox of lanes": "SELECT number FROM stir",
    "is left in the inbox of falling edges": "SELECT number FROM falling",
    "is left in the inbox of fallen edges": "SELECT number FROM lowering",
    "is left in the inbox of late edges": "SELECT edge FROM late_edge WHERE NOT absent",
    "has checkpoints and does not know it": f"SELECT t.id FROM ({EVERY}) t WHERE flags & 512 = 0 AND id IN (SELECT id FROM checkpoint)",
    "has signals and does not know it": "SELECT id FROM task WHERE flags & 1024 = 0 AND id IN (SELECT id FROM signal)",
    "has ended and has signals": "SELECT id FROM ended WHERE id IN (SELECT id FROM signal)",
    "is a checkpoint of nobody": "SELECT id FROM checkpoint WHERE id NOT IN (SELECT id FROM body)",
    "is an attempt of nobody": "SELECT id FROM task_attempts WHERE id NOT IN (SELECT id FROM body)",
    "is an attempt beyond its executions": f"SELECT t.id FROM ({EVERY}) t JOIN task_attempts a USING (id) WHERE a.number > t.executions",
    "has two attempts of one number": "SELECT id FROM task_attempts GROUP BY id, number HAVING count(*) > 1",
    "is a unique key that no live task holds": "SELECT key FROM held WHERE id NOT IN (SELECT id FROM task)",
    "lives without its unique key": "SELECT id FROM task WHERE flags & 8 <> 0 AND id NOT IN (SELECT id FROM held)",
    "lives without its idempotency key": """SELECT t.id FROM task t JOIN body b USING (id) WHERE b.meta::json ->> 'key' IS NOT NULL AND t.flags & 8192 = 0
        AND NOT EXISTS (SELECT 1 FROM dedupe d WHERE (d.tenant, d.type, d.key, d.id) = (b.tenant, b.type, b.meta::json ->> 'key', b.id))""",
    "is there and remembered as gone": "SELECT id FROM body WHERE id IN (SELECT id FROM known)",
    "was removed before its outbox entry was delivered": """SELECT subject FROM outbox WHERE kind IN ('ended', 'dead')
        AND subject NOT IN (SELECT id::text FROM ended)""",
    "has two outbox entries of one end": """SELECT subject FROM outbox WHERE kind = 'ended'
        GROUP BY subject, convert_from(data, 'UTF8')::json ->> 'version' HAVING count(*) > 1""",
}


async def broken_in(url: str) -> list[str]:
    """Everything that is wrong in the store of this URL, when its inboxes have been emptied."""
    target = parse(url)
    db = await asyncpg.connect(**target.arguments(), server_settings={"search_path": target.schema, "jit": "off"})
    try:
        while await db.fetchval("SELECT settle()"):
            pass
        return await broken(db)
    finally:
        await db.close()


async def broken(db: asyncpg.Connection) -> list[str]:
    """Everything that is wrong, seen at one moment."""
    async with db.transaction(isolation="repeatable_read"):
        return [f"{row[0]} {what}" for what, query in QUERIES.items() for row in await db.fetch(query)]
