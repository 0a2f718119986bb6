"""Whole records: read as they are, and inserted as they are, for a move from another store or a rebuild.

A batch goes into each table by one statement, whatever its size. Edges onto tasks that are not there stay open: whoever brings such a task later links them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from taskmill import codec
from taskmill.engine import Record
from taskmill.engines.postgres import inspect
from taskmill.engines.postgres.store import Store
from taskmill.engines.rows import (
    COMPLETED,
    FAR,
    NUMBERS,
    ON_FAILURE_NUMBERS,
    REJECTED,
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
from taskmill.errors import InvalidInput
from taskmill.task import EdgeResult, Signal, Task

__all__ = ["records", "restore"]

MOST_RECORDS = 1_000

Row = tuple[Any, ...]


async def records(store: Store, ids: Sequence[str]) -> tuple[Record | None, ...]:
    """One after the other, so a task that changes meanwhile is read as it was before or after in each of its parts."""
    if len(ids) > MOST_RECORDS:
        raise InvalidInput(f"{len(ids)} records at once are too many", code="batch_too_large", field="ids", hint=f"at most {MOST_RECORDS}")
    tasks = {task.id: task for task in await inspect.get(store, ids) if isinstance(task, Task)}
    queries, wanted = store.load("inspect.sql"), list(tasks)
    attempts = await inspect.attempts_of(store, wanted)
    checkpoints: dict[str, dict[str, bytes]] = defaultdict(dict)
    signals: dict[str, list[Signal]] = defaultdict(list)
    edges: dict[str, list[EdgeResult]] = defaultdict(list)
    for task, name, value in await store.pool.fetch(store.load("claim.sql").checkpoints, wanted):
        checkpoints[task][name] = value
    for task, *signal in await store.pool.fetch(store.load("claim.sql").signals, wanted):
        signals[task].append(Signal(*signal))
    for task, *edge in await store.pool.fetch(queries.all_edges, wanted):
        edges[task].append(inspect.edge(*edge))
    return tuple(
        Record(
            task=tasks[id], attempts=attempts.get(id, ()), checkpoints=dict(checkpoints[id]), signals=tuple(signals[id]), edges=tuple(edges[id])
        ) if id in tasks else None
        for id in ids
    )  # fmt: skip


async def restore(store: Store, records: Sequence[Record]) -> tuple[bool, ...]:
    """Never over an existing one: whose body was there already is left alone."""
    if not records:
        return ()
    queries = store.load("settings.sql")
    async with store.pool.transaction() as db:
        lanes = await _lanes(store, db, records)
        rows = await db.fetch(queries.add_bodies, *_columns(_body(record.task) for record in records), store.now())
        numbers = {row["id"]: row["seq"] for row in rows}
        new = _first_of_each(records, lanes, numbers)
        for statement, found in _parts(queries, new):
            if found:
                await db.execute(statement, *_columns(found))
        await db.execute(queries.have_come, list(numbers))
        await db.execute(queries.stir, list({lane for _, _, lane in new}))
        await db.execute(queries.announce, sorted({record.task.queue for record, _, _ in new}))
    while await store.settle():
        pass
    inserted = {id(record) for record, _, _ in new}
    return tuple(id(record) in inserted for record in records)


def _first_of_each(records: Sequence[Record], lanes: Sequence[int], numbers: dict[str, int]) -> list[tuple[Record, int, int]]:
    """Those that were inserted, with their number and lane; of two with one id the first was."""
    left = dict(numbers)
    found = []
    for record, lane in zip(records, lanes, strict=True):
        seq = left.pop(record.task.id, None)
        if seq is not None:
            found.append((record, seq, lane))
    return found


async def _lanes(store: Store, db: Any, records: Sequence[Record]) -> list[int]:
    """Each record's lane, held until the commit: one that is idle is forgotten by others."""
    queries = store.load("settings.sql")
    placed = [(record.task.queue, *restored_lane(record.task)) for record in records]
    names = list(dict.fromkeys(placed))
    columns = (
        [queue for queue, _, _, _ in names], [share for _, share, _, _ in names], [json_text(limits) for _, _, limits, _ in names],
        [order or "" for _, _, _, order in names],
    )  # fmt: skip
    while True:
        lanes = {name: row["lane"] for name, row in zip(names, await db.fetch(queries.lanes, *columns), strict=True)}
        wanted = {lane for lane in lanes.values() if lane > 0}
        if len(await db.fetch(queries.hold_lanes, sorted(wanted))) == len(wanted):
            return [lanes[name] for name in placed]


def _columns(rows: Iterable[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _body(task: Task) -> Row:
    return (
        task.id, task.type, task.queue, task.tenant, task.priority, task.created_at, task.run_at, task.expires_at, task.timeout, task.max_crashes,
        encode_retry(task.retry), restored_meta(task), json_text(dict(task.tags)) if task.tags else None, task.payload.decode(),
    )  # fmt: skip


def _parts(queries: Any, new: Sequence[tuple[Record, int, int]]) -> list[tuple[str, list[Row]]]:
    """What goes into each table, in an order in which nothing is looked for before it is there."""
    live = [(record, seq, lane) for record, seq, lane in new if NUMBERS[record.task.state] < COMPLETED]
    ended = [(record, seq) for record, seq, _ in new if NUMBERS[record.task.state] >= COMPLETED]
    return [
        (queries.add_tasks, [_task(record, seq, lane) for record, seq, lane in live]),
        (queries.add_ended, [_ended(record, seq) for record, seq in ended]),
        (queries.add_ordered, [(lane, seq, record.task.id) for record, seq, lane in live if record.task.order_key is not None]),
        (queries.add_expiry, [(record.task.expires_at, record.task.id) for record, _, _ in live if record.task.expires_at is not None]),
        (queries.add_held, [_held(record.task) for record, _, _ in live if record.task.unique is not None]),
        (queries.add_dedupe, [_key(record.task) for record, _, _ in new if record.task.idempotency_key is not None and not restored_flags(record) & REJECTED]),
        (queries.add_checkpoint, [(record.task.id, name, value) for record, _, _ in new for name, value in record.checkpoints.items()]),
        (queries.add_signal, [(record.task.id, s.number, s.id, s.name, s.data, s.at) for record, _, _ in live for s in record.signals]),
        (queries.add_attempt, [row for record, _, _ in new for row in _attempts(record)]),
        (queries.add_edge, [_edge(record.task.id, edge) for record, _, _ in new for edge in record.edges]),
    ]


def _counted(task: Task) -> Row:
    return task.version, task.executions, task.failures, task.crashes, task.open_edges


def _progress(task: Task) -> str | None:
    return None if task.progress is None else encode_progress(task.progress)


def _task(record: Record, seq: int, lane: int) -> Row:
    task, state = record.task, NUMBERS[record.task.state]
    if state == RUNNING or (state == WAITING and not (task.open_edges or task.sealed)):
        state = 0  # a lease of another store is none here; and what it waited for, its handler looks at again
    ready_at = FAR if state == WAITING else task.run_at
    size = len(task.payload) + sum(len(name) + len(value) for name, value in record.checkpoints.items()) + sum(len(s.data) for s in record.signals)
    return (
        task.id, seq, lane, task.type, state, task.priority, restored_flags(record), size, *_counted(task), ready_at, task.updated_at, task.expires_at,
        task.must_end, task.phase, _progress(task),
    )  # fmt: skip


def _ended(record: Record, seq: int) -> Row:
    task = record.task
    result = None if task.result is None else task.result.decode()
    return (
        task.id, seq, NUMBERS[task.state], restored_flags(record), *_counted(task), task.finished_at, task.token, task.worker, task.started_at, task.must_end,
        task.phase, _progress(task), result, encode_error(task.error), task.updated_at,
    )  # fmt: skip


def _held(task: Task) -> Row:
    assert task.unique is not None
    return task.tenant, task.type, task.unique.key, task.id


def _key(task: Task) -> Row:
    return task.tenant, task.type, task.idempotency_key, task.id, codec.payload_hash(task.payload), task.created_at + task.idempotency_window


def _attempts(record: Record) -> list[Row]:
    return [
        (record.task.id, a.number, a.worker, a.token, a.started_at, a.ended_at, a.outcome, encode_error(a.error))
        for a in record.attempts if a.ended_at is not None
    ]  # fmt: skip


def _edge(task: str, edge: EdgeResult) -> Row:
    outcome = None if edge.outcome is None else NUMBERS[edge.outcome]
    return task, edge.task, ON_FAILURE_NUMBERS[edge.on_failure], outcome, None if edge.result is None else edge.result.decode()
