"""Promise 12, where a history can show it: one claimer, plain tasks, priority then age."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from tests.history.events import Claim, Submit
from tests.history.index import Index, Violation, end

__all__ = ["claim_order"]

_Entry = tuple[int, str]
"""(age: when it became ready on the store's clock, task)"""


def claim_order(index: Index) -> Iterator[Violation]:
    """12: a claim passed over a task of higher priority, or of the same and older, that was surely ready before the claim began.

    Judged only with one claimer whose every answer is known, between tasks that nothing but their time holds back and that were never claimed
    before: whatever limits, shares, edges, expiry or an operator can touch is left out on both sides.
    """
    if len({claim.worker for claim in index.claims}) != 1:
        return
    if any(all(claim.answer == "lost" for claim in tries) for tries in index.requests.values()):
        return
    yield from _Line(index).violations()


class _Line:
    """The tasks surely waiting, by queue and priority, as the claims go by."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._known = _known_types(index)
        self._plain = {s.task: s for s in index.submits if self._is_plain(s)}
        self._coming = sorted(self._plain.values(), key=end)
        self._arrived = 0
        self._delayed: list[tuple[int, _Entry]] = []
        self._ready: dict[tuple[str, int], list[_Entry]] = defaultdict(list)
        self._given: set[str] = set()
        self._store_times = sorted([(end(s), s.created_at or 0) for s in index.submits] + [(end(c), c.given[0].claimed_at) for c in index.claims if c.given])
        self._told = 0
        self._store_now = 0

    def _is_plain(self, submit: Submit) -> bool:
        held = submit.limits or submit.share or submit.waits or submit.unique or submit.expires_at is not None
        known = submit.answer == "created" and submit.created_at is not None and submit.type in self._known
        once = len(self._index.submits_by_task[submit.task]) == 1
        return known and once and not held and submit.queue not in self._index.bounds.unordered and submit.task not in self._index.operates

    def violations(self) -> Iterator[Violation]:
        for tries in sorted(self._index.requests.values(), key=lambda tries: tries[0].began):
            claim = next(claim for claim in tries if claim.answer == "given")
            self._advance(tries[0].began)
            fresh = [self._plain[g.task] for g in claim.given if g.task in self._plain and g.task not in self._given]
            self._given.update(given.task for given in claim.given)
            if not claim.per_type:
                yield from self._passed_over(claim, fresh)

    def _advance(self, moment: int) -> None:
        """Let in what had surely been submitted and was due before this moment."""
        while self._told < len(self._store_times) and self._store_times[self._told][0] < moment:
            self._store_now = max(self._store_now, self._store_times[self._told][1])
            self._told += 1
        while self._arrived < len(self._coming) and end(self._coming[self._arrived]) < moment:
            submit = self._coming[self._arrived]
            self._arrived += 1
            heapq.heappush(self._delayed, (submit.run_at, (_age(submit), submit.task)))
        while self._delayed and self._delayed[0][0] <= self._store_now:
            entry = heapq.heappop(self._delayed)[1]
            submit = self._plain[entry[1]]
            heapq.heappush(self._ready[submit.queue, submit.priority], entry)

    def _passed_over(self, claim: Claim, fresh: list[Submit]) -> Iterator[Violation]:
        for queue in {submit.queue for submit in fresh}:
            lowest = min((s for s in fresh if s.queue == queue), key=lambda s: (s.priority, -_age(s)))
            for priority in range(3, lowest.priority - 1, -1):
                waiting = self._oldest(queue, priority)
                if waiting and (priority > lowest.priority or waiting[0] < _age(lowest)):
                    yield Violation("claim_order", waiting[1], f"request {claim.request} took {lowest.task} before it")
                    break

    def _oldest(self, queue: str, priority: int) -> _Entry | None:
        line = self._ready[queue, priority]
        while line and line[0][1] in self._given:
            heapq.heappop(line)
        return line[0] if line else None


def _age(submit: Submit) -> int:
    return max(submit.run_at, submit.created_at or 0)


def _known_types(index: Index) -> set[str]:
    """Types the claimer surely takes: in all its joins, or, where none is recorded, those it was given."""
    joins = [join for claim in index.claims[:1] for join in index.joins.get(claim.worker, ())]
    if joins:
        return set.intersection(*(set(types) for types in map(attrgetter("types"), joins)))
    types = {lease.given.type for lease in index.leases.values()}
    return types | {s.type for lease in index.leases.values() for s in index.submits_by_task.get(lease.task, ())}
