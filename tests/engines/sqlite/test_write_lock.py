"""The order of writers: whoever is next is not overtaken, and nobody who left, died or was paused holds the others up for long."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from taskmill.engines.sqlite import connection
from taskmill.engines.sqlite.connection import WriteLock
from tests.engines.sqlite.starting import SOON, hear, started

LOCKS = Path("/proc/locks")
FOR_EVER = 600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def is_free(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def waiting(folder: Path) -> int:
    """How many stand in the kernel's queue for the turn."""
    file = f":{folder.stat().st_ino} "
    return sum("->" in line and file in line for line in LOCKS.read_text(encoding="ascii").splitlines())


def are_waiting(folder: Path, number: int) -> bool:
    return waiting(folder) == number


def until(condition: Callable[[], bool]) -> None:
    """It comes about by what other threads do, and nothing tells when."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


class Writer(threading.Thread):
    """Somebody who writes once, and notes when."""

    def __init__(self, folder: Path, name: str, order: list[str]) -> None:
        super().__init__(daemon=True)
        self.folder, self.who, self.order = folder, name, order
        self.start()

    def run(self) -> None:
        lock = WriteLock(self.folder)
        lock.acquire()
        self.order.append(self.who)
        lock.release()
        lock.close()


def test_whoever_is_next_is_not_overtaken_by_the_one_that_just_wrote(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    lock = WriteLock(folder)
    for _ in range(50):
        order: list[str] = []
        lock.acquire()
        other = Writer(folder, "next", order)
        until(lambda: not is_free(folder))
        lock.release()
        lock.acquire()
        order.append("again")
        lock.release()
        other.join(SOON)
        assert order == ["next", "again"]
    lock.close()


@pytest.mark.skipif(not LOCKS.exists(), reason="only Linux tells who waits for a lock")
def test_everybody_in_line_gets_in_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    lock, order = WriteLock(folder), list[str]()
    lock.acquire()
    writers = [Writer(folder, "0", order)]
    until(lambda: not is_free(folder))
    for number in range(1, 6):
        writers.append(Writer(folder, str(number), order))
        until(partial(are_waiting, folder, number))
    assert order == []
    lock.release()
    for writer in writers:
        writer.join(SOON)
    lock.close()
    assert order[0] == "0"
    assert sorted(order) == ["0", "1", "2", "3", "4", "5"]
    assert is_free(folder)
    assert is_free(folder / "lock")


def test_two_of_one_process_keep_each_other_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer thread and a user's transaction."""
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    lock, order = WriteLock(folder), list[str]()
    lock.acquire()
    other = Writer(folder, "other", order)
    until(lambda: not is_free(folder))
    assert order == []
    lock.release()
    other.join(SOON)
    assert order == ["other"]
    lock.close()


def test_one_that_is_paused_in_line_is_left_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is given up after a while, never the store: what keeps writers apart is SQLite's own lock."""
    monkeypatch.setattr(connection, "PATIENCE", 0.05)
    paused = os.open(folder, os.O_RDONLY)
    fcntl.flock(paused, fcntl.LOCK_EX)
    lock = WriteLock(folder)
    for _ in range(3):
        lock.acquire()
        assert not is_free(folder / "lock")
        lock.release()
    os.close(paused)
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    until(lambda: is_free(folder))  # the places that were given up are passed on when they come
    lock.acquire()
    lock.release()
    lock.close()
    until(lambda: all(thread.name != "taskmill-turn" for thread in threading.enumerate()))
    assert is_free(folder)


@pytest.mark.parametrize("where", ["lock", "."])
def test_one_that_is_paused_is_waited_for_once(folder: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Otherwise every write of every other process would wait for it anew, for as long as it is paused."""
    monkeypatch.setattr(connection, "PATIENCE", 0.05)
    lock = WriteLock(folder)
    paused = os.open(folder / where, os.O_RDONLY)
    fcntl.flock(paused, fcntl.LOCK_EX)
    lock.acquire()
    lock.release()
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    lock.acquire()
    lock.release()
    os.close(paused)
    until(lambda: is_free(folder))
    lock.acquire()
    assert not is_free(folder / "lock")
    lock.close()
    until(lambda: all(thread.name != "taskmill-turn" for thread in threading.enumerate()))


@pytest.mark.parametrize("what", ["hold", "turn"])
async def test_a_process_that_dies_lets_go(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    lock = WriteLock(folder)
    async with started(what, folder) as program:
        assert await hear(program) == ["holds"]
        entering = asyncio.create_task(asyncio.to_thread(lock.acquire))
        assert not is_free(folder / "lock" if what == "hold" else folder)
        assert not entering.done()
        program.kill()
        async with asyncio.timeout(SOON):
            await entering
    lock.release()
    lock.close()


@pytest.mark.skipif(not LOCKS.exists(), reason="only Linux tells who waits for a lock")
async def test_a_process_that_dies_in_line_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE", FOR_EVER)
    turn = os.open(folder, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    lock, order = WriteLock(folder), list[str]()
    async with started("queue", folder) as program:
        assert await hear(program) == ["queues"]
        await asyncio.to_thread(until, partial(are_waiting, folder, 1))
        behind = Writer(folder, "behind", order)
        await asyncio.to_thread(until, partial(are_waiting, folder, 2))
        program.kill()
        await program.wait()
        os.close(turn)
        await asyncio.to_thread(behind.join, SOON)
    assert order == ["behind"]
    lock.close()


async def test_a_process_waits_for_one_of_another(folder: Path) -> None:
    lock = WriteLock(folder)
    lock.acquire()
    async with started("hold", folder) as program:
        lock.release()
        assert await hear(program) == ["holds"]
        assert not is_free(folder / "lock")
        assert program.stdin is not None
        program.stdin.close()
        await program.wait()
    assert is_free(folder / "lock")
    lock.close()
