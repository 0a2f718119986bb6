"""Cancel, requeue, delete: on tasks by id and the version the caller saw, or on everything that a filter matches, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmill.engine import Changed, Changes, Filter, Target
from taskmill.engines.rows import (
    CANCEL,
    CANCELLED,
    COMPLETED,
    FAR,
    ORDERED,
    PENDING,
    REJECTED,
    RUNNING,
    STATES,
    SUSPECT,
    UNIQUE_ENDED,
    UNIQUE_STARTED,
    UNWIND,
    WAITED,
    WAITING,
    decode_error,
    decode_meta,
    state_name,
)
from taskmill.engines.sqlite import edges, lanes
from taskmill.engines.sqlite.listing import matching
from taskmill.engines.sqlite.recover import purge
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import Moves, Row, read_rows
from taskmill.events import Kind
from taskmill.task import State

__all__ = ["cancel", "delete", "requeue"]

queries = load("admin.sql")

Change = Callable[[Moves, Row, int | None], Changed]


def cancel(step: Step, which: Sequence[Target] | Filter, after: str | None, n: int) -> Changes:
    return _each(step, which, after, n, _cancel)


def requeue(step: Step, which: Sequence[Target] | Filter, after: str | None, n: int, *, from_start: bool) -> Changes:
    return _each(step, which, after, n, lambda moves, row, version: _requeue(moves, row, version, from_start))


def delete(step: Step, which: Sequence[Target] | Filter, after: str | None, n: int) -> Changes:
    return _each(step, which, after, n, _delete)


def _each(step: Step, which: Sequence[Target] | Filter, after: str | None, n: int, change: Change) -> Changes:
    cursor = None
    if isinstance(which, Filter):
        tasks, cursor = matching(step.db, which, after, n, step.now)
        which = [Target(task) for task in tasks]
    moves = Moves(step)
    changed = []
    for target in which:
        row = read_rows(step, (target.task,)).get(target.task)
        changed.append(_missing(moves, target, change) if row is None else change(moves, row, target.version))
    moves.settle()
    return Changes(tuple(changed), cursor)


def _missing(moves: Moves, target: Target, change: Change) -> Changed:
    """No record: its id may be known all the same, as that of a task that was deleted or that is still to come."""
    step = moves.step
    found = step.db.execute(queries.known, (target.task, step.now)).fetchone()
    if found is None:
        return Changed(target.task, False, None, code="not_found")
    state, version = found
    if change is _delete and version == target.version:
        return Changed(target.task, True, STATES[state], version)
    if change is _cancel and state is None:
        step.db.execute(queries.cancel_reserved, (CANCELLED, target.task))
        edges.cancel_reserved(moves, target.task)
        step.ended = True
    if change is _cancel and (state is None or (state == CANCELLED and version == 0)):  # the second: asked again
        return Changed(target.task, True, State.CANCELLED)
    return Changed(target.task, False, None if state is None else STATES[state], code="expired")


def _refused(step: Step, row: Row, code: str) -> Changed:
    return Changed(row.id, False, state_name(row.state, row.ready_at, step.now), row.version, code=code)


def _cancel(moves: Moves, row: Row, version: int | None) -> Changed:
    step = moves.step
    repeat = version is not None and row.version == version + 1
    if row.state == CANCELLED and (repeat or version is None):
        return Changed(row.id, True, State.CANCELLED, row.version)
    if row.state == RUNNING and row.flags & CANCEL and (repeat or version is None):
        return Changed(row.id, True, State.RUNNING, row.version, requested=True)
    if repeat and row.flags & UNWIND and row.must_end == "cancelled":
        return Changed(row.id, True, State.PENDING, row.version)
    if row.state >= COMPLETED:
        return _refused(step, row, "terminal")
    if version is not None and row.version != version:
        return _refused(step, row, "stale_version")
    if row.state == RUNNING:
        step.db.execute(queries.request_cancel, (CANCEL, step.now, row.seq))
        step.event(Kind.CANCELLING, row.id, row.version + 1, row.facts())
        return Changed(row.id, True, State.RUNNING, row.version + 1, requested=True)
    if row.flags & UNWIND and row.must_end is not None:
        return Changed(row.id, True, State.PENDING, row.version)
    state = moves.cancel(row)
    return Changed(row.id, True, STATES[state], row.version)


def _requeue(moves: Moves, row: Row, version: int | None, from_start: bool) -> Changed:
    step = moves.step
    opened, error, text = step.db.execute(queries.requeue_facts, (row.seq,)).fetchone()
    if version is not None and opened == version:
        return Changed(row.id, True, state_name(row.state, row.ready_at, step.now), row.version)
    if row.state < COMPLETED:
        return _refused(step, row, "not_terminal")
    if version is not None and row.version != version:
        return _refused(step, row, "stale_version")
    if row.flags & WAITED and step.db.execute(queries.is_falling, (row.seq,)).fetchone():
        return _refused(step, row, "edges_falling")  # they fall with the end that decided them, before there can be another
    meta = decode_meta(text)
    if meta.unique is not None and row.flags & (UNIQUE_STARTED | UNIQUE_ENDED):
        if step.db.execute(queries.other_holder, (row.tenant, row.type, meta.unique.key)).fetchone():
            return _refused(step, row, "unique_held")
        step.db.execute(queries.hold, (row.tenant, row.type, meta.unique.key, row.seq))
    if row.token is not None:
        ended = decode_error(error)
        outcome = "completed" if row.state == COMPLETED else "cancelled" if row.state == CANCELLED else "failed"
        step.db.execute(queries.keep_attempt, (row.seq, outcome if ended is None or ended.code != "poison" else "crashed", error))
    limits = lanes.limits_of_lane(step, meta.limits, reject=meta.reject) if row.lane > 0 else ()
    _open_again(moves, row, from_start, step.lane_id(step.queue(row.queue), meta.share, limits, meta.order or ""))
    return Changed(row.id, True, STATES[row.state], row.version)


def _open_again(moves: Moves, row: Row, from_start: bool, lane: int) -> None:
    step = moves.step
    if row.flags & WAITED:
        step.db.execute(queries.keep_results, (row.seq,))
    step.db.execute(queries.forget_ending, (row.seq,))
    if from_start:
        step.db.execute(queries.forget_checkpoints, (row.seq,))
        row.flags &= ~UNWIND
    row.flags &= ~(REJECTED | SUSPECT)
    state, ready_at = (WAITING, FAR) if row.open_edges else (PENDING, step.now)
    step.db.execute(queries.open_again, (state, ready_at, row.flags, lane, from_start, row.version, step.now, row.seq))
    step.db.execute(queries.add_expiry, (row.seq,))
    if row.flags & ORDERED:
        step.db.execute(queries.add_ordered, (lane, row.seq))
    moves.count(row, state, ready_at)
    row.state = state
    row.version += 1
    step.woke = True
    if lane > 0:
        moves.stirred.add(lane)
    step.event(Kind.READY, row.id, row.version, row.facts())


def _delete(moves: Moves, row: Row, version: int | None) -> Changed:
    step = moves.step
    if row.state < COMPLETED:
        return _refused(step, row, "not_terminal")
    if version is not None and row.version != version:
        return _refused(step, row, "stale_version")
    if step.db.execute(queries.owed, (row.id, row.seq)).fetchone():
        return _refused(step, row, "undelivered")
    created_at = step.db.execute(queries.created_at, (row.seq,)).fetchone()[0]
    purge(step, row.seq, row.id, row.state, row.version, created_at, row.flags)
    step.event(Kind.DELETED, row.id, row.version + 1, row.facts())
    return Changed(row.id, True, STATES[row.state], row.version)
