"""Dramatiq on Redis: threads in its own worker processes, its default middleware. It has no way of its own to submit many at once."""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers import counter
from bench.peers.side import AS_SERVER, Side, program, url

THREADS = "8"

dramatiq: Any = importlib.import_module("dramatiq")
brokers: Any = importlib.import_module("dramatiq.brokers.redis")
dramatiq.set_broker(brokers.RedisBroker(url=url()))


def _noop() -> None:
    counter.hit()


def _late(sent: int) -> None:
    counter.hit_late(sent)


noop: Any = dramatiq.actor(_noop, actor_name="noop")
late: Any = dramatiq.actor(_late, actor_name="late")


class Dramatiq(Side):
    packages = ("dramatiq", "redis")

    def durability(self) -> str:
        return f"{AS_SERVER}; {THREADS} threads a process"

    def single(self, n: int) -> None:
        for _ in range(n):
            noop.send()

    def late(self, sent: int) -> None:
        late.send(sent)

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("dramatiq"), "bench.peers.dramatiq_redis", "--processes", str(processes), "--threads", THREADS]]


SIDE = Dramatiq()
