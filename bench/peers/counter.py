"""What a no-op does: it counts itself in memory that all processes of a run share, about a microsecond each time.

Every system is measured by the same few lines, whatever its own statistics say. A process takes one slot; a child that was forked takes
another. Times are of the monotonic clock, which is one clock for all processes of a machine. Only the standard library is used here,
because this file is imported in the environments of the peers too.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["COUNTER", "Reading", "attach", "hit", "hit_late", "latencies", "make", "read"]

COUNTER = "BENCH_COUNTER"
"""The environment variable that names the file."""

SLOTS = 64
SLOT = struct.Struct("<qqqq")  # process, hits, first and last time in ns
LATENCIES = 8192
LATENCY = struct.Struct("<q")
SIZE = SLOTS * SLOT.size + LATENCIES * LATENCY.size


class Reading(NamedTuple):
    """What all processes have counted: how often, and when first and last."""

    hits: int
    first: int
    last: int

    @property
    def seconds(self) -> float:
        return (self.last - self.first) / 1e9


def make(path: Path) -> None:
    """A counter at nought."""
    path.write_bytes(bytes(SIZE))


def read(memory: mmap.mmap) -> Reading:
    taken = [slot for slot in SLOT.iter_unpack(memory[: SLOTS * SLOT.size]) if slot[1]]
    if not taken:
        return Reading(0, 0, 0)
    return Reading(sum(slot[1] for slot in taken), min(slot[2] for slot in taken), max(slot[3] for slot in taken))


def latencies(memory: mmap.mmap, n: int) -> list[float]:
    """The first n in milliseconds, in the order in which they came."""
    start = SLOTS * SLOT.size
    return [ns / 1e6 for (ns,) in LATENCY.iter_unpack(memory[start : start + n * LATENCY.size])]


def attach(path: Path) -> mmap.mmap:
    """The same memory, in this process."""
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), SIZE)


class _Slot:
    """Where this process counts."""

    def __init__(self) -> None:
        path = Path(os.environ[COUNTER])
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.count = 0
        self.first = 0
        self.memory = attach(path)
        with path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            self.offset = next(at for at in range(0, SLOTS * SLOT.size, SLOT.size) if SLOT.unpack_from(self.memory, at)[0] == 0)
            SLOT.pack_into(self.memory, self.offset, self.process, 0, 0, 0)

    def add(self) -> None:
        with self.lock:
            now = time.monotonic_ns()
            self.count += 1
            self.first = self.first or now
            SLOT.pack_into(self.memory, self.offset, self.process, self.count, self.first, now)


class _Process:
    """The slot of this process, taken at its first no-op."""

    def __init__(self) -> None:
        self.slot: _Slot | None = None
        self._taking = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def take(self) -> _Slot:
        with self._taking:
            self.slot = self.slot or _Slot()
            return self.slot

    def _forget(self) -> None:
        self.slot = None
        self._taking = threading.Lock()


_process = _Process()


def hit() -> None:
    """The body of the no-op."""
    (_process.slot or _process.take()).add()


def hit_late(sent: int) -> None:
    """The body of the task whose wait is measured: one at a time, so its number is that of the count."""
    waited = time.monotonic_ns() - sent
    slot = _process.slot or _process.take()
    at = read(slot.memory).hits % LATENCIES
    LATENCY.pack_into(slot.memory, SLOTS * SLOT.size + at * LATENCY.size, waited)
    slot.add()
