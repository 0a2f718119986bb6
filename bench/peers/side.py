"""One system in the comparison: how it is given tasks, and how its workers are started.

A side lives in the environment of its system and talks to the driver (`drive.py`) only. Its module makes the queue at import, from the
environment variables below, because that is how the workers of all these systems find their tasks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["STORE", "VARIANT", "Side", "program", "store", "variant"]

STORE = "BENCH_STORE"
VARIANT = "BENCH_VARIANT"

Submit = Callable[[int], None]


class Side:
    """What the driver asks of a system. `n` is how many tasks; every submit has returned before the verb does."""

    packages: tuple[str, ...] = ()
    """Whose versions are shown."""

    def durability(self) -> str:
        """How far a write has come when it is answered, as the store itself says."""
        raise NotImplementedError

    def single(self, n: int) -> None:
        """One after the other."""
        raise NotImplementedError

    bulk: Submit | None = None
    """The fastest way for many, where there is one of its own."""

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


def store() -> Path:
    return Path(os.environ[STORE])


def variant() -> str:
    return os.environ.get(VARIANT, "")


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)
