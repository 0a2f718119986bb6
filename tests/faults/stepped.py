"""A wall clock that a test sets for all processes at once, and `taskmill worker` under it: `python -m tests.faults.stepped worker APP`.

How far it is off stands in a file; where the environment names none, nothing is touched.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path
from unittest.mock import patch

from taskmill.clock import SystemClock

__all__ = ["OFFSET", "SteppedClock", "install", "step"]

OFFSET = "FAULTS_CLOCK"
_NUMBER = struct.Struct("@q")


def step(path: Path, offset: int) -> None:
    """Set the wall clock so many microseconds off the machine's, in one write."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, _NUMBER.pack(offset), 0)
    finally:
        os.close(file)


class SteppedClock:
    """The machine's clocks, the wall clock as far off as the file says."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBER.size, access=mmap.ACCESS_READ)

    def now(self) -> int:
        return time.time_ns() // 1_000 + int(_NUMBER.unpack_from(self._map)[0])

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1_000


def install() -> None:
    """From now on the product's own clock in this process is the stepped one."""
    if path := os.environ.get(OFFSET):
        clock = SteppedClock(Path(path))
        patch.object(SystemClock, "now", lambda _: clock.now()).start()


def main() -> int:
    install()
    from taskmill.cli import main as program

    return program()


if __name__ == "__main__":
    sys.exit(main())
