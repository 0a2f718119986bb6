"""Live events over a store that goes away and comes back: clients stay, and are told what they missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskmill.errors import StoreError
from tests.conformance.tools import submit_one
from tests.servers.redis import RedisServer
from tests.surfaces.live import Live, served


async def stored(server: Live) -> str:
    """A task in a store that is just coming back."""
    while True:
        try:
            return await submit_one(server.engine)
        except StoreError:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["kill", "shutdown"])
async def test_a_store_that_is_killed_and_comes_back(private_redis: RedisServer, tmp_path: Path, mode: str) -> None:
    """With its numbers begun anew: nothing of it is kept."""
    async with served(private_redis.url(), tmp_path) as server, server.client("?event=task.*") as client, server.stream("?event=task.*") as stream:
        await submit_one(server.engine)
        await client.next()
        await stream.next()
        private_redis.stop("kill" if mode == "kill" else "shutdown")
        private_redis.start()
        for heard in (client, stream):
            assert (await heard.until(lambda event: event["type"] == "resync"))["data"] == {"reason": "outage"}
        id = await stored(server)
        for heard in (client, stream):
            await heard.until(lambda event: event["data"].get("task_id") == id)


async def test_who_comes_while_the_store_is_away_is_told_so(private_redis: RedisServer, tmp_path: Path) -> None:
    async with served(private_redis.url(), tmp_path) as server:
        await submit_one(server.engine)
        private_redis.stop("kill")
        async with server.stream() as stream:
            assert stream.response.status == 503
        private_redis.start()
        id = await stored(server)
        async with server.stream("?event=task.*") as stream:
            assert stream.response.status == 200
            later = await stored(server)
            assert later != id
            await stream.until(lambda event: event["data"].get("task_id") == later)
