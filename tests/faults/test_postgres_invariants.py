"""The invariants themselves: a store at work keeps them all, and each of them can be seen broken."""

from __future__ import annotations

from pathlib import Path
from random import Random

import asyncpg

from taskmill.clock import SECOND
from taskmill.engine import Room
from taskmill.engines.postgres.target import parse
from tests.faults.invariants_postgres import QUERIES, broken, broken_in
from tests.faults.workload import Worker, batch, client_of, prepare

NOBODY = "gen_random_uuid()"
DAMAGES = {
    "has no body": "DELETE FROM body WHERE id IN (SELECT id FROM task)",
    "has ended and has no body": "DELETE FROM body WHERE id IN (SELECT id FROM ended)",
    "is a body without a task": "DELETE FROM task",
    "lives and has ended": "UPDATE task SET state = 5 WHERE state = 3",
    "has two numbers": "UPDATE ended SET seq = seq + 100000",
    "is a number that the store has not given": "UPDATE body SET seq = seq + 100000",
    "has a token that the store has not given": "SELECT setval('token', 1)",
    "is a token of two tasks": "UPDATE task SET token = 7 WHERE state = 3",
    "runs without a whole lease": "UPDATE task SET token = NULL WHERE state = 3",
    "runs under a worker that is not registered": "DELETE FROM workers",
    "is in no queue": "DELETE FROM queue",
    "is in no lane": "DELETE FROM lane",
    "is not ordered as its lane is": "UPDATE task SET flags = flags & ~1",
    "is ordered and has no place": "DELETE FROM ordered",
    "is a place of nobody": f"UPDATE ordered SET id = {NOBODY}",
    "is a lane without its share": "DELETE FROM share",
    "is an empty lane that stands at a limit": "UPDATE lane SET top = NULL",
    "is a lane with a wrong head": "UPDATE lane SET head_at = head_at + 1 WHERE top IS NOT NULL",
    "is a lane that needs another type": "UPDATE lane SET needs = 'x' WHERE top IS NOT NULL",
    "is a share with a wrong top": "UPDATE share SET top = 2",
    "is a limit that counts its running tasks wrong": "UPDATE counter SET running = running + 1",
    "stands at a limit that is none of its own": "UPDATE lane SET shut = 100000 WHERE top IS NOT NULL",
    "stands at a limit that has room, and nothing opens it": """WITH idle AS (UPDATE counter SET running = 0, wake_at = NULL)
        UPDATE lane SET shut = counters[1], top = 1 WHERE limits = '{few}'""",
    "is a share that does not stand as its lanes do": "INSERT INTO stand (counter, share, queue, turn, top) VALUES (100000, 1, 1, 0, 1)",
    "counts its open edges wrong": "UPDATE task SET open_edges = open_edges + 1",
    "is an edge of nobody": f"UPDATE edge SET parent = {NOBODY}",
    "is waited for by an open edge and gone": f"UPDATE edge SET child = {NOBODY}, outcome = NULL",
    "is waited for and does not know it": "UPDATE task SET flags = flags & ~32",
    "has edges and does not know it": "UPDATE task SET flags = flags & ~16",
    "waits for nothing": "UPDATE task SET open_edges = 0, flags = 0, ready_at = 1::bigint << 62 WHERE state = 4",
    "is left in the inbox of lanes": "INSERT INTO stir (lane) VALUES (1)",
    "is left in the inbox of falling edges": f"INSERT INTO falling (id, state) VALUES ({NOBODY}, 5)",
    "is left in the inbox of fallen edges": f"INSERT INTO lowering (id, edges, failed) VALUES ({NOBODY}, 1, false)",
    "is left in the inbox of late edges": "INSERT INTO late_edge VALUES (100000)",
    "has checkpoints and does not know it": "INSERT INTO checkpoint SELECT id, 'x', '1' FROM task WHERE flags & 512 = 0",
    "has signals and does not know it": "INSERT INTO signal SELECT id, 1, 'i', 'n', '1', 1 FROM task",
    "has ended and has signals": "INSERT INTO signal SELECT id, 1, 'i', 'n', '1', 1 FROM ended",
    "is a checkpoint of nobody": f"INSERT INTO checkpoint VALUES ({NOBODY}, 'x', '1')",
    "is an attempt of nobody": f"UPDATE task_attempts SET id = {NOBODY}",
    "is an attempt beyond its executions": "UPDATE task_attempts SET number = 99",
    "has two attempts of one number": "INSERT INTO task_attempts SELECT id, number, worker, token + 1, 1, 1, 'x', NULL FROM task_attempts",
    "is a unique key that no live task holds": f"INSERT INTO held VALUES ('', 'plain', 'x', {NOBODY})",
    "lives without its unique key": "UPDATE task SET flags = flags | 8 WHERE state = 3",
    "lives without its idempotency key": "DELETE FROM dedupe",
    "is there and remembered as gone": "INSERT INTO known (id, hash, until) SELECT id, '', 1 FROM task LIMIT 1",
    "was removed before its outbox entry was delivered": "UPDATE outbox SET subject = 'x'",
    "has two outbox entries of one end": "INSERT INTO outbox (kind, subject, data, at) SELECT kind, subject, data, at FROM outbox",
}


async def make(url: str, history: Path) -> None:
    """A store in the middle of its work: tasks in every state, some of them running."""
    async with client_of(url, history) as client:
        await prepare(client)
        worker = Worker(client, 4 * SECOND)
        await worker.join()
        random = Random(3)
        for _ in range(6):
            await client.submit(batch(random))
            await worker.turn(slots=6)
        await client.submit(batch(random))
        await client.claim(worker.name, worker.request + 1, ("default",), Room(4))


async def test_each_can_be_seen_broken(tmp_path: Path, postgres_url: str) -> None:
    await make(postgres_url, tmp_path / "history")
    assert await broken_in(postgres_url) == []
    target = parse(postgres_url)
    db = await asyncpg.connect(**target.arguments(), server_settings={"search_path": target.schema, "default_transaction_isolation": "repeatable read"})
    try:
        unseen = {what for what, damage in DAMAGES.items() if not await _shows(db, what, damage)}
    finally:
        await db.close()
    assert unseen == set()
    assert QUERIES.keys() == DAMAGES.keys()


async def _shows(db: asyncpg.Connection, what: str, damage: str) -> bool:
    transaction = db.transaction()
    await transaction.start()
    last = await db.fetchval("SELECT last_value FROM token")
    try:
        await db.execute(damage)
        return any(text.endswith(what) for text in await broken(db))
    finally:
        await transaction.rollback()
        await db.fetchval("SELECT setval('token', $1)", last)  # what no rollback brings back
