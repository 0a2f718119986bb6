"""Processes of their own: used again, replaced when changed or dead, killed when they do not listen."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskmill import App
from taskmill.clock import MILLISECOND, MINUTE, SECOND
from taskmill.engine import Ending, Outcome
from taskmill.loading import load
from taskmill.worker.attempt import CANCELLED, TIMEOUT, Running
from taskmill.worker.executor import PROCESSORS, HandlerUnavailable
from taskmill.worker.isolation import Runners
from taskmill.worker.process import death
from tests.unit.worker.parts import claimed

APP = """
import os
import time

from taskmill import App, Context

app = App("sqlite://:memory:")


@app.task(isolated=True)
def pid() -> int:
    return os.getpid()


@app.task(isolated=True)
async def change() -> int:
    os.environ["LEFT_BEHIND"] = "1"
    return os.getpid()


@app.task(isolated=True)
def exits() -> None:
    os._exit(3)


@app.task(isolated=True)
def listens(ctx: Context, fifo: str) -> None:
    open(fifo, "w").close()
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError(ctx.cancel_reason)


@app.task(isolated=True)
def deaf(fifo: str) -> None:
    open(fifo, "w").close()
    while True:
        time.sleep(1)


@app.task(isolated=True)
async def deaf_loop(fifo: str) -> None:
    deaf.function(fifo)
"""


def begun(outcome: Outcome | None) -> Outcome:
    assert outcome is not None
    return outcome


class Yard:
    """Runners of an app in a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "isolated_app.py"
        self.file.write_text(APP)
        self.fifo = folder / "fifo"
        os.mkfifo(self.fifo)
        self.app: App = load(str(self.file))
        self.runners = Runners(str(self.file), 400 * MILLISECOND)

    def attempt(self, type: str) -> Running:
        payload = msgspec.json.encode({"fifo": str(self.fifo)}) if type in ("listens", "deaf", "deaf_loop") else b"{}"
        running = Running(claimed(type, payload=payload, timeout=MINUTE), self.app.types[type], 1, asyncio.get_running_loop())
        running.started = 2
        return running

    async def run(self, type: str) -> Outcome:
        async with asyncio.timeout(30):
            return begun(await self.runners.attempt(self.attempt(type), lambda: True))

    async def pid(self, type: str = "pid") -> int:
        outcome = await self.run(type)
        assert outcome.result is not None, outcome.error
        return int(outcome.result)


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    await yard.runners.close()


async def test_a_process_is_used_again_until_it_is_changed(yard: Yard) -> None:
    first = await yard.pid()
    assert first != os.getpid()
    assert await yard.pid() == first
    assert await yard.pid("change") == first
    assert await yard.pid() != first


async def test_two_at_once_have_two(yard: Yard) -> None:
    assert len(set(await asyncio.gather(yard.pid(), yard.pid()))) == 2


async def test_one_that_dies_is_a_crash_and_the_next_has_another(yard: Yard) -> None:
    outcome = await yard.run("exits")
    assert outcome.ending == Ending.CRASHED
    assert outcome.error is not None
    assert outcome.error.message == "its process ended with exit code 3"
    assert await yard.pid()


async def test_one_that_died_between_two_attempts_is_nobody_s_crash(yard: Yard) -> None:
    first = await yard.pid()
    os.kill(first, signal.SIGKILL)
    [runner] = yard.runners._all
    async with asyncio.timeout(30):
        await runner._process.wait()
    assert await yard.pid() != first


@pytest.mark.parametrize(
    ("type", "reason", "ending"),
    [
        ("listens", CANCELLED, Ending.CANCELLED),
        ("listens", TIMEOUT, Ending.RETRY),
        ("deaf", CANCELLED, Ending.CANCELLED),
        ("deaf", TIMEOUT, Ending.RETRY),
        ("deaf_loop", TIMEOUT, Ending.RETRY),
    ],
)
async def test_asked_to_end(yard: Yard, type: str, reason: str, ending: Ending) -> None:
    running = yard.attempt(type)
    attempt = asyncio.create_task(yard.runners.attempt(running, lambda: True))
    async with asyncio.timeout(30):
        await asyncio.to_thread(yard.fifo.read_bytes)  # it runs
        running.reason = reason
        attempt.cancel()
        outcome = begun(await attempt)
    assert outcome.ending == ending
    if reason == TIMEOUT:
        assert outcome.error is not None
        assert outcome.error.code == "timeout"
    assert await yard.pid()


async def test_one_that_must_not_begin_leaves_its_process_to_the_next(yard: Yard) -> None:
    assert await yard.runners.attempt(yard.attempt("exits"), lambda: False) is None
    [runner] = yard.runners._all
    assert await yard.pid() == runner._process.pid


async def test_an_app_that_no_longer_imports_is_not_the_task_s_fault(yard: Yard) -> None:
    yard.file.write_text("def (")
    with pytest.raises(HandlerUnavailable, match="does not import"):
        await yard.run("pid")
    yard.file.write_text(APP)
    assert await yard.pid()


@pytest.mark.parametrize(("line", "limit", "said"), [("os._exit(3)", MINUTE, "exit code 3"), ("time.sleep(60)", SECOND, "not ready in a new process after 1s")])
async def test_an_app_that_does_not_start_in_a_process_of_its_own(yard: Yard, line: str, limit: int, said: str) -> None:
    yard.file.write_text(APP.replace("import time\n", f"import time\n{line}\n"))
    yard.runners._start_limit = limit
    with pytest.raises(HandlerUnavailable, match=said):
        await yard.runners.attempt(yard.attempt("pid"), lambda: pytest.fail("it began"))
    assert yard.runners._all == set()


async def test_no_more_processes_start_at_once_than_there_are_processors(yard: Yard) -> None:
    starting, most = 0, 0
    start = yard.runners._start

    async def counted() -> Any:
        nonlocal starting, most
        starting += 1
        most = max(most, starting)
        try:
            return await start()
        finally:
            starting -= 1

    yard.runners._start = counted  # type: ignore[method-assign]
    outcomes = await asyncio.gather(*(yard.run("pid") for _ in range(3 * PROCESSORS)))
    assert {outcome.ending for outcome in outcomes} == {Ending.COMPLETED}
    assert 0 < most <= PROCESSORS


@pytest.mark.parametrize(
    ("code", "said"), [(0, "exit code 0"), (7, "exit code 7"), (-9, "SIGKILL (out of memory?)"), (-11, "SIGSEGV"), (-250, "killed by 250")]
)
def test_how_a_process_ended(code: int, said: str) -> None:
    assert said in death(code)
