"""What handlers leave behind: processes, and what they print."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.surfaces.workers import Client, Program, client, program, until

APP = """
import subprocess
import sys
import time
from pathlib import Path

from taskmill import App, Retry

app = App()
SLEEP = ["sleep", "600"]


def start() -> list[int]:
    # One that stays, and one that goes apart: its group is another, and its parent has ended.
    plain = subprocess.Popen(SLEEP)
    apart = subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, start_new_session=True, check=True)
    return [plain.pid, int(apart.stdout)]


@app.task(isolated=True)
def leave_alone() -> list[int]:
    return start()


@app.task(isolated=True, timeout="300ms", retry=Retry(max_retries=0))
def late(path: str) -> None:
    Path(path).write_text(str(subprocess.Popen(SLEEP).pid))
    time.sleep(60)


@app.task
def leave() -> list[int]:
    return [subprocess.Popen(SLEEP).pid]


@app.task
def shout() -> None:
    line = "x" * 999_999
    for _ in range(200):
        print(line, file=sys.stderr)
    print("\\x1b[2J", file=sys.stderr)


@app.task
def fine() -> int:
    print("hello", file=sys.stderr)
    return 1
"""


class Running(NamedTuple):
    folder: Path
    worker: Program
    client: Client


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with program("worker", "app.py", folder=tmp_path, url=url) as worker:
        async with client(url) as store:
            await store.joined()
            yield Running(tmp_path, worker, store)


def gone(pid: int) -> bool:
    """Reaped, too."""
    return not Path(f"/proc/{pid}").exists()


async def test_processes_of_an_isolated_handler_end_with_its_attempt(running: Running) -> None:
    """Also one that has left its group, and whose own parent is gone."""
    pids = await running.client.value("leave_alone")
    assert isinstance(pids, list)
    assert len(pids) == 2
    assert [gone(pid) for pid in pids] == [True, True]
    assert running.worker.end() == 0
    assert "left 2 processes behind, which were killed" in running.worker.said


async def test_processes_of_a_handler_that_is_killed_end_with_it(running: Running) -> None:
    note = running.folder / "pid"
    task = await running.client.run("late", path=str(note))
    assert task.error is not None
    assert task.error.code == "timeout"
    await until(lambda: gone(int(note.read_text())), "the end of its child")


async def test_others_are_told_when_the_worker_ends(running: Running) -> None:
    value = await running.client.value("leave")
    assert isinstance(value, list)
    (pid,) = value
    try:
        assert not gone(pid)
        assert running.worker.end() == 0
        assert f"1 processes that handlers started go on without this worker: {pid}" in running.worker.said
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_two_hundred_megabytes_are_not_in_the_log(running: Running) -> None:
    task = await running.client.run("shout")
    assert task.state == "completed"
    assert await running.client.value("fine") == 1
    assert running.worker.end() == 0
    said = running.worker.said
    assert len(said) < 3_000_000
    assert re.search(rf"task {task.id} printed more than is kept: \d+ lines and \d+ characters of it are cut", said)
    assert "\x1b" not in said
    assert "\nhello\n" in said
