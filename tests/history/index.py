"""A history put in order once, so that every rule reads what it needs without searching.

The heart is the lease: between which moments it was surely given, and how long it was surely held. A lease is given in the interval of its claim
(of the first try, if the answer was lost and asked for again). It ends by a finish, a recovery, a beat that leaves it out, a leave, or by itself when
a lease's length has passed since the last sign of life that the store confirmed. Of all these the earliest *possible* one counts, so whatever
two leases are both held by this reckoning were held at once in every interpretation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import TypeVar

from tests.history.events import (
    FOREVER,
    TERMINAL,
    Beat,
    Call,
    Claim,
    Died,
    Event,
    Finish,
    Fire,
    Given,
    Join,
    Lead,
    Leave,
    Led,
    Limit,
    Operate,
    Read,
    Recover,
    Submit,
)

__all__ = ["Bounds", "Ending", "Index", "Lease", "Violation", "end", "possible"]

C = TypeVar("C", bound=Call)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the checker has to be told about the run."""

    lease: int | None = None
    """How long a lease holds without a beat. None: leases end only by what the history records (a clock that the test moves).
    0: anything may end a lease at any time unseen (workers whose supervisors and recoveries are not recorded)."""
    rerun: int | None = None
    """How soon a dead worker's task must run elsewhere; None: not judged."""
    max_crashes: int = 3
    unordered: frozenset[str] = frozenset()
    """Queues whose order is not priority and age alone: weights, a pause."""
    token_per_task: bool = False
    """Tokens grow for each task only, not over the whole store."""


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Ending:
    """A lease was surely finished between these moments, with one of these outcomes."""

    began: int
    ended: int
    outcomes: frozenset[str]

    @property
    def terminal(self) -> bool:
        return self.outcomes <= TERMINAL


@dataclass(slots=True)
class Lease:
    given: Given
    worker: str
    request: int
    began: int
    granted: int
    finishes: list[Finish] = field(default_factory=list)
    """Endings that were applied or may have been, in order."""
    checkpoints: list[Finish] = field(default_factory=list)
    refused: list[Call] = field(default_factory=list)
    """Answers that say it is no longer current."""
    confirmed: int = 0
    """When the last call began in which the store said that it is current."""
    kept: int = 0
    """The same, by a beat."""
    extended: int = 0
    """When the last beat began that reached the store while it was surely current."""
    recovered: list[Recover] = field(default_factory=list)
    given_up: int = FOREVER
    """When its own worker may first have let it go without a finish."""

    @property
    def task(self) -> str:
        return self.given.task

    @property
    def token(self) -> int:
        return self.given.token

    def ending(self) -> Ending | None:
        applied = [end(finish) for finish in self.finishes if finish.answer == "applied"]
        if not applied:
            return None
        tried = [finish for finish in self.finishes if finish.began <= min(applied)]
        return Ending(tried[0].began, min(applied), frozenset(finish.outcome for finish in tried))


def end(call: Call) -> int:
    """When the step was over at the latest: an answer that was lost may still be applied."""
    if call.ended is None or getattr(call, "answer", None) == "lost":
        return FOREVER
    return call.ended


def possible(call: Call) -> bool:
    """Was it applied, or may it have been?"""
    return getattr(call, "answer", None) in ("applied", "lost")


class Index:
    def __init__(self, history: Iterable[Event], bounds: Bounds) -> None:
        self.bounds = bounds
        self.events = sorted(history, key=attrgetter("began"))
        self._by_kind: dict[type[Call], list[Call]] = defaultdict(list)
        for event in self.events:
            self._by_kind[type(event)].append(event)
        self.submits = self.of(Submit)
        self.claims = self.of(Claim)
        self.operates = _grouped(self.of(Operate), "task")
        self.reads = _grouped(self.of(Read), "task")
        self.deaths = {died.worker: died for died in reversed(self.of(Died))}
        self.last = max((max(event.began, event.ended or 0) for event in self.events), default=0)
        self._index_submits()
        self._index_leases()

    def of(self, kind: type[C]) -> list[C]:
        """All calls of one kind, in the order they began."""
        return [event for event in self._by_kind[kind] if isinstance(event, kind)]

    @property
    def led(self) -> Sequence[Led | Fire]:
        return [*self.of(Led), *self.of(Fire)]

    @property
    def leads(self) -> list[Lead]:
        return self.of(Lead)

    @property
    def limits(self) -> dict[str, list[Limit]]:
        return _grouped([limit for limit in self.of(Limit) if limit.answer != "error"], "name")

    @property
    def joins(self) -> dict[str, list[Join]]:
        return _grouped([join for join in self.of(Join) if join.answer != "error"], "worker")

    def _index_submits(self) -> None:
        self.submits_by_task: dict[str, list[Submit]] = defaultdict(list)
        """By the task that a submit made, met or changed."""
        for submit in self.submits:
            if submit.answer != "error":
                for task in {submit.task, submit.id or submit.task}:
                    self.submits_by_task[task].append(submit)

    def _index_leases(self) -> None:
        self.requests: dict[tuple[str, int], list[Claim]] = defaultdict(list)
        for claim in self.claims:
            if claim.answer != "error":
                self.requests[claim.worker, claim.request].append(claim)
        self.leases: dict[tuple[str, int, str], Lease] = {}
        for tries in self.requests.values():
            for claim in tries:
                for given in claim.given:
                    lease = self.leases.setdefault(
                        (given.task, given.token, claim.worker), Lease(given, claim.worker, claim.request, tries[0].began, end(claim))
                    )
                    lease.granted = min(lease.granted, end(claim))
        self.by_token: dict[int, Lease] = {lease.token: lease for lease in self.leases.values()}
        self.by_task: dict[str, list[Lease]] = defaultdict(list)
        for lease in sorted(self.leases.values(), key=lambda lease: lease.token):
            self.by_task[lease.task].append(lease)
        self._index_finishes()
        self._index_beats()
        self._index_recoveries()

    def _index_finishes(self) -> None:
        for finish in self.of(Finish):
            lease = self.leases.get((finish.task, finish.token, finish.worker)) or self.by_token.get(finish.token)
            if lease is None or lease.task != finish.task:
                continue
            if finish.answer == "stale":
                lease.refused.append(finish)
            elif finish.outcome == "checkpoint":
                lease.checkpoints.append(finish)
                if finish.answer == "applied":
                    lease.confirmed = max(lease.confirmed, finish.began)
            elif possible(finish):
                lease.finishes.append(finish)

    def _index_beats(self) -> None:
        """Walk each worker's leases and beats together: a beat touches only the leases still open, so the whole costs what the beats name."""
        steps: dict[str, list[tuple[int, int, Lease | Beat | Leave]]] = defaultdict(list)
        for lease in self.leases.values():
            steps[lease.worker].append((lease.began, 0, lease))
        for beat in filter(possible, self.of(Beat)):
            steps[beat.worker].append((beat.began, 1, beat))
        for leave in filter(possible, self.of(Leave)):
            steps[leave.worker].append((leave.began, 1, leave))
        for each in steps.values():
            opened: dict[int, Lease] = {}
            for _, _, step in sorted(each, key=lambda entry: entry[:2]):
                if isinstance(step, Lease):
                    opened[step.token] = step
                elif isinstance(step, Leave):
                    _let_go(opened, list(opened), step.began)
                else:
                    self._beat(step, opened)

    def _beat(self, beat: Beat, opened: dict[int, Lease]) -> None:
        named = set(beat.leases)
        _let_go(opened, [token for token, lease in opened.items() if lease.request <= beat.request and token not in named], beat.began)
        if beat.answer != "applied":
            return
        for token in beat.kept:
            if token in self.by_token:
                self.by_token[token].kept = max(self.by_token[token].kept, beat.began)
                self.by_token[token].confirmed = max(self.by_token[token].confirmed, beat.began)
        for token in named - set(beat.gone):
            if token in self.by_token and end(beat) <= self._expiry(self.by_token[token]):
                self.by_token[token].extended = max(self.by_token[token].extended, beat.began)
        for token in beat.gone:
            if token in self.by_token:
                self.by_token[token].refused.append(beat)

    def _index_recoveries(self) -> None:
        recoveries = [recover for recover in self.of(Recover) if recover.answer != "error"]
        unknown = [recover for recover in recoveries if recover.moved is None or recover.answer == "lost"]
        self._unknown_begins = [recover.began for recover in unknown]
        self._unknown_ends = list(accumulate((end(recover) for recover in unknown), max))
        for recover in recoveries:
            for token in recover.moved or ():
                if token in self.by_token:
                    self.by_token[token].recovered.append(recover)

    def held_until(self, lease: Lease, *, judged: bool = False) -> int:
        """The earliest moment at which the lease may have ended. `judged`: may have ended *rightly*, so a recovery before its time does not count."""
        ends = [finish.began for finish in lease.finishes]
        ends.append(lease.given_up)
        if not judged or self.bounds.lease is None:
            ends.extend(recover.began for recover in lease.recovered)
        if lease.ending() is None:
            ends.append(self._silent_end(lease))
        return max(lease.began, lease.confirmed, min(ends))

    def _expiry(self, lease: Lease) -> int:
        return max(lease.began, lease.kept, lease.extended) + (self.bounds.lease or 0)

    def _silent_end(self, lease: Lease) -> int:
        if self.bounds.lease is not None:
            return self._expiry(lease)
        position = bisect_left(self._unknown_begins, lease.began)
        if position and self._unknown_ends[position - 1] > lease.began:
            return lease.began
        return self._unknown_begins[position] if position < len(self._unknown_begins) else FOREVER

    def requeued(self, task: str, after: int, before: int) -> bool:
        """May a requeue have been applied in between?"""
        return any(o.verb == "requeue" and possible(o) and o.began < before and end(o) > after for o in self.operates.get(task, ()))

    def operated(self, task: str, *verbs: str) -> bool:
        """May an operator have done one of these to it?"""
        return any(o.verb in verbs and possible(o) for o in self.operates.get(task, ()))


def _let_go(opened: dict[int, Lease], tokens: list[int], moment: int) -> None:
    for token in tokens:
        lease = opened.pop(token)
        lease.given_up = min(lease.given_up, moment)


def _grouped(calls: Iterable[C], name: str) -> dict[str, list[C]]:
    groups: dict[str, list[C]] = defaultdict(list)
    for call in calls:
        groups[getattr(call, name)].append(call)
    return groups
