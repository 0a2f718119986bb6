"""Workers killed at random moments, while each task writes one row in its transaction: in the end each row is there exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from taskmill import App, State
from taskmill.clock import SECOND
from taskmill.task import NewTask, Task
from tests.conformance.tools import execute
from tests.surfaces import workers
from tests.surfaces.workers import GENEROUS, Client, Program, program, until

TASKS = 200
KILLS = 12
BRISK = {"beat": "100ms", "lease": "1s", "concurrency": "6"}

APP = """
import asyncio
import inspect
import os
import random

from taskmill import App, Context

app = App()


@app.on_start
def say() -> None:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")


@app.task
async def work(ctx: Context, number: int) -> None:
    async with ctx.transaction() as tx:
        written = tx.execute(f"INSERT INTO effect VALUES ({number})")
        if inspect.isawaitable(written):
            await written
        await asyncio.sleep(random.uniform(0, PAUSE))
"""


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/taskmill.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


class Victims:
    """Processes that run handlers, newest last."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.file = folder / "pids"
        self.random = random
        self.killed: set[int] = set()

    def alive(self) -> list[int]:
        pids = [int(line) for line in self.file.read_text().split()] if self.file.exists() else []
        return [pid for pid in pids if pid not in self.killed and Path(f"/proc/{pid}").exists()]

    async def kill(self) -> None:
        """One of them; those that have ended meanwhile, for reasons of their own, do not count."""
        before = len(self.killed)
        while len(self.killed) == before:
            await until(lambda: bool(self.alive()), "a process with handlers")
            await asyncio.sleep(self.random.uniform(0, 0.4))
            if alive := self.alive():
                pid = self.random.choice(alive)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.add(pid)


async def ended(client: Client, ids: list[str]) -> Counter[State]:
    done = await client.operations.wait(ids, int(GENEROUS * SECOND), every=True)
    assert len(done) == len(ids)
    return Counter(task.state for task in await client.engine.get(ids) if isinstance(task, Task))


def killed(worker: Program) -> None:
    worker.process.kill()
    worker.process.wait()


async def test_each_row_is_there_exactly_once(url: str, tmp_path: Path) -> None:
    """Ten times a process that runs handlers is killed, and twice their supervisor with them."""
    random = Random(5)
    victims = Victims(tmp_path, random)
    (tmp_path / "app.py").write_text(APP.replace("PAUSE", "0.02" if url.startswith("sqlite") else "0.25"))
    async with App(url) as app, workers.client(url) as client:
        async with app.transaction() as tx:
            await execute(tx, "CREATE TABLE effect (number integer)")
        made = await client.submit_many([NewTask(type="work", payload=b'{"number": %d}' % n, queue="default", max_crashes=1_000) for n in range(TASKS)])
        for _ in range(2):
            with program("worker", "app.py", folder=tmp_path, url=url, settings=BRISK) as worker:
                for _ in range(KILLS // 2 - 1):
                    await victims.kill()
                await until(lambda: bool(victims.alive()), "a process with handlers")
                killed(worker)
        with program("worker", "app.py", folder=tmp_path, url=url, settings=BRISK) as worker:
            assert await ended(client, made) == {State.COMPLETED: TASKS}, worker.said
            assert worker.end() == 0
        async with app.transaction() as tx:
            rows = [row[0] for row in await execute(tx, "SELECT number FROM effect")]
            await execute(tx, "DROP TABLE effect")
        assert len(victims.killed) == KILLS - 2
        assert [(number, times) for number, times in Counter(rows).items() if times != 1] == []
        assert sorted(rows) == list(range(TASKS))
