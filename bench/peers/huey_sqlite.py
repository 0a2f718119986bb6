"""Huey on SQLite, in its own worker processes, polling as often as pays.

Variants: "default" leaves `synchronous` to SQLite (FULL), "fsync=False" turns it off: an acknowledged task can then be lost with the power.
Results are not kept, which is Huey's faster setting. It has no way of its own to submit many at once.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers import counter
from bench.peers.side import Side, program, store, variant

POLL = "0.02"
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

huey: Any = importlib.import_module("huey")
queue: Any = huey.SqliteHuey("bench", filename=str(store()), results=False, journal_mode="wal", fsync=False if variant() == "fsync=False" else None)


def _noop() -> None:
    counter.hit()


def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = queue.task(name="noop")(_noop)
late: Any = queue.task(name="late")(_late)


class Huey(Side):
    packages = ("huey",)

    def durability(self) -> str:
        [(mode,)] = queue.storage.sql("pragma journal_mode", results=True)
        [(level,)] = queue.storage.sql("pragma synchronous", results=True)
        return f"{mode}, synchronous={SYNCHRONOUS[level]}"

    def single(self, n: int) -> None:
        for _ in range(n):
            noop()

    def left(self) -> int:
        return int(queue.pending_count())

    def late(self, sent: int) -> None:
        late(sent)

    def workers(self, processes: int) -> list[list[str]]:
        consumer = program("huey_consumer")
        return [[consumer, "bench.peers.huey_sqlite.queue", "-w", str(processes), "-k", "process", "-q", "-n", "-d", POLL, "-m", POLL]]


SIDE = Huey()
