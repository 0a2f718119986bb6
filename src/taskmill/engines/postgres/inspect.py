"""Inspection: reads for people and surfaces. Each is one statement, so it sees one moment, and holds nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from taskmill.engine import Count, Filter, Page
from taskmill.engines.postgres.connecting import Record
from taskmill.engines.postgres.horizon import Horizon
from taskmill.engines.postgres.listing import matching
from taskmill.engines.postgres.store import Store
from taskmill.engines.rows import (
    CANCEL,
    ON_FAILURE,
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
    decode_progress,
    decode_retry,
    shown_lane,
    state_name,
)
from taskmill.errors import Expired, NotFound, StoreError
from taskmill.task import DEFAULT_DEDUPE_WINDOW, UUID, Attempt, EdgeResult, Gone, State, Task

__all__ = ["attempts", "attempts_of", "counts", "edge", "edges", "ended", "get", "list_tasks", "matching", "missing"]

MOST_PAGES = 1_000
SLICE = 500_000
"""How many tasks are counted in one step when the mark moves."""


async def get(store: Store, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
    queries = store.load("inspect.sql")
    wanted = known_form(ids)
    rows = await store.pool.fetch(queries.tasks, wanted, store.now())
    found: dict[str, Task | Gone] = {row["id"]: _task(row) for row in rows}
    absent = [task for task in wanted if task not in found]
    if absent:
        rows = await store.pool.fetch(queries.known, absent, store.now())
        found |= {task: Gone(task, None if state is None else STATES[state]) for task, state in rows}
    return tuple(found.get(task) for task in ids)


def known_form(ids: Iterable[str]) -> list[str]:
    """Those that can be ids at all: what is none was never seen."""
    return list({task for task in ids if UUID.fullmatch(task)})


def _task(row: Record) -> Task:
    meta: Meta = decode_meta(row["meta"])
    state, ready_at, finished_at, token = row["state"], row["ready_at"], row["finished_at"], row["token"]
    started_at = row["started_at"]
    result = row["result"]
    share, limits, order = shown_lane(meta)
    return Task(
        id=row["id"],
        type=row["type"],
        queue=row["queue"],
        payload=row["payload"].encode(),
        priority=row["priority"],
        state=state_name(state, ready_at or 0, row["now"]),
        version=row["version"],
        run_at=ready_at if state in (SCHEDULED, RETRYING) else row["run_at"],
        executions=row["executions"],
        failures=row["failures"],
        crashes=row["crashes"],
        suspect=bool(row["flags"] & SUSPECT),
        unwind=bool(row["flags"] & UNWIND),
        must_end=row["must_end"],
        phase=row["phase"],
        cancel_requested=bool(row["flags"] & CANCEL),
        limits=limits,
        fair_key=share,
        order_key=order,
        retry=decode_retry(row["retry"]),
        timeout=row["timeout"],
        max_crashes=row["max_crashes"],
        expires_at=row["expires_at"],
        idempotency_key=meta.key,
        idempotency_window=meta.window or DEFAULT_DEDUPE_WINDOW,
        unique=meta.unique,
        tenant=row["tenant"],
        headers=meta.headers,
        tags=meta.tags,
        open_edges=row["open_edges"],
        sealed=bool(row["flags"] & SEALED),
        result=None if result is None else result.encode(),
        error=decode_error(row["error"]),
        progress=decode_progress(row["progress"]),
        worker=row["worker"],
        token=token,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        started_at=started_at if started_at is not None or finished_at is None else row["claimed_at"] if token is not None else None,
        finished_at=finished_at,
    )


async def list_tasks(store: Store, which: Filter, after: str | None, n: int) -> Page:
    ids, cursor = await matching(store, which, after, n)
    return Page(tuple(task for task in await get(store, ids) if isinstance(task, Task)), cursor)


# One task


async def attempts(store: Store, task: str) -> tuple[Attempt, ...]:
    found = await attempts_of(store, [task]) if UUID.fullmatch(task) else {}
    if task not in found:
        raise await missing(store, task)
    return found[task]


async def attempts_of(store: Store, tasks: Sequence[str]) -> dict[str, tuple[Attempt, ...]]:
    """Of those that are there: the attempt that ended a task, or that runs, lies in its own row, all others in theirs."""
    queries = store.load("inspect.sql")
    rows = await store.pool.fetch(queries.last_attempts, tasks)
    earlier: dict[str, list[Attempt]] = {row["id"]: [] for row in rows}
    for task, n, w, t, s, e, o, x in await store.pool.fetch(queries.attempts, tasks):
        if task in earlier:
            earlier[task].append(Attempt(number=n, worker=w, token=t, started_at=s, ended_at=e, outcome=o, error=decode_error(x)))
    return {row["id"]: (*earlier[row["id"]], *_last_attempt(row, earlier[row["id"]])) for row in rows}


def _last_attempt(row: Record, earlier: Sequence[Attempt]) -> Iterator[Attempt]:
    _, state, executions, worker, token, claimed_at, started_at, finished_at, error = row
    if token is None or claimed_at is None or any(attempt.token == token for attempt in earlier):
        return
    name = STATES[state]
    outcome = {State.COMPLETED: "completed", State.DEAD: "failed", State.CANCELLED: "cancelled"}.get(name)
    if outcome is None and name is not State.RUNNING:
        return
    yield Attempt(
        number=executions, worker=worker, token=token, started_at=started_at or claimed_at, ended_at=finished_at, outcome=outcome, error=decode_error(error)
    )


async def missing(store: Store, task: str) -> NotFound | Expired:
    """Why a task that is asked for is not there."""
    if UUID.fullmatch(task) and await store.pool.fetchrow(store.load("inspect.sql").known, [task], store.now()):
        return Expired(f"the record of task {task} is gone", field="task", hint="it was pruned or deleted")
    return NotFound(f"there is no task {task}", field="task")


async def edges(store: Store, pages: dict[tuple[str, int], int], task: str, after: int, n: int) -> tuple[EdgeResult, ...]:
    """`pages`: the numbers of edges at which pages of this process ended, so that the next begins there; only where none did, edges are counted."""
    if not UUID.fullmatch(task):
        return ()
    number = pages.get((task, after))
    rows = await store.pool.fetch(store.load("inspect.sql").edges, task, n, 0 if number is not None else after, number or 0)
    if rows:
        pages[task, after + len(rows)] = rows[-1]["number"]
        while len(pages) > MOST_PAGES:
            del pages[next(iter(pages))]
    return tuple(edge(*row[:4]) for row in map(tuple, rows))


def edge(child: str, on_failure: int, outcome: int | None, result: str | None) -> EdgeResult:
    return EdgeResult(child, ON_FAILURE[on_failure], None if outcome is None else STATES[outcome], None if result is None else result.encode())


async def ended(store: Store, ids: Iterable[str]) -> dict[str, State | None]:
    """The final state of those that ended, None for those that live; what is not there at all is left out."""
    rows = await store.pool.fetch(store.load("inspect.sql").ended, list(ids), store.now())
    found: dict[str, State | None] = {}
    for task, state in rows:
        found[task] = found.get(task) if state is None else STATES[state]
    return found


# The whole store


async def counts(store: Store, bodies: Horizon) -> tuple[Count, ...]:
    """What has completed is all there is less what lives or failed; all there is was counted once, up to a mark."""
    queries = store.load("inspect.sql")
    await _move_mark(store, bodies)
    types = {row["type"] for row in await store.pool.fetch(queries.worker_types)}
    found: dict[tuple[str, str, int, State], tuple[int, int | None]] = {}
    for queue, type_name, priority, state, due, tasks, oldest in await store.pool.fetch(queries.counts, store.now()):
        name = State.PENDING if due and state in (SCHEDULED, RETRYING, WAITING) else State.COMPLETED if state is None else STATES[state]
        _add(found, (queue, type_name, priority, name), tasks, oldest)
        if state is not None:
            _add(found, (queue, type_name, priority, State.COMPLETED), -tasks, None)
    return tuple(
        Count(queue=q, type=t, priority=p, state=s, tasks=n, oldest=oldest, no_worker=s is State.PENDING and t not in types)
        for (q, t, p, s), (n, oldest) in sorted(found.items())
        if n
    )


async def _move_mark(store: Store, bodies: Horizon) -> None:
    """Where the store takes no writes, what is behind the mark is counted each time."""
    queries = store.load("inspect.sql")
    with contextlib.suppress(StoreError):
        until = await bodies.look()
        while await store.pool.fetchval(queries.fold, until, SLICE):
            pass


def _add(found: dict[tuple[str, str, int, State], tuple[int, int | None]], key: tuple[str, str, int, State], tasks: int, oldest: int | None) -> None:
    before, age = found.get(key, (0, None))
    ages = [moment for moment in (age, oldest) if moment is not None and key[3] is State.PENDING]
    found[key] = (before + tasks, min(ages, default=None))
