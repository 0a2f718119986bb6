"""A step whose commit comes after the hint of another: the worker that looked in between must not sleep until its next poll."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from taskmill.clock import SECOND
from taskmill.engine import Ending, Room
from tests.conformance.tools import outcome, submit_many, worker
from tests.engines.postgres.stores import SOON, Stores


async def test_a_step_tells_though_another_writes_the_mark(stores: Stores) -> None:
    """The queue is marked as empty; somebody's open transaction holds its row, as another step that tells would."""
    engine, db, ear = await stores.engine(), await stores.connect(), await stores.connect()
    hand = await worker(engine)
    await submit_many(engine, 1)
    task = await hand.claim_one()
    assert await hand.claim(1) == []
    heard = asyncio.Event()
    await ear.add_listener("taskmill", lambda *_: heard.set())
    async with db.transaction():
        await db.execute("UPDATE taskmill.queue SET idle = false")
        await engine.finish([outcome(task, Ending.RETRY, after=SECOND)])
        async with asyncio.timeout(SOON):
            await heard.wait()


async def test_a_process_tells_its_own_worker(stores: Stores) -> None:
    """Nothing is marked as empty, so the store tells nobody: the finish itself does."""
    engine = await stores.engine()
    hand = await worker(engine)
    await submit_many(engine, 1)
    task = await hand.claim_one()
    async with aclosing(await engine.wakeups()) as hints:
        pending = asyncio.create_task(anext(hints))
        ear = hints._ear
        ear._pause = 1_000  # no look without a hint
        await asyncio.sleep(0)
        await asyncio.wait({pending}, timeout=0.2)
        again = asyncio.create_task(anext(hints)) if pending.done() else pending
        await asyncio.sleep(0)
        await engine.finish([outcome(task, Ending.SNOOZED, after=SECOND)])
        async with asyncio.timeout(SOON):
            await again


async def test_the_next_time_is_told_to_who_looks(stores: Stores) -> None:
    engine = await stores.engine()
    hand = await worker(engine)
    await submit_many(engine, 1)
    task = await hand.claim_one()
    await engine.finish([outcome(task, Ending.RETRY, after=SECOND)])
    claim = await engine.claim(hand.id, 1_000, ["default"], Room(1))
    assert claim.next_at == stores.clock.now() + SECOND
