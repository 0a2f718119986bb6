"""Promises 1, 4, 5 and 6: what was acknowledged is there, nothing live goes, nothing starts early, one key is one task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.history.events import TERMINAL, Read, Submit
from tests.history.index import Index, Lease, Violation, end

__all__ = ["early_start", "key_answer", "key_two_tasks", "live_vanished", "submit_lost"]

_STORED = ("created", "duplicate", "replaced", "conflict")


def submit_lost(index: Index) -> Iterator[Violation]:
    """1: a submit was acknowledged and its task is not there, nor ever was seen."""
    for task, text in _missing(index):
        if not _was_seen(index, task):
            yield Violation("submit_lost", task, text)


def live_vanished(index: Index) -> Iterator[Violation]:
    """4: a task that was seen and had not ended is gone."""
    for task, text in _missing(index):
        if _was_seen(index, task):
            yield Violation("live_vanished", task, text)


def _missing(index: Index) -> Iterator[tuple[str, str]]:
    complete = any(read.final for read in index.of(Read))
    acknowledged: dict[str, int] = {}
    for submit in index.submits:
        if submit.answer in _STORED and (submit.id is not None or submit.answer != "conflict"):
            task = submit.id or submit.task
            acknowledged[task] = min(acknowledged.get(task, end(submit)), end(submit))
    for task, since in acknowledged.items():
        reads = index.reads.get(task, [])
        gone = [read for read in reads if read.state == "missing" and read.began > since]
        unread = complete and not any(read.final for read in reads)
        if (gone or unread) and not _may_have_ended(index, task):
            yield task, "read as missing" if gone else "not among the final reads"


def _was_seen(index: Index, task: str) -> bool:
    return task in index.by_task or any(read.state != "missing" for read in index.reads.get(task, ()))


def _may_have_ended(index: Index, task: str) -> bool:
    leases = index.by_task.get(task, [])
    if index.operated(task, "cancel", "delete") or any(read.state in TERMINAL or read.state == "expired" for read in index.reads.get(task, ())):
        return True
    if any(finish.outcome in TERMINAL for lease in leases for finish in lease.finishes) or _crashes(leases) > index.bounds.max_crashes:
        return True
    submits = index.submits_by_task[task]
    return any(s.waits or s.unique or s.expires_at is not None or s.answer == "rejected" for s in submits)


def _crashes(leases: list[Lease]) -> int:
    """How often it may have been lost: past the bound it is dead as poison, and may be pruned."""
    return sum(1 for lease in leases if (ending := lease.ending()) is None or "crashed" in ending.outcomes)


def early_start(index: Index) -> Iterator[Violation]:
    """5: no claim before the time that submit, retry or snooze set; the store's clock judges itself."""
    by_unique: dict[str, int] = {}
    for submit in index.submits:
        if submit.unique is not None:
            by_unique[submit.unique] = min(by_unique.get(submit.unique, submit.run_at), submit.run_at)
    for task, leases in index.by_task.items():
        if index.operated(task, "requeue"):
            continue
        times = [by_unique[s.unique] if s.unique is not None else s.run_at for s in index.submits_by_task.get(task, ())]
        earliest = min(times, default=0)
        for lease in leases:
            if lease.given.claimed_at < earliest:
                yield Violation("early_start", task, f"token {lease.token} claimed at {lease.given.claimed_at}, due at {earliest}")
            earliest = min(times, default=0)
            if (ending := lease.ending()) and ending.outcomes <= {"retry", "snoozed"}:
                earliest = max(earliest, lease.given.claimed_at + min(finish.delay for finish in lease.finishes))


def _keyed(index: Index) -> dict[tuple[str, str, str], list[Submit]]:
    groups: dict[tuple[str, str, str], list[Submit]] = defaultdict(list)
    for submit in index.submits:
        if submit.key is not None and submit.unique is None and submit.answer != "error":
            groups[submit.tenant, submit.type, submit.key].append(submit)
    return groups


def key_two_tasks(index: Index) -> Iterator[Violation]:
    """6: one key made two tasks within its window, or answered with a task that was never submitted under it."""
    submitted = {submit.task for submit in index.submits}
    for (_, _, key), submits in _keyed(index).items():
        created = sorted((s for s in submits if s.answer == "created"), key=lambda s: (s.created_at or 0, s.began))
        for first, second in pairwise(created):
            if first.task != second.task and _within(first, second):
                yield Violation("key_two_tasks", key, f"created {first.task} and {second.task}")
        own = {submit.task for submit in submits}
        for submit in submits:
            if submit.answer == "duplicate" and submit.id in submitted and submit.id not in own:
                yield Violation("key_two_tasks", key, f"{submit.task} is called a duplicate of {submit.id}, which was submitted under another key")


def _within(first: Submit, second: Submit) -> bool:
    if first.created_at is None or second.created_at is None:
        return True
    return second.created_at < first.created_at + first.window


def key_answer(index: Index) -> Iterator[Violation]:
    """6: the same payload is a duplicate, another one a conflict."""
    for (_, _, key), submits in _keyed(index).items():
        hashes = {s.task: s.hash for s in submits if s.answer == "created"}
        for submit in submits:
            first = hashes.get(submit.id or "")
            if first is None or submit.id == submit.task or submit.answer not in ("duplicate", "conflict"):
                continue
            if (submit.answer == "duplicate") != (first == submit.hash):
                yield Violation("key_answer", key, f"{submit.task} answered {submit.answer} of {submit.id}; payload {submit.hash!r}, first {first!r}")
