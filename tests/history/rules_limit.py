"""Promise 14: no limit is exceeded by one at any moment."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from tests.history.events import Limit
from tests.history.index import Index, Lease, Violation, end

__all__ = ["concurrency_exceeded", "rate_exceeded"]


class _Definitions:
    """What a limit's numbers may have been at a time: a `put` counts from when it began, the one before it until it had surely been replaced."""

    def __init__(self, puts: list[Limit]) -> None:
        self._puts = puts
        self._begins = [put.began for put in puts]
        self._replaced = [min((end(later) for later in puts[number + 1 :]), default=1 << 62) for number in range(len(puts))]

    def during(self, began: int, ended: int) -> list[Limit | None]:
        """All that may have been in force; None: there was no such limit yet."""
        count = bisect_left(self._begins, ended)
        found: list[Limit | None] = [put for put, replaced in zip(self._puts[:count], self._replaced, strict=False) if replaced > began]
        return found if any(end(put) < began for put in self._puts[:count]) else [*found, None]


def _by_limit(index: Index) -> dict[str, list[Lease]]:
    groups: dict[str, list[Lease]] = defaultdict(list)
    for lease in index.leases.values():
        for name in lease.given.limits:
            groups[name].append(lease)
    return groups


def concurrency_exceeded(index: Index) -> Iterator[Violation]:
    """More leases were surely held at one moment than any cap that may have been in force since the oldest of them was given."""
    definitions = {name: _Definitions(puts) for name, puts in index.limits.items()}
    for name, leases in _by_limit(index).items():
        if name in definitions:
            yield from _too_many(index, name, definitions[name], leases)


def _too_many(index: Index, name: str, definitions: _Definitions, leases: list[Lease]) -> Iterator[Violation]:
    ends: list[int] = []
    oldest: list[tuple[int, int]] = []
    for lease in sorted(leases, key=lambda lease: lease.granted):
        until = index.held_until(lease)
        while ends and ends[0] <= lease.granted:
            heapq.heappop(ends)
        while oldest and oldest[0][1] <= lease.granted:
            heapq.heappop(oldest)
        if until <= lease.granted:
            continue
        heapq.heappush(ends, until)
        heapq.heappush(oldest, (lease.began, until))
        caps = [put.cap if put else None for put in definitions.during(oldest[0][0], lease.granted)]
        known = [cap for cap in caps if cap is not None]
        if len(known) == len(caps) and len(ends) > max(known):
            yield Violation("concurrency_exceeded", name, f"{len(ends)} held at {lease.granted}, token {lease.token}; cap {max(known)}")


def rate_exceeded(index: Index) -> Iterator[Violation]:
    """More starts than the rate in an interval of its window, by the store's own times of claiming; a release gives nothing back."""
    definitions = {name: _Definitions(puts) for name, puts in index.limits.items()}
    for name, leases in _by_limit(index).items():
        if name not in definitions:
            continue
        starts = sorted(leases, key=lambda lease: (lease.given.claimed_at, lease.token))
        times = [lease.given.claimed_at for lease in starts]
        for number, lease in enumerate(starts):
            puts = definitions[name].during(lease.began, lease.granted)
            if not any(_allows(put, times, number) for put in puts):
                yield Violation("rate_exceeded", name, f"start {number + 1} at {times[number]}, token {lease.token}")


def _allows(put: Limit | None, times: list[int], number: int) -> bool:
    if put is None or put.rate is None or number < put.rate:
        return True
    return times[number] - times[number - put.rate] >= put.window
