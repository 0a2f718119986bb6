"""Inspection: reads for people and surfaces, apart from the hot path, on a connection of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from taskmill.engine import Count, Filter, Item, Page, Term, WorkerInfo
from taskmill.engines.rows import (
    CANCEL,
    FAR,
    NUMBERS,
    ON_FAILURE,
    PENDING,
    RETRYING,
    SCHEDULED,
    SEALED,
    STATES,
    SUSPECT,
    UNWIND,
    Meta,
    decode_error,
    decode_meta,
    decode_names,
    decode_progress,
    decode_retry,
    shown_lane,
    state_name,
)
from taskmill.engines.sqlite.listing import matching
from taskmill.engines.sqlite.sql import Database, load, one_moment
from taskmill.errors import Expired, NotFound
from taskmill.task import DEFAULT_DEDUPE_WINDOW, Attempt, EdgeResult, Gone, State, Task

__all__ = ["attempts", "counts", "edges", "ended", "get", "items", "list_tasks", "registered"]

queries = load("inspect.sql")


def get(db: Database, ids: Sequence[str], now: int) -> tuple[Task | Gone | None, ...]:
    found: dict[str, Task | Gone] = {row[1]: _task(row, now) for row in db.executemany(queries.task, [(task,) for task in ids])}
    missing = [(task, now) for task in ids if task not in found]
    if missing:
        found |= {task: Gone(task, None if state is None else STATES[state]) for task, state in db.executemany(queries.known, missing)}
    return tuple(found.get(task) for task in ids)


def _task(row: Sequence[Any], now: int) -> Task:
    _, task, type_name, queue, tenant, state, priority, ready_at, version, executions, failures, crashes, flags, open_edges = row[:14]
    created_at, updated_at, expires_at, finished_at, token, worker, claimed_at, started_at, must_end, phase, progress = row[14:25]
    payload, retry, timeout, max_crashes, run_at, text, result, error = row[25:33]
    meta: Meta = decode_meta(text)
    share, limits, order = shown_lane(meta)
    return Task(
        id=task,
        type=type_name,
        queue=queue,
        payload=payload,
        priority=priority,
        state=state_name(state, ready_at, now),
        version=version,
        run_at=ready_at if state in (SCHEDULED, RETRYING) else run_at,
        executions=executions,
        failures=failures,
        crashes=crashes,
        suspect=bool(flags & SUSPECT),
        unwind=bool(flags & UNWIND),
        must_end=must_end,
        phase=phase,
        cancel_requested=bool(flags & CANCEL),
        limits=limits,
        fair_key=share,
        order_key=order,
        retry=decode_retry(retry),
        timeout=timeout,
        max_crashes=max_crashes,
        expires_at=expires_at,
        idempotency_key=meta.key,
        idempotency_window=meta.window or DEFAULT_DEDUPE_WINDOW,
        unique=meta.unique,
        tenant=tenant,
        headers=meta.headers,
        tags=meta.tags,
        open_edges=open_edges,
        sealed=bool(flags & SEALED),
        result=result,
        error=decode_error(error),
        progress=decode_progress(progress),
        worker=worker,
        token=token,
        created_at=created_at,
        updated_at=updated_at,
        started_at=started_at if started_at is not None or finished_at is None else claimed_at if token is not None else None,
        finished_at=finished_at,
    )


# Listing


def list_tasks(db: Database, which: Filter, after: str | None, n: int, now: int) -> Page:
    ids, cursor = matching(db, which, after, n, now)
    return Page(tuple(task for task in get(db, ids, now) if isinstance(task, Task)), cursor)


# One task


def attempts(db: Database, task: str, now: int) -> tuple[Attempt, ...]:
    row = db.execute(queries.last_attempt, (task,)).fetchone()
    if row is None:
        raise missing(db, task, now)
    seq, state, executions, worker, token, claimed_at, started_at, finished_at, error = row
    earlier = [
        Attempt(number=n, worker=w, token=t, started_at=s, ended_at=e, outcome=o, error=decode_error(x))
        for n, w, t, s, e, o, x in db.execute(queries.attempts, (seq,))
    ]
    if token is None or claimed_at is None or any(attempt.token == token for attempt in earlier):
        return tuple(earlier)
    name = STATES[state]
    failure = decode_error(error)
    outcome = {State.COMPLETED: "completed", State.DEAD: "failed", State.CANCELLED: "cancelled"}.get(name)
    if outcome is None and name is not State.RUNNING:
        return tuple(earlier)
    last = Attempt(number=executions, worker=worker, token=token, started_at=started_at or claimed_at, ended_at=finished_at, outcome=outcome, error=failure)
    return (*earlier, last)


def missing(db: Database, task: str, now: int) -> NotFound | Expired:
    if db.execute(queries.known, (task, now)).fetchone():
        return Expired(f"the record of task {task} is gone", field="task", hint="it was pruned or deleted")
    return NotFound(f"there is no task {task}", field="task")


def edges(db: Database, task: str, after: int, n: int) -> tuple[EdgeResult, ...]:
    rows = db.execute(queries.edges, (task, after, n))
    return tuple(EdgeResult(child, ON_FAILURE[on_failure], None if outcome is None else STATES[outcome], result) for child, on_failure, outcome, result in rows)


def ended(db: Database, ids: Iterable[str], now: int) -> dict[str, State | None]:
    """The final state of those that ended, None for those that live; what is not there at all is left out."""
    wanted = list(ids)
    found: dict[str, State | None] = {
        task: STATES[state] if state >= NUMBERS[State.COMPLETED] else None for task, state in db.executemany(queries.state, [(task,) for task in wanted])
    }
    gone = [(task, now) for task in wanted if task not in found]
    found |= {task: None if state is None else STATES[state] for task, state in db.executemany(queries.known, gone)}
    return found


# The whole store


def counts(db: Database, now: int) -> tuple[Count, ...]:
    with one_moment(db):
        return _counts(db, now)


def _counts(db: Database, now: int) -> tuple[Count, ...]:
    """From what every step keeps. Looked up are the tasks that run, which are kept as pending, and those whose time has come since and that no step has
    touched: few, because maintenance settles them."""
    types = {name for (text,) in db.execute(queries.worker_types) for name in decode_names(text)}
    tasks: Counter[tuple[str, str, int, State]] = Counter()
    oldest: dict[tuple[str, str, int], int] = {}
    for queue, type_name, priority, running in db.execute(queries.running_counts):
        tasks[queue, type_name, priority, State.RUNNING] = running
    for queue, type_name, priority, state, kept, bound in db.execute(queries.counts).fetchall():
        number = kept - tasks[queue, type_name, priority, State.RUNNING] if state == PENDING else kept
        tasks[queue, type_name, priority, STATES[state]] += number
        if state == PENDING and number > 0:
            oldest[queue, type_name, priority] = _oldest(db, queue, type_name, priority, bound, now)
    for queue, type_name, priority, state, due, age in db.execute(queries.due_counts, (now,)):
        tasks[queue, type_name, priority, STATES[state]] -= due
        tasks[queue, type_name, priority, State.PENDING] += due
        oldest[queue, type_name, priority] = min(age, oldest.get((queue, type_name, priority), FAR))
    return tuple(
        Count(
            queue=q, type=t, priority=p, state=s, tasks=n,
            oldest=oldest[q, t, p] if s is State.PENDING else None, no_worker=s is State.PENDING and t not in types,
        )
        for (q, t, p, s), n in sorted(tasks.items()) if n > 0
    )  # fmt: skip


def _oldest(db: Database, queue: str, type_name: str, priority: int, bound: int, now: int) -> int:
    """When the first pending task of a kind became ready: the plain line is read from the age before which there is none, lanes by their heads."""
    found = [
        row[0]
        for statement in (queries.oldest_plain, queries.oldest_in_lanes)
        if (row := db.execute(statement, (queue, type_name, priority, bound)).fetchone()) is not None and row[0] is not None
    ]
    return min(found, default=now)


def items(db: Database, kind: str) -> tuple[Item, ...]:
    """An operator's setting stands over the declared one of the same name."""
    merged = {
        name: Item(kind=kind, name=name, value=value, version=version, operator=bool(operator))
        for name, operator, value, version in db.execute(queries.items, (kind,))
    }
    return tuple(merged.values())


def held_by(db: Database, worker: str) -> list[tuple[str, int, int, bool]]:
    """(task, token, request, cancel requested) of each lease."""
    return [(task, token, request, bool(flags & CANCEL)) for task, token, request, flags in db.execute(queries.held_by, (worker,))]


def workers(db: Database) -> dict[str, int]:
    """Registered workers and how long each may be silent."""
    return dict(db.execute(queries.workers).fetchall())


def registered(db: Database, silences: Mapping[str, int]) -> tuple[WorkerInfo, ...]:
    """Everybody who has joined; `silences` are those of the live file."""
    found = [_worker(row, silences.get(row[0])) for row in db.execute(queries.registered)]
    return tuple(sorted(found, key=lambda worker: (worker.joined_at, worker.id)))


def _worker(row: Sequence[Any], silent: int | None) -> WorkerInfo:
    worker, queues, types, lease, joined_at, info, running, command = row
    return WorkerInfo(
        id=worker,
        queues=tuple(decode_names(queues)),
        types=tuple(decode_names(types)),
        lease=lease,
        joined_at=joined_at,
        silent=silent,
        alive=silent is not None and silent <= lease,
        running=running,
        info=msgspec.json.decode(info),
        command=_command(command),
    )


def _command(value: bytes | None) -> str | None:
    return None if value is None else msgspec.json.decode(value, type=dict[str, Any]).get("command")


def term(db: Database, role: str) -> Term | None:
    """The last term that the store gave, unless its holder resigned."""
    row = db.execute(queries.term, (role,)).fetchone()
    return None if row is None or row[1] is None else Term(role, row[1], row[0])


def commands(db: Database, worker: str) -> tuple[str, ...] | None:
    """What an operator tells this worker; None if it is not registered."""
    row = db.execute(queries.worker, (worker,)).fetchone()
    if row is None:
        return None
    command = _command(row[0])
    return () if command is None else (command,)
