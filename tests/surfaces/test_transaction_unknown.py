"""A COMMIT whose answer never comes: whether it came to pass is found out by the task's id and token, and the effect is there exactly once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import msgspec
import pytest

from taskmill import Context, State
from taskmill.engine import Ending
from taskmill.errors import AnswerLost
from tests.surfaces import workers
from tests.surfaces.cutting import AFTER, BEFORE, LATE, commit_wire
from tests.surfaces.hands import hands
from tests.surfaces.workers import GENEROUS, program

MARK = b"INSERT INTO effect"


async def work(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES ($1)", (ctx.attempt,))
        ctx.complete("written")


@pytest.mark.parametrize("when", [AFTER, BEFORE, LATE])
async def test_the_handler_knows_how_its_commit_went(postgres_url: str, when: str) -> None:
    """LATE: the server gets the COMMIT when the handler is already asking for it; its question waits for the row that the transaction holds."""
    db = await asyncpg.connect(postgres_url)
    async with commit_wire(postgres_url, when, MARK) as (wire, url), hands(url) as hand, asyncio.timeout(GENEROUS):
        running = await hand.next(work)
        attempt = asyncio.create_task(hand.attempt(running))
        await wire.cut.wait()
        if when == LATE:
            await waited_for(db)
            wire.arrive.set()
        outcome = await attempt
        task = await hand.task(running)
        if when == BEFORE:
            assert (outcome.ending, task.state, await hand.rows()) == (Ending.RETRY, State.RUNNING, [])
            assert outcome.error is not None
            assert outcome.error.code == AnswerLost.__name__
            assert await hand.finish(msgspec.structs.replace(outcome, after=0)) == ()
            outcome = await hand.attempt(await hand.again())
        assert (outcome.ending, (await hand.task(running)).state) == (Ending.COMPLETED, State.COMPLETED)
        assert await hand.rows() == [2 if when == BEFORE else 1]
    await db.close()


async def waited_for(db: asyncpg.Connection) -> None:
    """Somebody waits for a row of somebody else."""
    while not await db.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"):
        pass


async def test_a_commit_that_came_through_after_the_lease_was_lost_is_no_ones_but_its_own(postgres_url: str) -> None:
    """While nobody knows, the lease runs out. Recovery waits for the row, or passes it by; whoever asks next finds the task completed."""
    db = await asyncpg.connect(postgres_url)
    async with commit_wire(postgres_url, LATE, MARK) as (wire, url), hands(url) as hand, asyncio.timeout(GENEROUS):
        running = await hand.next(work)
        attempt = asyncio.create_task(hand.attempt(running))
        await wire.cut.wait()
        await waited_for(db)
        leaving = asyncio.create_task(hand.app.engine.leave("anna"))
        await asyncio.sleep(0.1)
        wire.arrive.set()
        await leaving
        assert (await attempt).ending is Ending.COMPLETED
        assert ((await hand.task(running)).state, await hand.rows()) == (State.COMPLETED, [1])
    await db.close()


APP = """
from taskmill import App, Context, Retry

app = App()


@app.task(retry=Retry.fixed(max_retries=3, delay="0s"))
async def work(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO effect VALUES ($1)", (ctx.attempt,))


@app.task(retry=Retry.fixed(max_retries=3, delay="0s"))
def plain(ctx: Context) -> None:
    with ctx.sync.transaction() as tx:
        tx.execute("INSERT INTO effect VALUES ($1)", (ctx.attempt,))


@app.task(retry=Retry.fixed(max_retries=3, delay="0s"), isolated=True)
def alone(ctx: Context) -> None:
    with ctx.sync.transaction() as tx:
        tx.execute("INSERT INTO effect VALUES ($1)", (ctx.attempt,))
"""


@pytest.mark.parametrize("type", ["work", "plain", "alone"])
@pytest.mark.parametrize("when", [AFTER, BEFORE, LATE])
async def test_a_workers_effect_is_there_once(postgres_url: str, tmp_path: Path, when: str, type: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    db = await asyncpg.connect(postgres_url)
    await db.execute("CREATE TABLE effect (attempt integer)")
    async with commit_wire(postgres_url, when, MARK) as (wire, url), workers.client(postgres_url) as client:
        with program("worker", "app.py", folder=tmp_path, url=url) as worker:
            await client.joined()
            id = await client.submit(type)
            async with asyncio.timeout(GENEROUS):
                await wire.cut.wait()
                if when == LATE:
                    await waited_for(db)
                    wire.arrive.set()
            ended = await client.ended(id)
            assert ended.state is State.COMPLETED, worker.said
            assert await asyncio.to_thread(worker.end) == 0  # the wire is on this loop
        assert [row["attempt"] for row in await db.fetch("SELECT attempt FROM effect")] == [2 if when == BEFORE else 1]
        assert len(await client.attempts(id)) == (2 if when == BEFORE else 1)
    await db.execute("DROP TABLE effect")
    await db.close()
