"""The life of a task and promise 11: terminal is absorbing, attempts are numbered without gaps, versions grow, types are known."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.history.events import TERMINAL, Read
from tests.history.index import Index, Lease, Violation, end

__all__ = ["attempts_wrong", "foreign_type", "terminal_left", "version_back"]

_USES_AN_ATTEMPT = frozenset({"completed", "retry", "dead"})


def terminal_left(index: Index) -> Iterator[Violation]:
    """A task that had ended was claimed, or seen in another state, and nobody can have requeued it."""
    for task in index.by_task.keys() | index.reads.keys():
        ends = _ends(index, task)
        if ends:
            yield from _left(index, task, ends)


def _ends(index: Index, task: str) -> list[tuple[int, int, str | None]]:
    """(ended, began, the state if it is sure) of everything that shows the task ended, in order."""
    endings = [ending for lease in index.by_task.get(task, ()) if (ending := lease.ending()) and ending.terminal]
    ends: list[tuple[int, int, str | None]] = [(e.ended, e.began, min(e.outcomes) if len(e.outcomes) == 1 else None) for e in endings]
    ends.extend((end(read), read.began, read.state) for read in index.reads.get(task, ()) if read.state in TERMINAL)
    return sorted(ends, key=lambda each: each[0])


def _left(index: Index, task: str, ends: list[tuple[int, int, str | None]]) -> Iterator[Violation]:
    later: list[tuple[int, int, str]] = [(lease.began, lease.granted, "claimed") for lease in index.by_task.get(task, ())]
    later.extend((read.began, end(read), read.state) for read in index.reads.get(task, ()) if read.state not in ("missing", "expired"))
    position = 0
    last: tuple[int, str | None] | None = None
    for began, ended, what in sorted(later):
        while position < len(ends) and ends[position][0] < began:
            if last is None or ends[position][1] >= last[0]:
                last = ends[position][1], ends[position][2]
            position += 1
        if last is None or (what in TERMINAL and last[1] in (None, what)):
            continue
        if not index.requeued(task, last[0], ended):
            yield Violation("terminal_left", task, f"{last[1] or 'ended'}, then {what}")


def attempts_wrong(index: Index) -> Iterator[Violation]:
    """Attempts are numbered 1, 2, 3 … without gaps, one number for each execution, and agree with `executions`."""
    for task, leases in index.by_task.items():
        for first, second in pairwise(leases):
            least = first.given.attempt + (1 if _used(first) else 0)
            if second.given.attempt < least:
                yield Violation("attempts_wrong", task, f"attempt {second.given.attempt} under token {second.token} after {first.given.attempt}")
    for task, reads in index.reads.items():
        for read in reads:
            yield from _read_attempts(index.by_task.get(task, []), read)


def _used(lease: Lease) -> bool:
    ending = lease.ending()
    return ending is not None and ending.outcomes <= _USES_AN_ATTEMPT


def _read_attempts(leases: list[Lease], read: Read) -> Iterator[Violation]:
    if read.state in ("missing", "expired"):
        return
    least = max((lease.given.attempt for lease in leases if _used(lease) and (e := lease.ending()) and e.ended < read.began), default=0)
    if read.executions < least:
        yield Violation("attempts_wrong", read.task, f"executions {read.executions}, but attempt {least} had ended")
    if read.attempts is None:
        return
    numbers = [attempt.number for attempt in read.attempts]
    open_one = 1 if read.state == "running" else 0
    if numbers != list(range(1, len(numbers) + 1)) or not read.executions - open_one <= len(numbers) <= read.executions:
        yield Violation("attempts_wrong", read.task, f"attempts {numbers} with executions {read.executions}")


def version_back(index: Index) -> Iterator[Violation]:
    """A record's version never falls."""
    for task, reads in index.reads.items():
        ended = sorted((read for read in reads if read.state not in ("missing", "expired")), key=end)
        highest = position = 0
        for read in reads:
            while position < len(ended) and end(ended[position]) < read.began:
                highest = max(highest, ended[position].version)
                position += 1
            if read.state not in ("missing", "expired") and read.version < highest:
                yield Violation("version_back", task, f"version {read.version} after {highest}")


def foreign_type(index: Index) -> Iterator[Violation]:
    """11: a worker was given a task of a type that it had not registered."""
    joins = index.joins
    for lease in index.leases.values():
        known = [join.types for join in joins.get(lease.worker, ()) if join.began < lease.granted]
        submits = index.submits_by_task.get(lease.task)
        name = lease.given.type or (submits[0].type if submits else "")
        if known and name and not any(name in types for types in known):
            yield Violation("foreign_type", lease.task, f"type {name} given to {lease.worker}")
