"""Settings as steps: a pause waits for claims under way, and what many types declare is one change."""

from __future__ import annotations

import asyncio

from taskmill.engine import Joining, Room
from taskmill.task import TypeSettings
from tests.conformance.tools import encode, submit_many, worker
from tests.engines.postgres.stores import SOON, Stores, waits_for_a_lock

GATE = "SELECT pg_advisory_xact_lock(hashtextextended('taskmill gate of taskmill', 0))"


async def test_a_pause_waits_for_a_claim_that_waits_for_the_gate(stores: Stores) -> None:
    engine, other, db = await stores.engine(), await stores.engine(), await stores.connect()
    await engine.put("limit", "two", encode({"cap": 2}))
    hand = await worker(engine)
    await submit_many(engine, 3, limits=("two",))
    order: list[str] = []
    async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks, db.transaction():
        await db.execute(GATE)
        claiming = tasks.create_task(engine.claim(hand.id, 1, ["default"], Room(5)))
        claiming.add_done_callback(lambda _: order.append("claim"))
        await waits_for_a_lock(db)
        pausing = tasks.create_task(other.put("pause", "queue:default", b"{}"))
        pausing.add_done_callback(lambda _: order.append("pause"))
        await asyncio.wait({pausing}, timeout=0.2)
        assert not pausing.done(), "the claim has read what is paused, and is not answered"
    assert len(claiming.result().tasks) == 2
    assert order == ["claim", "pause"]
    assert (await engine.claim(hand.id, 2, ["default"], Room(5))).tasks == ()


async def test_many_types_are_one_change(stores: Stores) -> None:
    engine, db = await stores.engine(), await stores.connect()
    joining = Joining(worker="many", queues=("default",), types={f"type-{number}": TypeSettings(queue="default") for number in range(1_000)})
    before = await db.fetchval("SELECT generation FROM taskmill.store")
    await engine.join(joining)
    assert await db.fetchval("SELECT generation FROM taskmill.store") == before + 1
    assert len(await engine.items("type")) == 1_000
    await engine.join(joining)
    assert await db.fetchval("SELECT generation FROM taskmill.store") == before + 1, "nothing is new"
