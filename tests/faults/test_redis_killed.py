"""The server is killed while clients are at work. What it had written to its disk by its own settings is there, and agrees with itself; the clients go on by
themselves, and nothing that was acknowledged at `appendfsync always` is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.clients import at_work, judged
from tests.faults.growing import Growing
from tests.faults.workers import BRISK, Load, place_at, verdict
from tests.history import events
from tests.history.events import Event
from tests.servers import redis as servers
from tests.servers.redis import RedisServer


@pytest.fixture
def durable(private_redis: RedisServer) -> Iterator[RedisServer]:
    """Every step is on the disk when it is answered; `private_redis` says where there is no server at all."""
    with servers.started(appendonly="yes", appendfsync="always") as server:
        yield server


def restart(server: RedisServer) -> None:
    server.stop("kill")
    server.start()


def lost(history: list[Event]) -> bool:
    """Whether the fault came between a question and its answer at all."""
    return any(isinstance(event, events.Submit | events.Claim | events.Finish) and event.answer == "lost" for event in history)


async def kills(tmp_path: Path, server: RedisServer, n: int, clients: int = 2) -> None:
    url, history, random = server.url(), tmp_path / "history", Random(clients)
    async with at_work(url, history, n=clients) as programs:
        growing = Growing(history)
        for _ in range(n):
            await growing.completed(random.randrange(1, 100))
            await asyncio.to_thread(restart, server)
            await growing.goes_on()
    assert lost(await judged(url, history, programs))


async def test_the_server_dies_under_load(tmp_path: Path, durable: RedisServer) -> None:
    await kills(tmp_path, durable, 4)


@pytest.mark.chaos
async def test_the_server_dies_fifty_times_under_load(tmp_path: Path, durable: RedisServer) -> None:
    await kills(tmp_path, durable, 50, clients=4)


async def kills_beside_workers(tmp_path: Path, server: RedisServer, n: int) -> None:
    """`taskmill worker` goes on: the same processes, every task completed, once."""
    random = Random(0)
    async with place_at(tmp_path, BRISK, url=server.url()) as place, place.worker() as first, place.worker() as second:
        children = [*await first.joined(), *await second.joined()]
        growing = Growing(place.history)
        async with Load(place):
            for _ in range(n):
                await growing.completed(random.randrange(10, 60))
                await asyncio.to_thread(restart, server)
                await growing.goes_on()
        assert [*first.children(), *second.children()] == children
        assert [await first.stop(), await second.stop()] == [0, 0]
        await verdict(place)


async def test_workers_go_on(tmp_path: Path, durable: RedisServer) -> None:
    await kills_beside_workers(tmp_path, durable, 2)


@pytest.mark.chaos
async def test_workers_go_on_twenty_times(tmp_path: Path, durable: RedisServer) -> None:
    await kills_beside_workers(tmp_path, durable, 20)
