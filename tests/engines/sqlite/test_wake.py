"""Wake-ups between processes: told, not asked for; and no file stays behind of one who no longer listens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest

from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.engines.sqlite.wake import Waker
from tests.conformance.tools import submit_one, worker
from tests.engines.sqlite.conftest import Opened
from tests.engines.sqlite.starting import SOON, hear, started


@pytest.fixture
async def engine(opened: Opened) -> SQLiteEngine:
    return await opened()


def listeners(engine: SQLiteEngine) -> list[str]:
    """Who has a file in the store's run folder."""
    return sorted(path.name for path in Path(f"{engine.path}-run").iterdir() if path.name != "lock")


async def test_another_process_hears_a_hundred_submits_and_never_asks(engine: SQLiteEngine) -> None:
    """Each is heard before the next is made, so none of them can be missed; the loop that waits has no timer."""
    async with started("listen", engine.path, 100) as program:
        assert await hear(program) == ["listens"]
        for _ in range(100):
            await submit_one(engine)
            assert await hear(program) == ["heard"]
        assert await hear(program) == ["polls", "0"]
        await program.wait()
    assert program.returncode == 0
    assert listeners(engine) == []


@pytest.mark.parametrize("heard", [False, True], ids=["never-told", "told-before"])
async def test_the_file_of_a_listener_that_died_is_removed(engine: SQLiteEngine, heard: bool) -> None:
    async with started("listen", engine.path, 2) as program:
        assert await hear(program) == ["listens"]
        if heard:
            await submit_one(engine)
            assert await hear(program) == ["heard"]
        program.kill()
        await program.wait()
        assert len(listeners(engine)) == 1
        await submit_one(engine)
        assert listeners(engine) == []
        await submit_one(engine)


async def test_many_that_died_hold_nobody_up(engine: SQLiteEngine) -> None:
    folder = Path(f"{engine.path}-run")
    for number in range(20):
        os.mkfifo(folder / f"work.0.{number}")
    async with contextlib.aclosing(await engine.wakeups()) as hints:
        mine = listeners(engine)
        await submit_one(engine)
        async with asyncio.timeout(SOON):
            await anext(hints)
        assert len(mine) == 21
        assert len(listeners(engine)) == 1


@pytest.mark.parametrize("kind", ["wakeups", "events"])
async def test_whoever_leaves_without_reading_leaves_no_file(engine: SQLiteEngine, kind: str) -> None:
    stream = await (engine.wakeups() if kind == "wakeups" else engine.events())
    assert len(listeners(engine)) == 1
    await stream.aclose()
    await stream.aclose()
    assert listeners(engine) == []


async def test_whoever_is_cancelled_while_it_listens_leaves_no_file(engine: SQLiteEngine) -> None:
    listening = asyncio.Event()

    async def listen() -> None:
        async with contextlib.aclosing(await engine.wakeups()) as hints:
            listening.set()
            await anext(hints)

    task = asyncio.create_task(listen())
    await listening.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert listeners(engine) == []


async def test_a_waiter_leaves_no_file(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    waiting = asyncio.create_task(engine.wait([id], 60_000_000))
    await one.done(await one.claim_one())
    async with asyncio.timeout(SOON):
        assert await waiting == {id: "completed"}
    await engine.close()
    assert listeners(engine) == []


async def test_hints_that_nobody_reads_hold_nobody_up(tmp_path: Path) -> None:
    """A pipe takes 64 KiB; what does not fit is not needed, as the listener has not read the last one yet."""
    waker = Waker(tmp_path)
    listener = waker.listen("work")
    for _ in range(70_000):
        waker.wake({"work"})
    async with asyncio.timeout(SOON):
        await listener.wait()
    listener.close()
    waker.close()


async def test_only_those_who_listen_to_it_are_woken(tmp_path: Path) -> None:
    waker = Waker(tmp_path)
    work, events = waker.listen("work"), waker.listen("events")
    waker.wake({"work"})
    async with asyncio.timeout(SOON):
        await work.wait()
    assert not events.heard.is_set()
    waker.wake({"events"})
    async with asyncio.timeout(SOON):
        await events.wait()
    assert not work.heard.is_set()
    for each in (work, events):
        each.close()
    waker.close()


async def test_a_listener_that_comes_in_the_same_tick_is_woken(tmp_path: Path) -> None:
    """The folder's time is looked at, not its content; on a file system with a coarse clock two changes may have the same time."""
    waker = Waker(tmp_path)
    tick = time.time_ns() + 10 * 1_000_000_000
    first = waker.listen("work")
    os.utime(tmp_path, ns=(tick, tick))
    waker.wake({"work"})
    second = waker.listen("work")
    os.utime(tmp_path, ns=(tick, tick))
    waker.wake({"work"})
    async with asyncio.timeout(SOON):
        await second.wait()
    for each in (first, second):
        each.close()
    waker.close()


async def test_listeners_that_come_and_go_are_each_woken(tmp_path: Path) -> None:
    waker = Waker(tmp_path)
    for _ in range(300):
        listener = waker.listen("work")
        waker.wake({"work"})
        async with asyncio.timeout(SOON):
            await listener.wait()
        listener.close()
    waker.close()


async def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    waker = Waker(tmp_path / "absent")
    waker.wake({"work"})
    waker.close()
