"""Closing an engine whose server is away: nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from taskmill.clock import SECOND
from taskmill.engines import create
from taskmill.errors import StoreError
from tests.conformance.tools import submit_one, worker
from tests.servers import redis as servers
from tests.servers.redis import RedisServer

PATIENCE = 120 * SECOND
"""How long this engine's verbs wait for a server that does not answer."""
HANGS = 60.0
"""Seconds: less than that, and far more than closing takes on a busy machine."""


@pytest.fixture
def silent(private_redis: RedisServer) -> Iterator[RedisServer]:
    """One that can be frozen; `private_redis` says where there is no server at all."""
    with servers.started() as server:
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGCONT)


async def test_closing_waits_for_no_answer(silent: RedisServer) -> None:
    engine = create(silent.url(), busy_timeout=PATIENCE)
    await engine.open()
    hand = await worker(engine)
    id = await submit_one(engine)
    hints = await engine.wakeups()
    waiting = asyncio.create_task(engine.wait([id], 60_000_000))
    await anext(hints)
    assert [task.id for task in await hand.claim(1)] == [id]
    os.kill(silent.pid, signal.SIGSTOP)
    asking = asyncio.create_task(engine.heartbeat(hand.id, hand.request, list(hand.held)))
    await asyncio.sleep(0)
    async with asyncio.timeout(HANGS):
        await engine.close()
    waiting.cancel()
    assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], StoreError)
    await asyncio.gather(waiting, return_exceptions=True)
