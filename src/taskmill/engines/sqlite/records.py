"""Whole records: all that is known of a task, out of one store and into another, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskmill import codec
from taskmill.engine import Record
from taskmill.engines.rows import (
    COMPLETED,
    FAR,
    NUMBERS,
    ON_FAILURE_NUMBERS,
    REJECTED,
    RUNNING,
    WAITED,
    WAITING,
    encode_error,
    encode_progress,
    encode_retry,
    restored_flags,
    restored_lane,
    restored_meta,
)
from taskmill.engines.sqlite import edges, inspect
from taskmill.engines.sqlite.sql import Database, load, one_moment
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import Moves
from taskmill.errors import InvalidInput
from taskmill.task import TERMINAL, Edge, Signal, Task

__all__ = ["records", "restore"]

queries = load("records.sql")

MOST_RECORDS = 1_000


def records(db: Database, ids: Sequence[str], now: int) -> tuple[Record | None, ...]:
    """Read in one moment: a record never shows a task before a step with its edges after it."""
    if len(ids) > MOST_RECORDS:
        raise InvalidInput(f"{len(ids)} ids are too many", code="too_many_ids", field="ids", hint=f"at most {MOST_RECORDS} at once")
    with one_moment(db):
        return tuple(_record(db, task, now) if isinstance(task, Task) else None for task in inspect.get(db, ids, now))


def _record(db: Database, task: Task, now: int) -> Record:
    return Record(
        task=task,
        attempts=inspect.attempts(db, task.id, now),
        checkpoints=dict(db.execute(queries.checkpoints, (task.id,))),
        signals=tuple(Signal(*found) for found in db.execute(queries.signals, (task.id,))),
        edges=inspect.edges(db, task.id, 0, -1),
    )


def restore(step: Step, given: Sequence[Record]) -> list[bool]:
    """Rows first, then edges: those of the batch may name each other."""
    known = edges.awaited(step, {record.task.id for record in given})
    fresh: dict[str, Record] = {}
    answers = []
    for record in given:
        answers.append(record.task.id not in known and record.task.id not in fresh)
        fresh.setdefault(record.task.id, record)
    fresh = {task: record for task, record in fresh.items() if task not in known}
    moves = Moves(step)
    awaited = edges.coming(step, fresh)
    seqs = {task: _restore(step, moves, record, WAITED if task in awaited else 0) for task, record in fresh.items()}
    for task in awaited:
        edges.arrive(moves, task, *seqs[task])
    _restore_edges(moves, [(seqs[task][0], record) for task, record in fresh.items() if record.edges])
    moves.settle()
    step.woke = True
    return answers


def _restore(step: Step, moves: Moves, record: Record, flags: int) -> tuple[int, int]:
    """(number, state) of its row."""
    task = record.task
    step.seq += 1
    seq = step.seq
    flags |= restored_flags(record)
    state = NUMBERS[task.state]
    if state == RUNNING or (state == WAITING and not (task.open_edges or task.sealed)):
        state = 0  # a lease of another store is none here; and what it waited for, its handler looks at again
    share, limits, order_key = restored_lane(task)
    lane = step.lane_id(step.queue(task.queue), share, limits, order_key or "")
    ended = state >= COMPLETED
    step.db.execute(
        queries.restore_task,
        {
            "seq": seq, "id": task.id, "type": task.type, "queue": task.queue, "tenant": task.tenant, "lane": lane, "state": state, "priority": task.priority,
            "ready_at": FAR if state == WAITING else task.run_at, "version": task.version, "executions": task.executions, "failures": task.failures,
            "crashes": task.crashes, "flags": flags, "created_at": task.created_at, "updated_at": task.updated_at,
            "expires_at": task.expires_at, "finished_at": task.finished_at, "token": task.token if ended else None, "worker": task.worker if ended else None,
            "started_at": task.started_at if ended else None, "must_end": task.must_end, "phase": task.phase,
            "progress": None if task.progress is None else encode_progress(task.progress),
        },
    )  # fmt: skip
    step.counting.came(step.counting.kind(task.queue, task.type, task.priority), state, seq, task.run_at)
    step.counting.born(seq, task.created_at)
    if not ended:
        if task.order_key is not None:
            step.db.execute(queries.add_ordered, (lane, seq))
        if task.expires_at is not None:
            step.db.execute(queries.add_expiry, (task.expires_at, seq))
    _restore_parts(step, seq, record, rejected=bool(flags & REJECTED))
    if lane > 0:
        moves.stirred.add(lane)
    return seq, state


def _restore_parts(step: Step, seq: int, record: Record, *, rejected: bool) -> None:
    task, db = record.task, step.db
    db.execute(queries.add_body, (seq, task.payload, encode_retry(task.retry), task.timeout, task.max_crashes, task.run_at, restored_meta(task)))
    if task.result is not None or task.error is not None:
        db.execute(queries.add_ending, (seq, task.result, encode_error(task.error)))
    if task.unique is not None and task.state not in TERMINAL:
        db.execute(queries.hold, (task.tenant, task.type, task.unique.key, seq))
    if task.idempotency_key is not None and not rejected:
        until = task.created_at + task.idempotency_window
        db.execute(queries.add_dedupe, (task.tenant, task.type, task.idempotency_key, task.id, codec.payload_hash(task.payload), until))
    db.executemany(queries.add_tag, [(name, value, seq) for name, value in task.tags.items()])
    db.executemany(queries.add_checkpoint, [(seq, name, value) for name, value in record.checkpoints.items()])
    db.executemany(queries.add_signal, [(seq, s.number, s.id, s.name, s.data, s.at) for s in record.signals])
    db.executemany(
        queries.add_attempt,
        [(seq, a.number, a.worker, a.token, a.started_at, a.ended_at, a.outcome, encode_error(a.error)) for a in record.attempts if a.ended_at is not None],
    )


def _restore_edges(moves: Moves, restored: Sequence[tuple[int, Record]]) -> None:
    """In their order. One that has fallen brings what it fell with; an open one onto a task that has ended here falls now."""
    step = moves.step
    children = edges.awaited(step, {edge.task for _, record in restored for edge in record.edges})
    for seq, record in restored:
        for edge in record.edges:
            if edge.outcome is None:
                edges.link(step, seq, [Edge(edge.task, edge.on_failure)], _or_unknown(children, edge.task))
                continue
            child = children.get(edge.task, edges.FORGOTTEN)
            step.db.execute(
                queries.add_edge, (seq, child.seq or edges.GONE, edge.task, ON_FAILURE_NUMBERS[edge.on_failure], NUMBERS[edge.outcome], edge.result)
            )
            step.db.execute(queries.mark_waited, (WAITED, child.seq))
        edges.settle(moves, seq)


def _or_unknown(children: Mapping[str, edges.Child], task: str) -> Mapping[str, edges.Child]:
    return children if task in children else {task: edges.UNKNOWN}
