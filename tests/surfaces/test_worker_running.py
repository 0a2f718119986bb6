"""Workers at work: what they hand back, what operators tell them, how they are replaced, and what goes on while the store does not answer."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from taskmill.clock import MINUTE, SECOND
from taskmill.cron import Cron
from taskmill.engine import Filter, Target
from taskmill.schedule import Schedule
from taskmill.task import NewTask, State, Task
from tests.surfaces import workers
from tests.surfaces.workers import GENEROUS, Client, program, until

APP = """
import os
import time
from pathlib import Path

from taskmill import App

app = App(version={version})


@app.on_start
def begin() -> None:
    with open("hooks", "a") as file:
        file.write(f"start {{os.getpid()}}\\n")


@app.on_stop
async def end() -> None:
    with open("hooks", "a") as file:
        file.write(f"stop {{os.getpid()}}\\n")


@app.task(timeout="{version}m")
def work() -> int:
    return os.getpid()


@app.task
def hold(started: str, release: str) -> None:
    Path(started).touch()
    while not Path(release).exists():
        time.sleep(0.01)


@app.task
def note(line: str) -> None:
    with open("notes", "a") as file:
        file.write(line + "\\n")


@app.task(queue="mail")
def send() -> int:
    return {version}
"""


class Place(NamedTuple):
    folder: Path
    url: str
    client: Client


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "app.py").write_text(APP.format(version=1))
    url = f"sqlite:///{tmp_path}/taskmill.db"
    async with workers.client(url) as client:
        yield Place(tmp_path, url, client)


def call(type: str, **arguments: object) -> NewTask:
    return NewTask(type=type, payload=msgspec.json.encode(arguments))


async def held(place: Place, n: int = 1) -> list[str]:
    """So many tasks that run until `release` is there."""
    release = str(place.folder / "release")
    ids = await place.client.submit_many([call("hold", started=str(place.folder / f"started-{number}"), release=release) for number in range(n)])
    await until(lambda: len(list(place.folder.glob("started-*"))) == n, f"{n} started tasks")
    return ids


async def completed(client: Client, ids: list[str]) -> None:
    """Each of them, at its first attempt."""
    assert len(await client.operations.wait(ids, int(GENEROUS * SECOND), every=True)) == len(ids)
    for start in range(0, len(ids), 1_000):
        for task in await client.engine.get(ids[start : start + 1_000]):
            assert isinstance(task, Task)
            assert (task.state, task.executions) == ("completed", 1)


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + GENEROUS
    while not await holds():
        assert time.monotonic() < deadline, f"it never came to {what}"


# Sharing


async def test_what_a_worker_cannot_begin_others_get(place: Place) -> None:
    """Ten slow tasks behind and before many short ones: whatever the first worker has taken ahead goes back."""
    client = place.client
    with program("worker", "app.py", folder=place.folder) as first:
        await client.joined()
        release = str(place.folder / "release")
        slow = [call("hold", started=str(place.folder / f"started-{number}"), release=release) for number in range(10)]
        ids = await client.submit_many([call("work") for _ in range(300)] + slow + [call("work") for _ in range(200)])
        await until(lambda: len(list(place.folder.glob("started-*"))) == 10, "ten slow ones")
        with program("worker", "app.py", folder=place.folder) as second:
            await completed(client, ids[:300] + ids[310:])
            (place.folder / "release").touch()
            await completed(client, ids)
            assert (first.end(), second.end()) == (0, 0)


async def test_who_is_more_urgent_goes_first(place: Place) -> None:
    client = place.client
    with program("worker", "app.py", "--concurrency", "1", folder=place.folder) as worker:
        await client.joined()
        await held(place)
        lines = {"low": 0, "normal": 1, "high": 2, "critical": 3}
        ids = await client.submit_many([msgspec.structs.replace(call("note", line=line), priority=priority) for line, priority in lines.items()])
        (place.folder / "release").touch()
        await completed(client, ids)
        assert worker.end() == 0
    assert (place.folder / "notes").read_text().split() == ["critical", "high", "normal", "low"]


async def test_queues_versions_and_types_that_nobody_has(place: Place) -> None:
    """The settings of a type are those of the highest version, whoever joins last; a worker of some queues leaves the others alone."""
    client = place.client
    newer = APP.format(version=2) + '\n\n@app.task(queue="mail")\ndef only_new() -> int:\n    return 2\n'
    (place.folder / "newer.py").write_text(newer)
    with program("worker", "newer.py", "--queue", "mail", folder=place.folder) as new:
        await client.joined()
        assert await client.value("send") == 2
        with program("worker", "app.py", folder=place.folder) as old:
            await client.joined(2)
            assert new.end() == 0
            assert await client.value("send") == 1
            [waiting] = await client.submit_many([NewTask(type="only_new", payload=b"{}")])
            await client.value("send")
            assert (await client.operations.get(waiting)).state == "pending"
            [mail] = [queue for queue in await client.operations.queues() if queue.name == "mail"]
            assert mail.no_worker == 1
            with program("worker", "newer.py", folder=place.folder) as newest:
                assert (await client.ended(waiting)).result == b"2"
                [work] = [type for type in await client.operations.types() if type.name == "work"]
                assert work.settings.timeout == 2 * MINUTE
                task = await client.run("work")
                assert task.timeout == 2 * MINUTE
                assert (old.end(), newest.end()) == (0, 0)


async def test_forty_thousand_plain_functions_all_end(place: Place) -> None:
    """Handlers outrun the store here: whoever waits for room must be told when the store has answered."""
    client = place.client
    with program("worker", "app.py", folder=place.folder) as worker:
        await client.joined()
        await client.submit_many([NewTask(type="work", payload=b"{}") for _ in range(40_000)])

        async def done() -> bool:
            page = await client.operations.list(Filter(states=frozenset({State.PENDING, State.RUNNING})), n=1)
            return not page.tasks

        await eventually(done, "the end of 40,000 tasks")
        assert worker.end() == 0


# Operators


@pytest.mark.parametrize("command", ["pause", "quiet"])
async def test_a_worker_that_is_told_to_wait(place: Place, command: str) -> None:
    client = place.client
    with program("worker", "app.py", folder=place.folder, settings={"beat": "100ms", "lease": "2s"}) as worker:
        [id] = await client.joined()
        [running] = await held(place)
        await client.operations.command_worker(id, command)
        waiting = await first_that_waits(client)
        (place.folder / "release").touch()
        await completed(client, [running])  # what runs goes on
        assert (await client.operations.get(waiting)).state == "pending"
        await client.operations.command_worker(id, None)
        await completed(client, [waiting])
        assert worker.end() == 0


async def first_that_waits(client: Client) -> str:
    """A command is told with a beat, so for a moment tasks still begin."""
    deadline = time.monotonic() + GENEROUS
    while True:
        id = await client.submit("work")
        if not await client.operations.wait([id], SECOND):
            return id
        assert time.monotonic() < deadline, "the worker is never paused"


async def test_a_worker_that_is_told_to_stop(place: Place) -> None:
    client = place.client
    with program("worker", "app.py", "--processes", "2", folder=place.folder, settings={"beat": "100ms", "lease": "2s"}) as worker:
        first, second = await client.joined(2)
        await client.operations.command_worker(first, "stop")
        assert await client.joined(1) == (second,)
        assert (await client.run("work")).worker != first
        await client.operations.command_worker(second, "stop")
        assert await asyncio.to_thread(worker.process.wait, GENEROUS) == 0
    lines = [line.split() for line in (place.folder / "hooks").read_text().splitlines()]
    assert sorted(word for word, _ in lines) == ["start", "start", "stop", "stop"]
    assert {pid for word, pid in lines if word == "start"} == {pid for word, pid in lines if word == "stop"}


async def test_stopped_while_one_is_being_replaced(place: Place) -> None:
    """A process that is replaced lets run what runs for as long as it takes; a stop that comes meanwhile still ends it within the grace period."""
    client = place.client
    settings = {"beat": "100ms", "lease": "2s", "max_tasks": "1", "grace_period": "0s"}
    with program("worker", "app.py", folder=place.folder, settings=settings) as worker:
        [first] = await client.joined()
        [running] = await held(place)
        await client.run("work")

        async def succeeded() -> bool:
            return bool({one.id for one in await client.operations.workers()} - {first})

        await eventually(succeeded, "a successor")
        assert worker.end() == 0
    task = await client.operations.get(running)
    assert (task.state, task.crashes) == ("pending", 0)


async def test_cancelled_while_they_wait_for_a_slot(place: Place) -> None:
    client = place.client
    with program("worker", "app.py", "--concurrency", "1", folder=place.folder, settings={"beat": "100ms", "lease": "2s"}) as worker:
        await client.joined()
        [running] = await held(place)
        ids = await client.submit_many([call("note", line="never") for _ in range(20)])
        await client.operations.cancel([Target(id) for id in ids])
        assert set((await client.operations.wait(ids, int(GENEROUS * SECOND), every=True)).values()) == {"cancelled"}
        (place.folder / "release").touch()
        await completed(client, [running])
        assert worker.end() == 0
    assert not (place.folder / "notes").exists()


# Replacing


@pytest.mark.parametrize("option", ["--max-tasks=20", "--max-memory=1MiB"])
async def test_a_process_that_has_done_its_share_is_replaced(place: Place, option: str) -> None:
    client = place.client
    with program("worker", "app.py", option, folder=place.folder, settings={"beat": "100ms", "lease": "2s"}) as worker:
        await client.joined()
        seen: set[object] = set()

        async def replaced() -> bool:
            ids = await client.submit_many([call("work") for _ in range(30)])
            await completed(client, ids)
            seen.update(task.result for task in await client.engine.get(ids) if isinstance(task, Task))
            return len(seen) >= 3

        await eventually(replaced, "three processes")
        assert worker.end() == 0
        assert "is gone" not in worker.said


async def test_the_second_signal_does_not_wait(place: Place) -> None:
    with program("worker", "app.py", folder=place.folder) as worker:
        await place.client.joined()
        [id] = await held(place)
        worker.process.send_signal(signal.SIGTERM)
        await until(lambda: "draining" in worker.said, "draining")
        worker.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(worker.process.wait, GENEROUS) == 1
        task = await place.client.operations.get(id)
        assert (task.state, task.crashes) == ("pending", 0)


async def test_signals_without_end_do_not_end_it_in_another_way(place: Place) -> None:
    """Up to its last instant, when it no longer hears them."""
    with program("worker", "app.py", folder=place.folder) as worker:
        await place.client.joined()
        while worker.process.poll() is None:
            worker.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.001)  # as fast as it can would leave the worker no time for anything else
        assert worker.process.returncode in (0, 1)


# The store


@pytest.fixture
def locked(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who takes the write lock at a line and lets go of it at the next."""
    text = f"""
import sqlite3, sys
db = sqlite3.connect({str(place.folder / "taskmill.db")!r}, isolation_level=None)
sys.stdin.readline()
db.execute("BEGIN IMMEDIATE")
print(flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
print(flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def turn(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"\n"


async def test_what_ends_while_the_store_is_locked_is_told_later(place: Place, locked: subprocess.Popen[bytes]) -> None:
    client = place.client
    with program("worker", "app.py", folder=place.folder, settings={"busy_timeout": "100ms"}) as worker:
        await client.joined()
        ids = await held(place, 3)
        await asyncio.to_thread(turn, locked)
        (place.folder / "release").touch()
        await until(lambda: re.search(r"does not take \d outcomes", worker.said) is not None, "a refused outcome")
        await asyncio.to_thread(turn, locked)
        await completed(client, ids)
        await completed(client, [await client.submit("work")])
        assert worker.end() == 0


# Other programs


async def test_dev_starts_anew_and_survives_what_does_not_import(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second version is as long as the first and of the same second, which is all that Python looks at before it takes what it compiled."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    client, app = place.client, place.folder / "app.py"
    written = app.stat().st_mtime_ns

    def runs(version: int) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return await client.value("send") == version

        return check

    with program("dev", "app.py", folder=place.folder) as dev:
        await client.joined()
        assert await client.value("send") == 1
        second = place.folder / "second"
        second.write_text(APP.format(version=2))
        os.utime(second, ns=(written, written + 1))
        second.replace(app)
        await eventually(runs(2), "the second version")
        app.write_text("def (")
        await until(lambda: "does not import" in dev.said, "a word about the mistake")
        assert dev.process.poll() is None
        app.write_text(APP.format(version=3))
        await eventually(runs(3), "the third version")
        assert dev.end() == 0
    assert await client.joined(0) == ()


async def test_a_scheduler_alone_fires_schedules(place: Place) -> None:
    await place.client.operations.put_schedule("ticks", Schedule(type="tick", cron=Cron.parse("* * * * * *"), queue="default"))
    with program("scheduler", "--url", place.url, folder=place.folder) as scheduler:

        async def fired() -> bool:
            return len((await place.client.operations.list(Filter(types=frozenset({"tick"})))).tasks) >= 2

        await eventually(fired, "two ticks")
        assert scheduler.end() == 0


async def test_up_says_where_it_stands(place: Place) -> None:
    with program("up", "app.py", folder=place.folder) as up:
        await place.client.joined()
        assert isinstance(await place.client.value("work"), int)
        await until(lambda: "taskmill is up on" in up.said, "where it stands")
        assert up.end() == 0
    assert "try: taskmill task list" in up.said
