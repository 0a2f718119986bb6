"""The way of a task through a server on each engine: submitted together, worked off by a real worker, its result waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskmill import Client, State, TaskFailed
from taskmill.errors import NotFound
from taskmill.task import new_id
from tests.surfaces.serving import serving
from tests.surfaces.workers import program

APP = """
from taskmill import App, Fail

app = App()

@app.task
async def double(n: int) -> int:
    if n < 0:
        raise Fail("negative")
    return 2 * n
"""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def anywhere(request: pytest.FixtureRequest, store: str) -> str:
    """The URL of an empty store of each engine."""
    url: str = store if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return url


async def test_from_a_client_to_a_worker_and_back(anywhere: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with serving(anywhere, tmp_path) as server, program("worker", "shop.py", folder=tmp_path, url=anywhere):
        async with Client(server.url) as client:
            handles = await asyncio.gather(*(client.submit("double", {"n": n}, queue="default") for n in range(120)))
            assert await asyncio.gather(*(handle.result("60s") for handle in handles)) == [2 * n for n in range(120)]
            failed = await client.submit("double", {"n": -1})
            with pytest.raises(TaskFailed) as caught:
                await failed.result("60s")
            assert caught.value.error is not None
            assert caught.value.error.message == "negative"
            [attempt] = await client.attempts(failed.id)
            assert attempt.outcome == "failed"
            later = await client.submit("double", {"n": 1}, delay="1h", idempotency_key="later")
            again = await client.submit("double", {"n": 1}, delay="1h", idempotency_key="later")
            assert again == later
            assert await later.cancel()
            assert await later.status() is State.CANCELLED
            with pytest.raises(NotFound):
                await client.handle(new_id()).status()
