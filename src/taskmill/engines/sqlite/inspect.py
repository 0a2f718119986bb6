"""Inspection: reads for people and surfaces, apart from the hot path, on a connection of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from taskmill.engine import Count, Filter, Item, Page, Term, WorkerInfo
from taskmill.engines.rows import (
    CANCEL,
    COMPLETED,
    NUMBERS,
    ON_FAILURE,
    PENDING,
    RETRYING,
    SCHEDULED,
    SEALED,
    STATES,
    SUSPECT,
    UNWIND,
    WAITING,
    Meta,
    decode_error,
    decode_meta,
    decode_names,
    decode_progress,
    decode_retry,
    shown_lane,
    state_name,
)
from taskmill.engines.sqlite.sql import Database, load
from taskmill.errors import Expired, InvalidInput, NotFound
from taskmill.task import DEFAULT_DEDUPE_WINDOW, Attempt, EdgeResult, Gone, State, Task

__all__ = ["attempts", "counts", "edges", "ended", "get", "items", "list_tasks", "matching", "registered"]

queries = load("inspect.sql")

MOST_ROWS = 1_000


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


def matching(db: Database, which: Filter, after: str | None, n: int, now: int) -> tuple[list[str], str | None]:
    """Ids of the tasks that match, newest first, and where to go on."""
    if not 0 < n <= MOST_ROWS:
        raise InvalidInput(f"{n} is out of range", code="out_of_range", field="n", hint=f"1 to {MOST_ROWS}")
    conditions, bindings = _conditions(which, now)
    if after is not None:
        if not (after.isascii() and after.isdecimal() and int(after) < 1 << 63):
            raise InvalidInput(f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on what the page before answered")
        conditions.append("task.seq < ?")
        bindings.append(int(after))
    where = " AND ".join(conditions) or "1"
    rows = db.execute(f"SELECT task.seq, task.id FROM taskmill_task task WHERE {where} ORDER BY task.seq DESC LIMIT ?", (*bindings, n)).fetchall()
    return [task for _, task in rows], str(rows[-1][0]) if len(rows) == n else None


def _conditions(which: Filter, now: int) -> tuple[list[str], list[Any]]:
    """Fixed texts only; what the caller gave is bound, never written into the statement."""
    conditions: list[str] = []
    bindings: list[Any] = []
    if which.states:
        texts = []
        for state in which.states:
            text, values = _state_condition(state, now)
            texts.append(text)
            bindings += values
        conditions.append(f"({' OR '.join(texts)})")
    for column, names in (("type", which.types), ("queue", which.queues)):
        if names:
            conditions.append(f"task.{column} IN ({', '.join('?' * len(names))})")
            bindings += sorted(names)
    if which.tenant is not None:
        conditions.append("task.tenant = ? AND task.tenant <> ''" if which.tenant else "task.tenant = ?")
        bindings.append(which.tenant)
    for name, value in which.tags.items():
        conditions.append("task.seq IN (SELECT seq FROM taskmill_tag WHERE name = ? AND value = ?)")
        bindings += [name, value]
    for text, moment in (("task.created_at >= ?", which.created_from), ("task.created_at < ?", which.created_to)):
        if moment is not None:
            conditions.append(text)
            bindings.append(moment)
    return conditions, bindings


def _state_condition(state: State, now: int) -> tuple[str, list[int]]:
    number = NUMBERS[state]
    if number == PENDING:
        return "(task.state = 0 OR task.state IN (1, 2, 4) AND task.ready_at <= ?)", [now]
    if number in (SCHEDULED, RETRYING, WAITING):
        return "(task.state = ? AND task.ready_at > ?)", [number, now]
    if number == COMPLETED:
        return "task.state = 5", []
    # With its number in the text, so that the partial index of that state is seen to hold it.
    return f"(task.state = {number} AND task.state >= 6)" if number > COMPLETED else f"task.state = {number}", []


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
    types = {name for (text,) in db.execute(queries.worker_types) for name in decode_names(text)}
    found: dict[tuple[str, str, int, State], tuple[int, int | None]] = {}
    for queue, type_name, priority, state, due, tasks, oldest in db.execute(queries.counts, (now,)):
        name = State.PENDING if due and state in (SCHEDULED, RETRYING, WAITING) else STATES[state]
        key = (queue, type_name, priority, name)
        before, age = found.get(key, (0, None))
        ages = [moment for moment in (age, oldest) if moment is not None and name is State.PENDING]
        found[key] = (before + tasks, min(ages, default=None))
    return tuple(
        Count(queue=q, type=t, priority=p, state=s, tasks=n, oldest=oldest, no_worker=s is State.PENDING and t not in types)
        for (q, t, p, s), (n, oldest) in sorted(found.items())
    )


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
