"""Taskito (a core in Rust) on SQLite. It always runs at synchronous=NORMAL: the last commits can be lost with the power.

Variants: "default", and "tuned", which claims by the hundred, asks to be woken by submits, and polls every 5 ms.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers import counter
from bench.peers.side import Side, program, store, variant

BATCH = 1_000
TUNED: dict[str, Any] = {"scheduler_batch_size": 100, "push_dispatch": True, "scheduler_poll_interval_ms": 5}

taskito: Any = importlib.import_module("taskito")
queue: Any = taskito.Queue(db_path=str(store()), workers=4, result_ttl=60, **(TUNED if variant() == "tuned" else {}))


def _noop() -> None:
    counter.hit()


def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = queue.task(name="noop")(_noop)
late: Any = queue.task(name="late")(_late)


class Taskito(Side):
    packages = ("taskito",)

    def durability(self) -> str:
        return "wal, synchronous=NORMAL"

    def single(self, n: int) -> None:
        for _ in range(n):
            noop.delay()

    def bulk(self, n: int) -> None:
        for start in range(0, n, BATCH):
            noop.map([()] * min(BATCH, n - start))

    def left(self) -> int:
        stats = queue.stats()
        return int(stats["pending"]) + int(stats["running"])

    def late(self, sent: int) -> None:
        late.delay(sent)

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("taskito"), "worker", "--app", "bench.peers.taskito_sqlite:queue"]] * processes


SIDE = Taskito()
