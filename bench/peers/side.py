"""One system in the comparison: how it is given tasks, and how its workers are started.

A side lives in the environment of its system and talks to the driver (`drive.py`) only. Its module makes the queue at import, from the
environment variables below, because that is how the workers of all these systems find their tasks.
"""

from __future__ import annotations

import os
import sys
from asyncio import AbstractEventLoop, new_event_loop
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

__all__ = ["AS_SERVER", "DURABLE", "STORE", "VARIANT", "Loop", "Side", "program", "store", "url", "variant"]

STORE = "BENCH_STORE"
VARIANT = "BENCH_VARIANT"

Submit = Callable[[int], None]


class Side:
    """What the driver asks of a system. `n` is how many tasks; every submit has returned before the verb does."""

    packages: tuple[str, ...] = ()
    """Whose versions are shown."""

    def prepare(self) -> None:
        """The store gets its schema, where it does not do so by itself; asked before every command but the worker's."""

    def durability(self) -> str:
        """How far a write has come when it is answered, as the store itself says."""
        raise NotImplementedError

    def single(self, n: int) -> None:
        """One after the other."""
        raise NotImplementedError

    bulk: Submit | None = None
    """The fastest way for many, where there is one of its own."""

    copy: Submit | None = None
    """A faster one that checks nothing and answers nothing, where there is one."""

    concurrent: Submit | None = None
    """Single submits from many callers at once, where there is an asynchronous face."""

    def fill(self, n: int) -> None:
        (self.bulk or self.single)(n)

    def hold(self) -> None:
        """Where a queue can be paused: nothing runs until all processes of the worker are there. Others begin with the first."""

    def release(self, processes: int) -> None:
        """So many processes are there; now it runs."""

    def left(self) -> int:
        """How many tasks have not ended."""
        raise NotImplementedError

    def ended(self) -> int | None:
        """When the last one was committed as ended (monotonic ns), where that is later than its no-op and the store knows it."""
        return None

    def late(self, sent: int) -> None:
        """One task that records how long after `sent` it started."""
        raise NotImplementedError

    def workers(self, processes: int) -> list[list[str]]:
        """The commands to start, which together run tasks in so many processes."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the store."""


class Loop:
    """Runs the coroutines of an asynchronous system, all on one loop."""

    def __init__(self) -> None:
        self._loop: AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._loop = self._loop or new_event_loop()
        return self._loop.run_until_complete(coroutine)

    @property
    def used(self) -> bool:
        return self._loop is not None

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


DURABLE = "SELECT 'synchronous_commit=' || current_setting('synchronous_commit') || ', fsync=' || current_setting('fsync')"
"""How far a write to PostgreSQL has come, in the words of its server."""


AS_SERVER = "as the server"
"""How far a write to Redis has come: for all systems what the caption says of the server."""


def url() -> str:
    return os.environ[STORE]


def store() -> Path:
    """The file, where the store is one."""
    return Path(url().removeprefix("sqlite:///"))


def variant() -> str:
    return os.environ.get(VARIANT, "")


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)
