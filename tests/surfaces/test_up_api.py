"""The API under `taskmill up`: it is there with the workers, comes back when it dies, keeps its port, and ends with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.surfaces import workers
from tests.surfaces.workers import GENEROUS, Client, Program, program, until

APP = """
import time
from pathlib import Path

from taskmill import App

app = App()


@app.task
def work(number: int) -> int:
    return number + 1


@app.task
def hold(started: str) -> str:
    Path(started).touch()
    time.sleep(1.5)
    return "held"
"""


class Place(NamedTuple):
    folder: Path
    client: Client
    session: aiohttp.ClientSession


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "app.py").write_text(APP)
    async with workers.client(f"sqlite:///{tmp_path}/taskmill.db") as client, aiohttp.ClientSession() as session:
        yield Place(tmp_path, client, session)


async def where(up: Program, times: int = 1) -> str:
    await until(lambda: up.said.count("the API is at") >= times, "an API")
    return str(re.findall(r"the API is at (http://[^,]+),", up.said)[times - 1])


async def soon(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(GENEROUS):
        while not await holds():  # noqa: ASYNC110 - another process becomes ready
            await asyncio.sleep(0.05)


async def submit(place: Place, at: str, type: str, payload: dict[str, object]) -> str:
    async with place.session.post(f"{at}/api/v1/tasks", json={"type": type, "payload": payload}) as answer:
        assert answer.status == 202, await answer.text()
        return str((await answer.json())["id"])


async def result(place: Place, at: str, id: str) -> object:
    async with place.session.get(f"{at}/api/v1/tasks/{id}?wait=30s") as answer:
        task = await answer.json()
        assert task["state"] == "completed", task
        return task["result"]


async def ready(place: Place, at: str) -> bool:
    async with place.session.get(f"{at}/readyz") as answer:
        return answer.status == 200


async def test_a_task_goes_in_and_its_result_comes_out(place: Place) -> None:
    with program("up", "app.py", "--port", "0", folder=place.folder) as up:
        at = await where(up)
        await place.client.joined()
        assert await result(place, at, await submit(place, at, "work", {"number": 1})) == 2
        async with place.session.get(f"{at}/metrics") as answer:
            text = await answer.text()
        assert 'taskqueue_tasks_submitted_total{priority="normal",type="work"} 1.0' in text
        assert "taskqueue_active_workers 1.0" in text
        assert up.end() == 0


async def test_it_is_ready_when_its_worker_has_joined(place: Place) -> None:
    with program("up", "app.py", "--port", "0", folder=place.folder) as up:
        at = await where(up)
        await soon(lambda: ready(place, at))
        assert [worker.alive for worker in await place.client.operations.workers()] == [True]
        assert up.end() == 0


async def test_one_that_is_killed_comes_back_on_its_port(place: Place) -> None:
    with program("up", "app.py", "--port", "0", folder=place.folder) as up:
        at = await where(up)
        await place.client.joined()
        before = await submit(place, at, "work", {"number": 1})
        os.kill(_api_of(up.process.pid), signal.SIGKILL)
        # A caller who comes now waits in the line of the socket that the supervisor holds.
        async with aiohttp.ClientSession() as anew, anew.get(f"{at}/healthz") as answer:
            assert answer.status == 200
        assert await where(up, 2) == at
        assert await result(place, at, before) == 2
        assert await result(place, at, await submit(place, at, "work", {"number": 2})) == 3
        assert up.end() == 0
    assert "the API is gone" in up.said


def _api_of(pid: int) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid and b"taskmill.server.process" in command:
            return int(process.name)
    raise AssertionError("there is no API process")


async def test_a_stop_answers_those_who_wait_and_lets_run_what_runs(place: Place) -> None:
    with program("up", "app.py", "--port", "0", folder=place.folder) as up:
        at = await where(up)
        await place.client.joined()
        started = place.folder / "started"
        id = await submit(place, at, "hold", {"started": str(started)})
        await until(started.exists, "a task that runs")
        waiting = asyncio.create_task(_waited(place, at, id))
        await asyncio.sleep(0.2)
        assert await asyncio.to_thread(up.end) == 0
        assert await waiting == 200
    task = await place.client.operations.get(id)
    assert (task.state, task.result) == ("completed", b'"held"')


async def _waited(place: Place, at: str, id: str) -> int:
    async with place.session.get(f"{at}/api/v1/tasks/{id}?wait=30s") as answer:
        return answer.status


async def test_a_port_that_was_asked_for_and_is_taken_is_an_error(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with program("up", "app.py", "--port", str(port), folder=place.folder) as up:
            assert await asyncio.to_thread(up.process.wait) == 1
    assert f"port {port} of 127.0.0.1 is in use" in up.said
    assert "Traceback" not in up.said


async def test_a_usual_port_that_is_taken_is_a_warning(place: Place) -> None:
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # then somebody else has it, which does as well
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        with program("up", "app.py", folder=place.folder) as up:
            at = await where(up)
            assert not at.endswith(":8080")
            await place.client.joined()
            assert up.end() == 0
    assert "the API takes another one" in up.said


async def test_without_keys_it_is_not_open_to_others(place: Place) -> None:
    with program("up", "app.py", "--host", "0.0.0.0", "--port", "0", folder=place.folder) as up:
        await until(lambda: "the API did not start" in up.said, "a refusal")
        assert "taskmill key create" in up.said
        assert up.end() == 0


async def test_up_without_the_api(place: Place) -> None:
    with program("up", "app.py", "--no-api", folder=place.folder) as up:
        await place.client.joined()
        assert await place.client.value("work", number=1) == 2
        assert up.end() == 0
    assert "the API" not in up.said
