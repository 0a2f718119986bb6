"""Workers that are told to end while their store is away: they end within their grace period, and well. What could not be given back runs elsewhere later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from taskmill.clock import MINUTE
from tests.faults.effects import until
from tests.faults.postgres_tools import paused, with_store
from tests.faults.workers import BRISK, Place, Worker, locked, new, place_at, verdict
from tests.servers.postgres import Postgres
from tests.servers.processes import children
from tests.servers.redis import RedisServer

SETTINGS = {**BRISK, "TASKMILL_GRACE_PERIOD": "5s"}
SOON = 20.0
"""Seconds; without a bound of its own a worker would wait for as long as the store may take to answer, which is 30 s, and again."""

Away = Callable[[Path], AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def stopped(server: RedisServer) -> AsyncIterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def gone(server: RedisServer | Postgres) -> AsyncIterator[None]:
    await asyncio.to_thread(server.stop, "kill")
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@contextlib.asynccontextmanager
async def silent(server: Postgres) -> AsyncIterator[None]:
    with paused(server):
        yield


@pytest.fixture(params=["sqlite locked", "postgres silent", "postgres gone", "redis silent", "redis gone"])
def store(request: pytest.FixtureRequest) -> tuple[str | None, Away]:
    """A store, and how it is away."""
    engine, how = request.param.split()
    if engine == "sqlite":
        return None, lambda folder: locked(folder / "store.db")
    if engine == "postgres":
        server: Postgres = with_store(request.getfixturevalue("private_postgres"))
        return server.url(), lambda _: silent(server) if how == "silent" else gone(server)
    redis: RedisServer = request.getfixturevalue("private_redis")
    return redis.url(), lambda _: stopped(redis) if how == "silent" else gone(redis)


async def ended(worker: Worker) -> int:
    worker.signal(signal.SIGTERM)
    async with asyncio.timeout(SOON):
        return await worker.process.wait()


async def test_an_idle_worker(tmp_path: Path, store: tuple[str | None, Away]) -> None:
    url, away = store
    async with place_at(tmp_path, SETTINGS, url=url) as place, place.worker() as worker:
        await worker.joined()
        async with away(tmp_path):
            assert await ended(worker) == 0, worker.said()


async def test_a_busy_worker(tmp_path: Path, store: tuple[str | None, Away]) -> None:
    """One handler has ended and cannot say so, another goes on."""
    url, away = store
    async with place_at(tmp_path, SETTINGS, url=url) as place:
        gate = place.gate("gate")
        async with place.worker() as worker:
            await worker.joined()
            tasks = await place.submit(*(new(kind, gate=gate.path) for kind in ("hold", "hold_async", "hold")))
            await place.effects.count(3, "begin", tasks=tasks)
            async with away(tmp_path):
                gate.let(1)
                await place.effects.count(1, "end", tasks=tasks)
                assert await ended(worker) == 0, worker.said()
        if "redis" in (url or ""):  # one that keeps nothing has nothing left
            gate.close()
            return
        await goes_on(place, tasks)
        gate.close()


async def goes_on(place: Place, tasks: list[str]) -> None:
    """Their leases run out, and another worker completes them."""
    async with place.worker() as other:
        await place.all_ended(tasks)
        assert await other.stop() == 0
    await verdict(place)


async def test_a_worker_that_waits_for_its_store(tmp_path: Path) -> None:
    """It has not even begun."""
    async with place_at(tmp_path, SETTINGS) as place:
        await place.submit(new("work", ms=1, delay=MINUTE))
        async with locked(tmp_path / "store.db"), place.worker() as worker:
            await until(lambda: children(worker.pid) or None, "its first child")
            assert await ended(worker) == 0, worker.said()
