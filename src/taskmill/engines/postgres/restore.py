"""Whole records, inserted as they are: a move from another store, or a rebuild."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskmill import codec
from taskmill.engine import Record
from taskmill.engines.postgres.store import Store
from taskmill.engines.rows import (
    COMPLETED,
    FAR,
    NUMBERS,
    ON_FAILURE_NUMBERS,
    RUNNING,
    WAITING,
    encode_error,
    encode_progress,
    encode_retry,
    json_text,
    restored_flags,
    restored_lane,
    restored_meta,
)
from taskmill.task import Task

__all__ = ["restore"]


async def restore(store: Store, records: Sequence[Record]) -> tuple[bool, ...]:
    """Never over an existing one: whose body was there already is left alone."""
    queries = store.load("settings.sql")
    async with store.pool.transaction() as db:
        known = {row["id"] for row in await db.fetch(queries.known, [record.task.id for record in records], store.now())}
        lanes = await _lanes(store, db, records)
        numbers = [None if record.task.id in known else await db.fetchval(queries.add_body, *_body(record.task)) for record in records]
        new = [(record, seq, lane) for record, seq, lane in zip(records, numbers, lanes, strict=True) if seq is not None]
        for record, seq, lane in new:
            await _restore(queries, db, record, seq, lane)
        ids = [record.task.id for record, _, _ in new]
        await db.execute(queries.mark_waited, ids)
        await db.execute(queries.add_late_edges, ids)
        await db.execute(queries.stir, [lane for _, _, lane in new])
        await db.execute(queries.announce, sorted({record.task.queue for record, _, _ in new}))
    await store.settle()
    return tuple(seq is not None for seq in numbers)


async def _lanes(store: Store, db: Any, records: Sequence[Record]) -> list[int]:
    """Each record's lane, held until the commit: one that is idle is forgotten by others."""
    queries = store.load("settings.sql")
    tasks = [record.task for record in records]
    placed = [restored_lane(task) for task in tasks]
    columns = (
        [task.queue for task in tasks], [share for share, _, _ in placed], [json_text(limits) for _, limits, _ in placed],
        [order or "" for _, _, order in placed],
    )  # fmt: skip
    while True:
        lanes = [row["lane"] for row in await db.fetch(queries.lanes, *columns)]
        wanted = {lane for lane in lanes if lane > 0}
        if len(await db.fetch(queries.hold_lanes, sorted(wanted))) == len(wanted):
            return lanes


def _body(task: Task) -> tuple[Any, ...]:
    return (
        task.id, task.type, task.queue, task.tenant, task.priority, task.created_at, task.run_at, task.expires_at, task.timeout, task.max_crashes,
        encode_retry(task.retry), restored_meta(task), json_text(dict(task.tags)) if task.tags else None, task.payload.decode(),
    )  # fmt: skip


async def _restore(queries: Any, db: Any, record: Record, seq: int, lane: int) -> None:
    task = record.task
    state, flags = NUMBERS[task.state], restored_flags(record)
    progress = None if task.progress is None else encode_progress(task.progress)
    counted = (task.version, task.executions, task.failures, task.crashes, task.open_edges)
    if state >= COMPLETED:
        result = None if task.result is None else task.result.decode()
        await db.execute(
            queries.add_ended, task.id, seq, state, flags, *counted, task.finished_at, task.token, task.worker, task.started_at, task.must_end, task.phase,
            progress, result, encode_error(task.error), task.updated_at,
        )  # fmt: skip
    else:
        if state == RUNNING or (state == WAITING and not (task.open_edges or task.sealed)):
            state = 0  # a lease of another store is none here; and what it waited for, its handler looks at again
        ready_at = FAR if state == WAITING else task.run_at
        await db.execute(
            queries.add_task, task.id, seq, lane, task.type, state, task.priority, flags, len(task.payload), *counted, ready_at, task.updated_at,
            task.expires_at, task.must_end, task.phase, progress,
        )  # fmt: skip
        await _restore_live(queries, db, task, seq, lane)
    await _restore_parts(queries, db, record)


async def _restore_live(queries: Any, db: Any, task: Task, seq: int, lane: int) -> None:
    if task.order_key is not None:
        await db.execute(queries.add_ordered, lane, seq, task.id)
    if task.expires_at is not None:
        await db.execute(queries.add_expiry, task.expires_at, task.id)
    if task.unique is not None:
        await db.execute(queries.add_held, task.tenant, task.type, task.unique.key, task.id)


async def _restore_parts(queries: Any, db: Any, record: Record) -> None:
    task = record.task
    if task.idempotency_key is not None:
        until = task.created_at + task.idempotency_window
        await db.execute(queries.add_dedupe, task.tenant, task.type, task.idempotency_key, task.id, codec.payload_hash(task.payload), until)
    attempts = [
        (task.id, a.number, a.worker, a.token, a.started_at, a.ended_at, a.outcome, encode_error(a.error)) for a in record.attempts if a.ended_at is not None
    ]
    edges = [
        (
            task.id, edge.task, ON_FAILURE_NUMBERS[edge.on_failure], None if edge.outcome is None else NUMBERS[edge.outcome],
            None if edge.result is None else edge.result.decode(),
        ) for edge in record.edges
    ]  # fmt: skip
    for statement, rows in (
        (queries.add_checkpoint, [(task.id, name, value) for name, value in record.checkpoints.items()]),
        (queries.add_signal, [(task.id, s.number, s.id, s.name, s.data, s.at) for s in record.signals]),
        (queries.add_attempt, attempts),
        (queries.add_edge, edges),
    ):
        if rows:
            await db.executemany(statement, rows)
