"""Handlers with a transaction of their own in real workers: what reaches them while they commit, what they do after it; and what users' connections bring."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg
import psycopg
import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from taskmill import App, State
from taskmill.engine import Target
from taskmill.sync import run_here
from taskmill.task import NewTask
from tests.surfaces import workers
from tests.surfaces.workers import GENEROUS, Client, Program, program, until

BRISK = {"beat": "200ms", "lease": "1s", "kill_after": "30s"}

APP = """
import asyncio
import os
import time
from pathlib import Path

from taskmill import App, Context, Retry

app = App()
FOLDER = Path(__file__).parent


async def reached(name: str) -> None:
    (FOLDER / name).write_text(str(os.getpid()))
    while not (FOLDER / f"{name}-go").exists():
        await asyncio.sleep(0.01)


@app.task(retry=Retry.fixed(max_retries=2, delay="0s"))
async def cancelled(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO slow VALUES ($1, 3)", (ctx.attempt,))
        await reached("inside")


@app.task(timeout="2s", retry=Retry.fixed(max_retries=2, delay="0s"))
async def late(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO slow VALUES ($1, 4)", (ctx.attempt,))


@app.task
async def lingers(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO slow VALUES ($1, 0)", (ctx.attempt,))
    await asyncio.sleep(3)
    (FOLDER / "lingered").touch()


@app.task(max_crashes=10)
async def dies(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO slow VALUES ($1, 0)", (ctx.attempt,))
        await reached(f"begun-{ctx.attempt}")


@app.task(max_crashes=10)
async def dies_after(ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await tx.execute("INSERT INTO slow VALUES ($1, 0)", (ctx.attempt,))
    await reached("after")


@app.task
def note(n: int) -> int:
    return n
"""
SLOW = """
CREATE TABLE slow (attempt integer, seconds float);
CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(NEW.seconds); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleep();
"""
"""A row makes its transaction take so long to commit."""


class Place(NamedTuple):
    folder: Path
    url: str
    client: Client
    db: asyncpg.Connection

    async def rows(self) -> list[int]:
        return [row["attempt"] for row in await self.db.fetch("SELECT attempt FROM slow")]

    async def reached(self, name: str) -> int:
        """The process in which a handler waits there."""
        file = self.folder / name
        await until(lambda: file.exists() and bool(file.read_text()), name)
        return int(file.read_text())

    def go(self, name: str) -> None:
        (self.folder / f"{name}-go").touch()


@pytest.fixture
async def place(tmp_path: Path, postgres_url: str) -> AsyncIterator[Place]:
    (tmp_path / "app.py").write_text(APP)
    db = await asyncpg.connect(postgres_url)
    await db.execute(SLOW)
    async with workers.client(postgres_url) as client:
        yield Place(tmp_path, postgres_url, client, db)
    await db.execute("DROP TABLE slow; DROP FUNCTION sleep")
    await db.close()


@asynccontextmanager
async def worker(place: Place, **settings: str) -> AsyncIterator[Program]:
    with program("worker", "app.py", folder=place.folder, url=place.url, settings=BRISK | settings) as running:
        await place.client.joined()
        yield running
        assert await asyncio.to_thread(running.end) == 0, running.said


# While it commits


async def test_a_cancel_that_comes_while_it_commits(place: Place) -> None:
    """It was asked for before the end was written, and the worker hears of it while the server is busy with the commit."""
    async with worker(place, lease="30s") as running:
        id = await place.client.submit("cancelled")
        await place.reached("inside")
        running.process.send_signal(signal.SIGSTOP)  # nobody beats, so nobody hears of it
        await place.client.operations.cancel([Target(id)])
        place.go("inside")
        async with asyncio.timeout(GENEROUS):
            while not await place.db.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query = 'COMMIT;' AND wait_event = 'PgSleep'"):
                pass
        running.process.send_signal(signal.SIGCONT)
        task = await place.client.ended(id)
        assert (task.state, task.executions, await place.rows()) == (State.COMPLETED, 1, [1]), running.said
    assert "its handler failed" not in running.said


async def test_a_timeout_that_comes_while_it_commits(place: Place) -> None:
    async with worker(place) as running:
        task = await place.client.run("late")
        assert (task.state, task.executions, await place.rows()) == (State.COMPLETED, 1, [1]), running.said
    assert "its handler failed" not in running.said


async def test_a_stop_that_comes_while_it_commits(place: Place) -> None:
    async with worker(place) as running:
        id = await place.client.submit("cancelled")
        await place.reached("inside")
        running.process.send_signal(signal.SIGTERM)
        place.go("inside")
        task = await place.client.ended(id)
        assert (task.state, task.executions, await place.rows()) == (State.COMPLETED, 1, [1]), running.said
        await asyncio.to_thread(running.process.wait, GENEROUS)  # a second signal would stop it hard


# After it


async def test_a_handler_may_go_on_for_longer_than_a_lease(place: Place) -> None:
    """Its lease ended with the task; nobody takes that for a loss."""
    async with worker(place) as running:
        task = await place.client.run("lingers")
        assert task.state is State.COMPLETED
        await until((place.folder / "lingered").exists, "the end of the handler")
        assert (await place.rows(), len(await place.client.attempts(task.id))) == ([1], 1), running.said


async def test_killed_after_it(place: Place) -> None:
    async with worker(place):
        id = await place.client.submit("dies_after")
        os.kill(await place.reached("after"), signal.SIGKILL)
        assert await place.client.value("note", n=1) == 1
        assert ((await place.client.ended(id)).executions, await place.rows()) == (1, [1])


# In the middle


async def test_killed_in_the_middle(place: Place) -> None:
    async with worker(place):
        id = await place.client.submit("dies")
        os.kill(await place.reached("begun-1"), signal.SIGKILL)
        await place.reached("begun-2")
        assert await place.rows() == []
        place.go("begun-2")
        task = await place.client.ended(id)
        assert (task.state, await place.rows()) == (State.COMPLETED, [2])


# What users' connections bring


async def test_an_idle_worker_finds_what_nobody_announces(place: Place) -> None:
    async with worker(place):
        for n in range(3):
            new = NewTask(type="note", payload=b'{"n": %d}' % n)

            def insert(new: NewTask = new) -> None:
                with psycopg.connect(place.url) as connection:
                    run_here("submit", place.client.engine.submit([new], tx=connection))  # type: ignore[arg-type]

            await asyncio.to_thread(insert)
            assert (await place.client.ended(new.id)).state is State.COMPLETED


async def test_a_program_without_a_loop(place: Place) -> None:
    """Its business rows in a session, its tasks with them, and the result when the worker has done it."""

    def shop() -> object:
        app = App(place.url)
        note = app.task(name="note")(_note)
        engine = create_engine(place.url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)
        try:
            with Session(engine) as session, session.begin():
                handle = note.options(tx=session).sync.submit(7)
                [again] = app.sync.submit_many([note.options(tx=session, idempotency_key="seven").call(7)])
            return handle.result(timeout=GENEROUS), again.result(timeout=GENEROUS)
        finally:
            app.sync.close()

    async with worker(place):
        assert await asyncio.to_thread(shop) == (7, 7)


def _note(n: int) -> int:
    return n
