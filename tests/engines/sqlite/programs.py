"""Programs that tests start beside themselves: `python -m tests.engines.sqlite.programs WHAT PATH …`. They speak a word a line, and end with their input."""

from __future__ import annotations

import asyncio
import fcntl
import os
import selectors
import sys
from pathlib import Path
from typing import Any

from taskmill.engines.sqlite.connection import WriteLock
from taskmill.engines.sqlite.engine import SQLiteEngine


def say(*words: object) -> None:
    print(*words, flush=True)


class Watched(selectors.DefaultSelector):
    """Where the loop sleeps; counts how often it did so until a time of its own instead of until something happens."""

    polls = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.polls += timeout is not None and timeout > 0
        return super().select(timeout)


async def listen(store: Path, number: int, selector: Watched) -> None:
    """Hear so many hints; then tell how often the loop woke up by itself meanwhile."""
    engine = SQLiteEngine(store)
    await engine.open()
    hints = await engine.wakeups()
    selector.polls = 0
    say("listens")
    for _ in range(number):
        await anext(hints)
        say("heard")
    say("polls", selector.polls)
    await hints.aclose()
    await engine.close()


def hold(folder: Path) -> None:
    """Have the write lock until the input ends."""
    lock = WriteLock(folder)
    lock.acquire()
    say("holds")
    sys.stdin.read()
    lock.release()


def turn(folder: Path) -> None:
    """Have the turn, as one who is next for the write lock."""
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    say("holds")
    sys.stdin.read()


def queue(folder: Path) -> None:
    """Stand in line for the write lock."""
    lock = WriteLock(folder)
    say("queues")
    lock.acquire()
    say("holds")
    sys.stdin.read()


def main(what: str, path: str, *rest: Any) -> None:
    if what == "listen":
        selector = Watched()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(listen(Path(path), int(rest[0]), selector))
    else:
        {"hold": hold, "turn": turn, "queue": queue}[what](Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
