"""Claim: the tasks that are next, admitted by all their limits, become running under new tokens.

What is taken and in which order is decided in `pick`; here the request is judged (new, repeated, of an unknown worker) and the answer is put together. The
answer is built after the commit, when the write lock is no longer held: two processes can share a file only as far as their work does not lie under it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType

import msgspec

from taskmill.engine import Claim, Claimed, Room
from taskmill.engines.rows import (
    CHECKPOINTS,
    DEFAULT_RETRY,
    EDGES,
    FAR,
    ON_FAILURE,
    SIGNALS,
    STATES,
    SUSPECT,
    UNWIND,
    decode_names,
    decode_retry,
    handlers_meta,
)
from taskmill.engines.sqlite import lanes
from taskmill.engines.sqlite.pick import FLAGS, LANE, SEQ, Batch, Found, Picker
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import fall_slice
from taskmill.errors import Conflict
from taskmill.task import EdgeResult, Signal, unscoped_limit

__all__ = ["RESULTS", "answer", "claim"]

queries = load("claim.sql")

RESULTS = 1_000
"""Edges that come with a claimed task; `edges` pages through more."""


class Extras(msgspec.Struct, frozen=True):
    """What few tasks bring along."""

    checkpoints: Mapping[str, bytes] = MappingProxyType({})
    signals: tuple[Signal, ...] = ()
    results: tuple[EdgeResult, ...] = ()


NO_EXTRAS = Extras()


class Taken(msgspec.Struct):
    """What a claim took, with limits by lane and extras by task."""

    worker: str
    batches: Sequence[Batch]
    limits: dict[int, tuple[str, ...]]
    extras: dict[int, Extras]
    next_at: int | None
    more: bool


def claim(step: Step, worker: str, request: int, queues: Sequence[str], room: Room) -> Taken:
    known = step.db.execute(queries.worker_types, (worker,)).fetchone()
    if known is None:
        raise Conflict(f"worker {worker} is not registered (any more)", code="unknown_worker", field="worker", hint="join under a new id")
    types, last = known
    if request <= last:  # asked again: what it still holds of that request; never anything new
        held = [Batch([row[:-2]], [row[-2]], row[-1], 0) for row in step.db.execute(queries.held, (worker, request)).fetchall()]
        return Taken(worker, held, _limits(step, held), _extras(step, held), None, True)
    more = lanes.open_due(step)
    more |= fall_slice(step)
    picker = Picker(step, worker, request, decode_names(types), room)
    picker.pick([queue for queue in queues if queue not in step.settings.paused_queues])
    taken = picker.write()
    more |= picker.more
    if taken:
        step.db.execute(queries.note_request, (request, worker))
    next_at = None if more or picker.slots == 0 else _next_at(step, queues)
    return Taken(worker, taken, _limits(step, taken), _extras(step, taken) if picker.flagged else {}, next_at, more)


def _next_at(step: Step, queues: Sequence[str]) -> int | None:
    """When something may become claimable that is not now."""
    times = [lanes.next_due(step)]
    for queue in queues:
        if queue not in step.settings.paused_queues:
            times += [row[0] for row in step.db.executemany(queries.next_plain, [(-step.queue(queue), priority, step.now) for priority in range(4)])]
    return min((time for time in times if time is not None and time < FAR), default=None)


def _limits(step: Step, taken: Sequence[Batch]) -> dict[int, tuple[str, ...]]:
    numbers = {lane for batch in taken for lane in map(itemgetter(LANE), batch.rows)}
    return {lane: tuple(name.removeprefix(lanes.CAP) for name in step.lane(lane).limits) if lane > 0 else () for lane in numbers}


def _extras(step: Step, taken: Sequence[Batch]) -> dict[int, Extras]:
    return {row[SEQ]: _extra(step, row) for batch in taken for row in batch.rows if row[FLAGS] & (CHECKPOINTS | SIGNALS | EDGES)}


def _extra(step: Step, row: Found) -> Extras:
    seq, flags = row[SEQ], row[FLAGS]
    return Extras(
        checkpoints=dict(step.db.execute(queries.checkpoints, (seq,))) if flags & CHECKPOINTS else {},
        signals=tuple(Signal(*found) for found in step.db.execute(queries.signals, (seq,))) if flags & SIGNALS else (),
        results=_results(step, seq) if flags & EDGES else (),
    )


def _results(step: Step, seq: int) -> tuple[EdgeResult, ...]:
    rows = step.db.execute(queries.results, (seq, RESULTS))
    return tuple(EdgeResult(task, ON_FAILURE[on_failure], None if outcome is None else STATES[outcome], result) for task, on_failure, outcome, result in rows)


def answer(taken: Taken) -> Claim:
    """The claim's answer; needs no store."""
    extras, limits = taken.extras, taken.limits
    tasks = [
        _claimed(taken.worker, row, token, batch.claimed_at, batch.raised, limits[row[LANE]], extras.get(row[SEQ], NO_EXTRAS) if extras else NO_EXTRAS)
        for batch in taken.batches
        for row, token in zip(batch.rows, batch.tokens, strict=True)
    ]
    return Claim(tuple(tasks), taken.next_at, taken.more)


def _claimed(worker: str, row: Found, token: int, claimed_at: int, raised: int, limits: tuple[str, ...], extras: Extras) -> Claimed:
    (
        _, task, type_name, queue, priority, ready_at, version, executions, failures, crashes, flags, created_at, expires_at, tenant, must_end, phase, _,
        payload, retry, timeout, max_crashes, text, _,
    ) = row  # fmt: skip
    meta = handlers_meta(text)
    return Claimed(  # by place: by name it costs four times as much, for every task
        task,
        type_name,
        queue,
        payload,
        worker,
        token,
        executions + raised,
        claimed_at,
        priority,
        failures,
        crashes,
        max_crashes,
        version + raised,
        created_at,
        DEFAULT_RETRY if retry is None else decode_retry(retry),
        timeout,
        expires_at,
        tenant,
        tuple(map(unscoped_limit, limits)) if limits else (),
        bool(flags & UNWIND),
        must_end,
        phase,
        meta.headers,
        extras.checkpoints,
        extras.signals,
        extras.results,
        ready_at,
        meta.key,
        bool(flags & SUSPECT),
    )
