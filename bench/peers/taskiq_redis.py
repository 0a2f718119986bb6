"""taskiq on Redis, over its stream, which acknowledges: tasks are read and prefetched by the hundred. It has no way of its own to submit many at once."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from bench.peers import counter
from bench.peers.side import AS_SERVER, Loop, Side, program, url

FETCH = 100
CALLERS = 64

brokers: Any = importlib.import_module("taskiq_redis")
broker: Any = brokers.RedisStreamBroker(url(), xread_count=FETCH)


async def _noop() -> None:
    counter.hit()


async def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = broker.task(task_name="noop")(_noop)
late: Any = broker.task(task_name="late")(_late)


class Taskiq(Side):
    packages = ("taskiq", "taskiq-redis", "redis")

    def __init__(self) -> None:
        self._loop = Loop()

    def prepare(self) -> None:
        self._loop.run(broker.startup())

    def durability(self) -> str:
        return f"{AS_SERVER}; {FETCH} at once a process"

    def single(self, n: int) -> None:
        self._loop.run(self._one_by_one(n))

    def concurrent(self, n: int) -> None:
        self._loop.run(self._callers(n))

    def fill(self, n: int) -> None:
        self.concurrent(n)

    def late(self, sent: int) -> None:
        self._loop.run(late.kiq(sent))

    def workers(self, processes: int) -> list[list[str]]:
        settings = ["--workers", str(processes), "--max-async-tasks", str(FETCH), "--max-prefetch", str(FETCH), "--log-level", "ERROR"]
        return [[program("taskiq"), "worker", "bench.peers.taskiq_redis:broker", *settings]]

    def close(self) -> None:
        self._loop.run(broker.shutdown())
        self._loop.close()

    async def _one_by_one(self, n: int) -> None:
        for _ in range(n):
            await noop.kiq()

    async def _callers(self, n: int) -> None:
        """All of them, also where their number cannot be divided."""
        await asyncio.gather(*(self._one_by_one(n // CALLERS + (caller < n % CALLERS)) for caller in range(CALLERS)))


SIDE = Taskiq()
