"""While somebody holds a snapshot the index entries of all that was claimed since stay; after the first look that met them, steps pass them by."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending
from tests.conformance.tools import Worker, encode, submit_many, worker
from tests.engines.postgres.stores import Stores

OLD = 21_000
"""Entries; from 20,000 on a look is a long one."""
FEW = 1_000

CLAIM = "SELECT id FROM claim($1, $2, '{default}', $3, NULL, 0, 1000000, $4) WHERE id IS NOT NULL"


LONG = """
SELECT set_config(n.name, (
  SELECT string_agg(CASE WHEN o % 2 = 1 AND v <> '0' THEN '4611686018427387904' ELSE v END, ' ' ORDER BY o)
  FROM unnest(string_to_array(current_setting(n.name), ' ')) WITH ORDINALITY u(v, o)), false)
FROM (SELECT 'taskmill.stirs' AS name UNION ALL SELECT 'taskmill.line_' || id FROM queue) n WHERE current_setting(n.name, true) <> ''"""
"""What this session has noted holds for as long as the test wants; else it would be a matter of how fast the machine is."""


@pytest.fixture
async def db(stores: Stores) -> asyncpg.Connection:
    """One session, as a pool has many: what it has noted is its own."""
    db = await stores.connect()
    await db.execute("SET search_path TO taskmill")
    return db


@pytest.fixture
async def holder(stores: Stores) -> AsyncIterator[asyncpg.Connection]:
    """A snapshot, once it has looked at something."""
    holder = await stores.connect()
    async with holder.transaction(isolation="repeatable_read"):
        yield holder


async def drained(one: Worker, clock: ManualClock, holder: asyncpg.Connection, **fields: object) -> None:
    """So many tasks have come and gone since the snapshot, a while ago."""
    await submit_many(one.engine, OLD // 3, **fields)
    await holder.execute("SELECT count(*) FROM taskmill.task")
    for _ in range(2):
        await submit_many(one.engine, OLD // 3, **fields)
    while tasks := await one.claim(1_000):
        await one.done(*tasks)
    clock.advance(10)


async def entries(db: asyncpg.Connection, index: str) -> int:
    """Read of an index in this transaction."""
    return int(await db.fetchval("SELECT pg_stat_get_xact_tuples_returned($1::text::regclass)", index))


async def claim(db: asyncpg.Connection, one: Worker, clock: ManualClock, index: str, n: int = 1) -> tuple[list[str], int]:
    """What this session is given, and how many entries it has met for it."""
    one.request += 1
    async with db.transaction():
        before = await entries(db, index)
        rows = await db.fetch(CLAIM, one.id, one.request, n, clock.now())
        return [row["id"] for row in rows], await entries(db, index) - before


async def test_a_plain_line_is_read_from_where_something_was_found(
    stores: Stores, clock: ManualClock, db: asyncpg.Connection, holder: asyncpg.Connection
) -> None:
    engine = await stores.engine()
    one = await worker(engine)
    await drained(one, clock, holder)
    ids = await submit_many(engine, 4)
    found, first = await claim(db, one, clock, "task_plain")
    assert (found, first > 20_000) == (ids[:1], True)
    await db.execute(LONG)
    found, second = await claim(db, one, clock, "task_plain")
    assert (found, second < FEW) == (ids[1:2], True)
    await db.execute("UPDATE task SET ready_at = ready_at - 3600000000 WHERE id = $1", ids[3])  # as one that comes back with its old age
    assert (await claim(db, one, clock, "task_plain"))[0] == ids[2:3]
    assert (await claim(db, one, clock, "task_plain"))[0] == []
    await db.execute("SELECT set_config('taskmill.line_' || id, '1 0 1 0 1 0 1 0', false) FROM queue")  # that time is over
    assert (await claim(db, one, clock, "task_plain"))[0] == ids[3:]


async def test_a_better_priority_that_comes_meanwhile_is_next(stores: Stores, clock: ManualClock, db: asyncpg.Connection, holder: asyncpg.Connection) -> None:
    engine = await stores.engine()
    one = await worker(engine)
    await drained(one, clock, holder)
    normal = await submit_many(engine, 3)
    assert (await claim(db, one, clock, "task_plain"))[0] == normal[:1]
    await db.execute(LONG)
    [critical] = await submit_many(engine, 1, priority=3)
    [low] = await submit_many(engine, 1, priority=0)
    found, met = await claim(db, one, clock, "task_plain", 10)
    assert (found, met < FEW) == ([critical, *normal[1:], low], True)


async def test_a_session_that_met_few_looks_from_the_start(stores: Stores, clock: ManualClock, db: asyncpg.Connection) -> None:
    engine = await stores.engine()
    one = await worker(engine)
    ids = await submit_many(engine, 3)
    await claim(db, one, clock, "task_plain")
    assert await db.fetchval("SELECT line_starts(id) FROM queue") == [0, 0, 0, 0]
    await db.execute("UPDATE task SET ready_at = ready_at - 3600000000 WHERE id = $1", ids[2])
    assert (await claim(db, one, clock, "task_plain"))[0] == ids[2:]


async def test_a_beat_reads_what_is_held_and_not_what_was(stores: Stores, clock: ManualClock, db: asyncpg.Connection, holder: asyncpg.Connection) -> None:
    engine = await stores.engine()
    one = await worker(engine)
    await drained(one, clock, holder)
    await submit_many(engine, 3)
    held = await one.claim(3)
    beats = []
    tokens = [task.token for task in held]
    sign_of_life = (0, list[int]())  # nothing is forgotten by it
    for request, named in ((one.request, tokens), (one.request, tokens), sign_of_life, (one.request, tokens)):
        async with db.transaction():
            before = await entries(db, "task_held")
            row = await db.fetchrow("SELECT * FROM heartbeat($1, $2, $3, $4, $5)", one.id, request, named, clock.now(), clock.monotonic())
            assert row is not None
            assert (row["known"], row["lost"]) == (True, [])
            beats.append(await entries(db, "task_held") - before)
    assert beats[0] > 20_000
    assert max(beats[1:]) < FEW
    await one.done(*held, ending=Ending.RELEASED)
    assert len(await one.claim(3)) == 3


async def test_a_lane_is_read_from_its_next_task_on(stores: Stores, clock: ManualClock, db: asyncpg.Connection, holder: asyncpg.Connection) -> None:
    engine = await stores.engine()
    await engine.put("limit", "many", encode({"cap": 100_000}))
    one = await worker(engine)
    await drained(one, clock, holder, limits=("many",))
    ids = await submit_many(engine, 3, limits=("many",))
    clock.advance(1)
    found, met = await claim(db, one, clock, "task_lane")
    assert (found, met < FEW) == (ids[:1], True)
    found, met = await claim(db, one, clock, "task_lane", 5)
    assert (found, met < FEW) == (ids[1:], True)


async def test_the_inbox_of_lanes_is_read_from_where_something_was_found(
    stores: Stores, clock: ManualClock, db: asyncpg.Connection, holder: asyncpg.Connection
) -> None:
    engine = await stores.engine()
    await engine.put("limit", "many", encode({"cap": 100_000}))
    one = await worker(engine)
    ids = await submit_many(engine, 2, limits=("many",))
    assert (await claim(db, one, clock, "task_lane"))[0] == ids[:1]
    await holder.execute("SELECT count(*) FROM taskmill.stir")
    await db.execute("INSERT INTO stir (lane, at) SELECT l.id, 0 FROM lane l, generate_series(1, $1)", OLD)
    while await db.fetchval("SELECT settle(NULL, true)"):
        pass
    looks = []
    for _ in range(2):
        async with db.transaction():
            before = await entries(db, "stir_pkey")
            assert not await db.fetchval("SELECT any_stir()")
            looks.append(await entries(db, "stir_pkey") - before)
        await db.execute(LONG)
    assert looks[1] < 10_000 < OLD
    [late] = await submit_many(engine, 1, limits=("many",))
    assert (await claim(db, one, clock, "task_lane", 5))[0] == [ids[1], late]
    await db.execute("INSERT INTO stir (number, lane, at) OVERRIDING SYSTEM VALUE SELECT 1, id, 0 FROM lane")  # as one that commits long after it was numbered
    assert not await db.fetchval("SELECT any_stir()")
    await db.execute("SELECT set_config('taskmill.stirs', '1 1', false)")  # that time is over
    assert await db.fetchval("SELECT any_stir()")
