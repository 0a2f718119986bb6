"""Promises 2, 7 and 13: one lease at a time, nothing written without it, nobody loses it while he beats, a repeat answers as the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.history.events import FOREVER, TERMINAL, Finish, Operate
from tests.history.index import Index, Lease, Violation, end, possible

__all__ = ["completed_twice", "lease_lost", "not_rerun", "repeat_differs", "stale_write", "token_order", "two_leases"]


def completed_twice(index: Index) -> Iterator[Violation]:
    """2: two leases of one task both ended it, and nobody can have requeued it in between."""
    for task, leases in index.by_task.items():
        endings = sorted((e.ended, e.began, lease.token) for lease in leases if (e := lease.ending()) and e.terminal)
        for (_, began, first), (ended, _, second) in pairwise(endings):
            if not index.requeued(task, began, ended):
                yield Violation("completed_twice", task, f"ended under token {first} and under {second}")


def stale_write(index: Index) -> Iterator[Violation]:
    """2: a write was applied under a lease after a later one was given, or after it was taken back."""
    for task, leases in index.by_task.items():
        superseded = FOREVER
        for lease in reversed(leases):
            over = min([superseded, *(end(recover) for recover in lease.recovered)])
            if any(began > over for began in _applied_writes(lease)):
                yield Violation("stale_write", task, f"applied under token {lease.token} when it was no longer current")
            superseded = min(superseded, lease.granted)


def _applied_writes(lease: Lease) -> list[int]:
    """When each applied write was first tried: an earlier try with a lost answer may be the one that was applied."""
    ending = lease.ending()
    unknown = min((each.began for each in lease.checkpoints if each.answer == "lost"), default=FOREVER)
    applied = [min(each.began, unknown) for each in lease.checkpoints if each.answer == "applied"]
    return [*applied, ending.began] if ending else applied


def two_leases(index: Index) -> Iterator[Violation]:
    """2: two leases of one task were both current at one moment, or a beat confirmed one after a later one was given."""
    for task, leases in index.by_task.items():
        superseded = FOREVER
        for lease in reversed(leases):
            if lease.kept > superseded:
                yield Violation("two_leases", task, f"token {lease.token} was confirmed after a later one was given")
            superseded = min(superseded, lease.granted)
        held: Lease | None = None
        for lease in sorted(leases, key=lambda lease: lease.granted):
            if held is not None and lease.granted < min(index.held_until(held), index.held_until(lease)):
                yield Violation("two_leases", task, f"tokens {held.token} and {lease.token} were both current")
            if held is None or index.held_until(lease) > index.held_until(held):
                held = lease


def token_order(index: Index) -> Iterator[Violation]:
    """2: a token was given twice, or one given surely later is not higher."""
    seen: dict[int, Lease] = {}
    groups: dict[str, list[Lease]] = defaultdict(list)
    for lease in index.leases.values():
        other = seen.setdefault(lease.token, lease)
        if other is not lease:
            yield Violation(
                "token_order", lease.task, f"token {lease.token} was given for {other.task} to {other.worker} and for {lease.task} to {lease.worker}"
            )
        groups[lease.task if index.bounds.token_per_task else ""].append(lease)
    for leases in groups.values():
        given = sorted(leases, key=lambda lease: lease.granted)
        highest = position = 0
        for lease in sorted(leases, key=lambda lease: lease.began):
            while position < len(given) and given[position].granted < lease.began:
                highest = max(highest, given[position].token)
                position += 1
            if lease.token < highest:
                yield Violation("token_order", lease.task, f"token {lease.token} was given after {highest}")


def lease_lost(index: Index) -> Iterator[Violation]:
    """7: a lease was refused or taken back before a lease's length had passed since the last beat the store confirmed."""
    for lease in index.leases.values():
        judged = [*lease.refused, *(lease.recovered if index.bounds.lease is not None else ())]
        if judged and min(end(call) for call in judged) < index.held_until(lease, judged=True):
            yield Violation(
                "lease_lost", lease.task, f"token {lease.token} of {lease.worker}, last sign of life at {max(lease.began, lease.kept, lease.extended)}"
            )


def not_rerun(index: Index) -> Iterator[Violation]:
    """7: a dead worker's task did not run elsewhere within the bound."""
    if index.bounds.rerun is None:
        return
    unknown = [
        (tries[0].began, index.deaths[worker].began if worker in index.deaths else FOREVER)
        for (worker, _), tries in index.requests.items()
        if all(claim.answer == "lost" for claim in tries)
    ]
    for task, leases in index.by_task.items():
        following = FOREVER
        for lease in reversed(leases):
            died = index.deaths.get(lease.worker)
            if died is not None and not lease.finishes and lease.given_up == FOREVER and not _excused(index, task):
                deadline = died.began + index.bounds.rerun
                late = following > deadline if following < FOREVER else index.last > deadline and not _ended(index, task)
                if late and not any(began <= deadline and until > index.held_until(lease) for began, until in unknown):
                    yield Violation("not_rerun", task, f"{lease.worker} died at {died.began}, next claim {'never' if following == FOREVER else following}")
            following = min(following, lease.began)


def _excused(index: Index, task: str) -> bool:
    submits = index.submits_by_task.get(task, ())
    return index.operated(task, "cancel", "delete") or any(s.waits or s.limits or s.share or s.expires_at is not None for s in submits)


def _ended(index: Index, task: str) -> bool:
    return any(read.state in TERMINAL or read.state == "expired" for read in index.reads.get(task, ()))


def repeat_differs(index: Index) -> Iterator[Violation]:
    """13: an answer that was asked for again is another."""
    yield from _finish_repeats(index)
    yield from _claim_repeats(index)
    yield from _submit_repeats(index)
    yield from _operate_repeats(index)


def _finish_repeats(index: Index) -> Iterator[Violation]:
    for lease in index.leases.values():
        applied = [finish for finish in lease.finishes if finish.answer == "applied"]
        stale = [call for call in lease.refused if isinstance(call, Finish) and call.outcome != "checkpoint"]
        if applied and stale and (_after(applied[0], stale[-1]) or _after(stale[0], applied[-1])):
            yield Violation("repeat_differs", lease.task, f"finish under token {lease.token} answered applied and stale")


def _after(first: Finish, second: Finish) -> bool:
    return end(first) < second.began


def _claim_repeats(index: Index) -> Iterator[Violation]:
    for (worker, request), tries in index.requests.items():
        answered = [claim for claim in tries if claim.answer == "given"]
        for first, second in pairwise(answered):
            before = {(given.task, given.token) for given in first.given}
            after = {(given.task, given.token) for given in second.given}
            kept = {pair for pair in before if index.held_until(index.leases[pair[0], pair[1], worker]) > end(second)}
            if end(first) < second.began and (after - before or kept - after):
                yield Violation("repeat_differs", worker, f"request {request} answered {sorted(before)}, then {sorted(after)}")


def _submit_repeats(index: Index) -> Iterator[Violation]:
    for task, submits in index.submits_by_task.items():
        own = [submit for submit in submits if submit.task == task and submit.answer != "lost"]
        stored = [s for s in own if s.answer in ("created", "duplicate", "replaced")]
        for submit in own:
            again = stored and submit.hash == stored[0].hash and end(stored[0]) < submit.began
            if again and (submit.answer == "conflict" or (submit.id or task) != (stored[0].id or task)):
                first = f"{stored[0].answer} of {stored[0].id or task}"
                yield Violation("repeat_differs", task, f"submit answered {first}, then {submit.answer} of {submit.id or task}")


def _operate_repeats(index: Index) -> Iterator[Violation]:
    first: dict[tuple[str, str, int], Operate] = {}
    for operate in index.of(Operate):
        if operate.version is None or operate.answer not in ("applied", "refused"):
            continue
        earlier = first.setdefault((operate.task, operate.verb, operate.version), operate)
        if possible(earlier) and operate.answer == "refused" and end(earlier) < operate.began:
            yield Violation("repeat_differs", operate.task, f"{operate.verb} at version {operate.version} answered applied, then refused")
