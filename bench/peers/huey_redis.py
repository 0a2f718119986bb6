"""Huey on Redis, in its own worker processes, which block until there is something. Results are not kept, which is its faster setting.

What it takes from the list is gone from the store before it runs. It has no way of its own to submit many at once.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers import counter
from bench.peers.side import AS_SERVER, Side, program, url

huey: Any = importlib.import_module("huey")
queue: Any = huey.RedisHuey("bench", url=url(), results=False)


def _noop() -> None:
    counter.hit()


def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = queue.task(name="noop")(_noop)
late: Any = queue.task(name="late")(_late)


class Huey(Side):
    packages = ("huey", "redis")

    def durability(self) -> str:
        return f"{AS_SERVER}; a task that has begun is not in it"

    def single(self, n: int) -> None:
        for _ in range(n):
            noop()

    def late(self, sent: int) -> None:
        late(sent)

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("huey_consumer"), "bench.peers.huey_redis.queue", "-w", str(processes), "-k", "process", "-q", "-n"]]


SIDE = Huey()
