"""Programs that are started together with their store, and before it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.redis import RedisServer
from tests.surfaces.workers import Program, client, program, until

APP = """
from taskmill import App

app = App()


@app.task
def work() -> int:
    return 1
"""
COMMANDS = {
    "worker": ("worker", "app.py"),
    "up": ("up", "app.py", "--port", "0", "--grpc-port", "0"),
    "api": ("api", "--port", "0", "--no-grpc"),
    "scheduler": ("scheduler",),
}


def says(running: Program, text: str) -> Callable[[], bool]:
    return lambda: text in running.said


@pytest.mark.parametrize("name", COMMANDS)
async def test_it_waits_for_its_store(tmp_path: Path, private_redis: RedisServer, name: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    url = private_redis.url()
    await asyncio.to_thread(private_redis.stop, "kill")
    with program(*COMMANDS[name], "--wait-for-store", "5m", folder=tmp_path, url=url) as running:
        await until(says(running, "the store is not there yet, waiting for it for up to 5m"), "its waiting")
        await asyncio.to_thread(private_redis.start)
        if name in ("worker", "up"):
            async with client(url) as store:
                await store.joined()
                assert await store.value("work") == 1
        elif name == "api":
            await until(says(running, "taskmill serves"), "its serving")
        assert running.process.poll() is None
        assert running.end() == 0


@pytest.mark.parametrize("name", COMMANDS)
async def test_it_is_told_to_end_while_it_waits(tmp_path: Path, private_redis: RedisServer, name: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    await asyncio.to_thread(private_redis.stop, "kill")
    with program(*COMMANDS[name], folder=tmp_path, url=private_redis.url(), settings={"wait_for_store": "1h"}) as running:
        await until(says(running, "the store is not there yet"), "its waiting")
        assert running.end() == 0
    await asyncio.to_thread(private_redis.start)


@pytest.mark.parametrize("name", COMMANDS)
async def test_unless_asked_it_does_not_wait(tmp_path: Path, private_redis: RedisServer, name: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    await asyncio.to_thread(private_redis.stop, "kill")
    with program(*COMMANDS[name], folder=tmp_path, url=private_redis.url()) as running:
        await until(lambda: running.process.poll() is not None, "its end")
        assert running.process.returncode == 1
        assert "not there yet" not in running.said
    await asyncio.to_thread(private_redis.start)
