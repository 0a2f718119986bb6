"""Honker (a core in Rust) on SQLite. It always runs at synchronous=NORMAL: the last commits can be lost with the power.

Results are not kept, which is its faster setting. Many tasks at once are submits that share one transaction, as its documentation has it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from bench.peers import counter
from bench.peers.side import Side, store

BATCH = 1_000
CONCURRENCY = "4"
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

honker: Any = importlib.import_module("honker")
db: Any = honker.open(str(store()))
queue: Any = db.queue("bench")


def _noop() -> None:
    counter.hit()


def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = queue.task(name="noop", store_result=False)(_noop)
late: Any = queue.task(name="late", store_result=False)(_late)


class Honker(Side):
    packages = ("honker",)

    def durability(self) -> str:
        with db.transaction() as transaction:
            [mode], [level] = transaction.query("PRAGMA journal_mode"), transaction.query("PRAGMA synchronous")
        return f"{mode['journal_mode']}, synchronous={SYNCHRONOUS[level['synchronous']]}"

    def single(self, n: int) -> None:
        for _ in range(n):
            noop()

    def bulk(self, n: int) -> None:
        call = {"__honker_task__": {"task": "noop", "args": [], "kwargs": {}}}
        for start in range(0, n, BATCH):
            with db.transaction() as transaction:
                for _ in range(min(BATCH, n - start)):
                    queue.enqueue(call, tx=transaction)

    def left(self) -> int:
        [row] = db.query("SELECT count(*) AS tasks FROM _honker_live")
        return int(row["tasks"])

    def late(self, sent: int) -> None:
        late(sent)

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "honker", "worker", "bench.peers.honker_sqlite:db", "--concurrency", CONCURRENCY]] * processes

    def close(self) -> None:
        db.close()


SIDE = Honker()
