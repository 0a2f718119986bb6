"""The invariants themselves: a store at work keeps them all, and each of them can be seen broken."""

from __future__ import annotations

from pathlib import Path
from random import Random

import apsw

from taskmill.clock import SECOND
from taskmill.engine import Room
from tests.faults.invariants import QUERIES, broken
from tests.faults.workload import Worker, batch, client_of, prepare

DAMAGES = {
    "has no body": "DELETE FROM taskmill_body WHERE seq = (SELECT seq FROM taskmill_task WHERE state < 3 LIMIT 1)",
    "is a body without a task": "INSERT INTO taskmill_body (seq, payload, timeout, max_crashes, run_at) VALUES (100000, '', 1, 1, 1)",
    "is a number that the store has not given": "UPDATE taskmill_store SET seq = 1",
    "has a token that the store has not given": "UPDATE taskmill_store SET token = 1",
    "runs without a whole lease": "UPDATE taskmill_task SET token = NULL WHERE state = 3",
    "runs under a worker that is not registered": "DELETE FROM taskmill_worker",
    "shares its token": "UPDATE taskmill_task SET token = 7 WHERE state = 3",
    "has ended at no time": "UPDATE taskmill_task SET finished_at = NULL WHERE state >= 5",
    "lives and has ended": "UPDATE taskmill_task SET finished_at = 1 WHERE state = 3",
    "is in no queue": "UPDATE taskmill_queue SET name = 'other'",
    "is in no lane": "DELETE FROM taskmill_lane",
    "is not ordered as its lane is": "UPDATE taskmill_task SET flags = flags & ~1",
    "is a lane without its share": "DELETE FROM taskmill_share",
    "is an empty lane that stands at a limit": "UPDATE taskmill_lane SET top = NULL",
    "is a share with a wrong top": "UPDATE taskmill_share SET top = 2",
    "counts its open edges wrong": "UPDATE taskmill_task SET open_edges = open_edges + 1",
    "has an edge that never falls": "UPDATE taskmill_edge SET outcome = NULL WHERE outcome IS NOT NULL",
    "is an edge of nobody": "UPDATE taskmill_edge SET parent = 100000 + parent",
    "is waited for by an open edge and gone": "UPDATE taskmill_edge SET child = 100000, outcome = NULL",
    "is waited for and does not know it": "UPDATE taskmill_task SET flags = flags & ~32",
    "has edges and does not know it": "UPDATE taskmill_task SET flags = flags & ~16",
    "falls and has not ended": "INSERT INTO taskmill_falling (seq, state) SELECT seq, 5 FROM taskmill_task WHERE state < 5 LIMIT 1",
    "is there and waited for as if it were to come": "UPDATE taskmill_edge SET child = 0",
    "numbers its edges wrong": "UPDATE taskmill_edge SET number = number + 1",
    "is kept as a count and wrong": "UPDATE taskmill_count SET tasks = tasks + 1",
    "is not kept as a count": "DELETE FROM taskmill_count",
    "is older than the oldest of its kind": "UPDATE taskmill_count SET oldest = 1 << 62",
    "was created outside of its block's span": "UPDATE taskmill_span SET first = last + 1",
    "waits for nothing": "UPDATE taskmill_task SET open_edges = 0, flags = 0, ready_at = 1 << 62 WHERE state = 4",
    "has checkpoints and does not know it": "INSERT INTO taskmill_checkpoint SELECT seq, 'x', '1' FROM taskmill_task WHERE flags & 512 = 0",
    "has signals and does not know it": "INSERT INTO taskmill_signal SELECT seq, 1, 'i', 'n', '1', 1 FROM taskmill_task",
    "has ended and has signals": "INSERT INTO taskmill_signal SELECT seq, 1, 'i', 'n', '1', 1 FROM taskmill_task",
    "is an attempt of nobody": "UPDATE taskmill_attempt SET seq = 100000 + seq",
    "is an attempt beyond its executions": "UPDATE taskmill_attempt SET number = 99",
    "has two attempts of one number": "INSERT INTO taskmill_attempt SELECT seq, number, worker, token + 1, 1, 1, 'x', NULL FROM taskmill_attempt",
    "is a checkpoint of nobody": "INSERT INTO taskmill_checkpoint VALUES (100000, 'x', '1')",
    "is a signal of nobody": "INSERT INTO taskmill_signal VALUES (100000, 1, 'i', 'n', '1', 1)",
    "is a tag of nobody": "INSERT INTO taskmill_tag VALUES ('a', 'b', 100000)",
    "is an ending of nobody": "INSERT INTO taskmill_ending (seq) VALUES (100000)",
    "is a unique key that no live task holds": "INSERT INTO taskmill_held VALUES ('', 'plain', 'x', 100000)",
    "lives without its unique key": "UPDATE taskmill_task SET flags = flags | 8 WHERE state = 3",
    "lives without its idempotency key": "DELETE FROM taskmill_dedupe",
    "is there and remembered as gone": "INSERT INTO taskmill_known (id, hash, until) SELECT id, '', 1 FROM taskmill_task LIMIT 1",
    "was removed before its outbox entry was delivered": "UPDATE taskmill_outbox SET subject = 'x'",
    "running tasks, there are": "UPDATE taskmill_counter SET running = running + 1",
    "says its head is": "UPDATE taskmill_lane SET head_at = head_at + 1 WHERE top IS NOT NULL",
    "needs": "UPDATE taskmill_lane SET needs = 'x' WHERE top IS NOT NULL",
    "which is none of its own": "UPDATE taskmill_lane SET shut = 100000 WHERE top IS NOT NULL",
    "no time to wake": """UPDATE taskmill_counter SET running = 0, wake_at = NULL;
        UPDATE taskmill_lane SET shut = (SELECT id FROM taskmill_counter WHERE name = 'few'), top = 1 WHERE limits = '["few"]'""",
}


async def make(store: Path) -> None:
    """A store in the middle of its work: tasks in every state, some of them running."""
    async with client_of(store, store.parent / "history") as client:
        await prepare(client)
        worker = Worker(client, 4 * SECOND)
        await worker.join()
        random = Random(3)
        for _ in range(6):
            await client.submit(batch(random))
            await worker.turn(slots=6)
        await client.submit(batch(random))
        await client.claim(worker.name, worker.request + 1, ("default",), Room(4))


async def test_each_can_be_seen_broken(tmp_path: Path) -> None:
    await make(tmp_path / "store.db")
    connection = apsw.Connection(str(tmp_path / "store.db"))
    assert broken(connection) == []
    unseen = {what for what, damage in DAMAGES.items() if not _shows(connection, what, damage)}
    connection.close()
    assert unseen == set()
    assert QUERIES.keys() <= DAMAGES.keys()


def _shows(db: apsw.Connection, what: str, damage: str) -> bool:
    db.execute("SAVEPOINT damage")
    db.execute(damage).fetchall()
    found = broken(db, pages=False)
    db.execute("ROLLBACK TO damage")
    db.execute("RELEASE damage")
    return any(what in text for text in found)
