"""What is told every few seconds, while somebody wants to hear it: how deep the queues are, and how the whole is."""

from __future__ import annotations

import resource
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from taskmill.clock import Clock
from taskmill.engine import Count, Engine
from taskmill.server.news import News, of_depth, of_metrics
from taskmill.task import State

__all__ = ["measured"]

MOST_QUEUES = 1_000
"""Queues that are told of, the deepest first."""


async def measured(engine: Engine, clock: Clock, wanted: Collection[str], *, listeners: int) -> AsyncIterator[News]:
    """The events of these types, as it is now."""
    counts, now = await engine.counts(), clock.now()
    if "queue.depth" in wanted:
        for news in _depths(counts, now):
            yield news
    if "system.metrics" in wanted:
        states = Counter[str]({state.value: 0 for state in State})
        for count in counts:
            states[count.state.value] += count.tasks
        alive = sum(worker.alive for worker in await engine.workers())
        yield of_metrics({"tasks": dict(states), "workers": alive, "listeners": listeners, "rss_bytes": _rss()}, now)


def _depths(counts: Collection[Count], now: int) -> list[News]:
    queues: dict[str, Counter[str]] = defaultdict(Counter)
    oldest: dict[str, int] = {}
    for count in counts:
        queues[count.queue][count.state.value] += count.tasks
        if count.state is State.PENDING and count.oldest is not None:
            oldest[count.queue] = min(count.oldest, oldest.get(count.queue, count.oldest))
    deepest = sorted(queues, key=lambda queue: (-queues[queue]["pending"], queue))[:MOST_QUEUES]
    return [of_depth(queue, queues[queue], oldest.get(queue), now) for queue in deepest]


def _rss() -> int:
    """Memory of this process; where the system does not say what it is now, the most it was."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
