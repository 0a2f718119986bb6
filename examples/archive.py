"""Finished tasks go from Redis to PostgreSQL, and are read there when Redis has forgotten them.

    python examples/archive.py redis://localhost:6379/0 postgresql://localhost/shop

It works under the prefix archive-example and in the schema archive_example, and removes both in the end.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import quote

import asyncpg
import redis
from running import run

from taskmill import App
from taskmill.engine import Target

PREFIX, SCHEMA = "archive-example", "archive_example"

app = App()


@app.task
async def invoice(order: int) -> str:
    return f"invoice of order {order}"


async def main() -> None:
    async with app:
        handle = await invoice.submit(7)
        print("result:", await handle.result(timeout="60s"))
        await delete(handle.id)
        print("deleted from Redis; its result is still:", await handle.result())
        print("attempts:", [attempt.outcome for attempt in await app.operations.attempts(handle.id)])
        print("findings:", [finding.code for finding in await app.operations.check() if "archive" in finding.code])
        await look(handle.id)


async def delete(id: str) -> None:
    """Refused as long as the archive does not have it; the worker brings it there."""
    while True:
        [change] = (await app.engine.delete([Target(id)])).tasks
        if change.done:
            return
        await asyncio.sleep(0.1)


async def look(id: str) -> None:
    """As anybody with psql can."""
    db = await asyncpg.connect(sys.argv[2])
    try:
        [row] = await db.fetch(f"SELECT type, state, payload, result FROM {SCHEMA}.tasks WHERE id = $1", id)
        print("in PostgreSQL:", tuple(row))
    finally:
        await db.close()


def clean() -> None:
    with redis.Redis.from_url(sys.argv[1]) as client:
        for key in client.scan_iter(f"{PREFIX}:*"):
            client.delete(key)
    asyncio.run(drop())


async def drop() -> None:
    db = await asyncpg.connect(sys.argv[2])
    await db.execute(f"SET client_min_messages TO error; DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    await db.close()


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[1].startswith("redis") or not sys.argv[2].startswith("postgres"):
        sys.exit("name a Redis server and a PostgreSQL database: python examples/archive.py redis://localhost:6379/0 postgresql://localhost/shop")
    try:
        run(__file__, main, url=f"{sys.argv[1]}?prefix={PREFIX}&archive={quote(f'{sys.argv[2]}?schema={SCHEMA}', safe='')}")
    finally:
        clean()
