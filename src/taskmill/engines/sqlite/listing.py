"""Lists that cost their page: which tasks match a filter, newest first.

A tenant, a tag, a type or a final failure has an index in the order of a list. For everything else the kept counts say in which blocks of numbers such tasks
stand, and only those blocks are read. Times map to blocks by the spans in which a block's tasks were created.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

from taskmill.engine import Filter
from taskmill.engines.rows import COMPLETED, NUMBERS, PENDING, RETRYING, RUNNING, SCHEDULED, WAITING
from taskmill.engines.sqlite.counting import BLOCK
from taskmill.engines.sqlite.sql import Database, load, one_moment
from taskmill.errors import InvalidInput
from taskmill.task import State

__all__ = ["matching"]

queries = load("listing.sql")

MOST_ROWS = 1_000
CHUNK = 64
"""Blocks of one kind and state that are looked up at once."""
MOST_DUE = 10_000
"""Tasks that came due and are not pending by their row yet: more are not looked up one by one."""

FAILED = frozenset({State.DEAD, State.CANCELLED})

Rows = list[tuple[int, str]]


def matching(db: Database, which: Filter, after: str | None, n: int, now: int) -> tuple[list[str], str | None]:
    """Ids of the tasks that match, newest first, and where to go on."""
    if not 0 < n <= MOST_ROWS:
        raise InvalidInput(f"{n} is out of range", code="out_of_range", field="n", hint=f"1 to {MOST_ROWS}")
    below = (1 << 62) if after is None else _number(after)
    look = _by_index if _has_an_index(which) else _by_blocks
    with one_moment(db):
        rows = look(db, which, below, n, now)
    return [task for _, task in rows], str(rows[-1][0]) if len(rows) == n else None


def _number(after: str) -> int:
    if not (after.isascii() and after.isdecimal() and int(after) < 1 << 63):
        raise InvalidInput(f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on what the page before answered")
    return int(after)


def _has_an_index(which: Filter) -> bool:
    """One whose order is that of the list; or there is no condition at all."""
    if which.tenant or which.tags:
        return True
    timed = which.created_from is not None or which.created_to is not None
    if which.queues or timed:
        return False
    if which.types:
        return len(which.types) == 1 and not which.states
    return which.states <= FAILED and len(which.states) <= 1 if which.states else which.tenant is None


def _by_index(db: Database, which: Filter, below: int, n: int, now: int) -> Rows:
    conditions, bindings = _conditions(which, now, "task.")
    source, order = "taskmill_task task", "task.seq"
    if which.tags and not which.tenant:  # the first tag leads the way; its index has the order of the list
        (name, value), *_ = which.tags.items()
        source, order = "taskmill_tag CROSS JOIN taskmill_task task ON task.seq = taskmill_tag.seq", "taskmill_tag.seq"
        conditions = ["taskmill_tag.name = ? AND taskmill_tag.value = ?", *conditions]
        bindings = [name, value, *bindings]
    where = " AND ".join([*conditions, f"{order} < ?"])
    return db.execute(f"SELECT task.seq, task.id FROM {source} WHERE {where} ORDER BY {order} DESC LIMIT ?", (*bindings, below, n)).fetchall()


def _by_blocks(db: Database, which: Filter, below: int, n: int, now: int) -> Rows:
    conditions, bindings = _conditions(which, now, "+task.")
    where = " AND ".join([*conditions, "task.seq >= ? AND task.seq < ?"])
    statement = f"SELECT task.seq, task.id FROM taskmill_task task WHERE {where} ORDER BY task.seq DESC LIMIT ?"
    rows: Rows = []
    for block in _blocks(db, which, below >> BLOCK, now):
        until = min((block + 1) << BLOCK, below)
        rows += db.execute(statement, (*bindings, block << BLOCK, until, n - len(rows))).fetchall()
        if len(rows) == n:
            break
    return rows


# Where such tasks stand


def _blocks(db: Database, which: Filter, last: int, now: int) -> Iterator[int]:
    """The blocks in which there may be tasks of a filter, the newest first."""
    times = None
    if which.created_from is not None or which.created_to is not None:
        since, until = which.created_from or 0, (1 << 62) if which.created_to is None else which.created_to
        times = [block for (block,) in db.execute(queries.span_blocks, (last, since, until))]
        if not (which.states or which.types or which.queues):
            yield from times
            return
    allowed = None if times is None else set(times)
    seen = -1
    for block in heapq.merge(*_streams(db, which, last, now), reverse=True):
        if block != seen and (allowed is None or block in allowed):
            seen = block
            yield block


def _streams(db: Database, which: Filter, last: int, now: int) -> Iterator[Iterable[int]]:
    """One for every kind and state that match and are not empty."""
    states = {NUMBERS[state] for state in which.states} or set(range(8))
    if PENDING in states:
        due = [seq for (seq,) in db.execute(queries.due, (now, MOST_DUE)).fetchall()]
        yield sorted({seq >> BLOCK for seq in due if seq >> BLOCK <= last}, reverse=True)
        if len(due) == MOST_DUE:
            states |= {SCHEDULED, RETRYING, WAITING}
    kinds = [
        (kind, state)
        for kind, queue, type_name, state in db.execute(queries.kinds).fetchall()
        if (not which.queues or queue in which.queues) and (not which.types or type_name in which.types)
    ]
    yield from (_blocks_of(db, kind, state, last) for kind, state in kinds if state in states)
    if RUNNING in states and any(state == PENDING for _, state in kinds):  # where the counts have those that run
        yield [block for (block,) in db.execute(queries.running_blocks, (last,))]


def _blocks_of(db: Database, kind: int, state: int, last: int) -> Iterator[int]:
    blocks = [(last + 1,)]
    while blocks:
        blocks = db.execute(queries.blocks, (kind, state, blocks[-1][0], CHUNK)).fetchall()
        yield from (block for (block,) in blocks)


# The conditions themselves


def _conditions(which: Filter, now: int, task: str) -> tuple[list[str], list[Any]]:
    """Fixed texts only; what the caller gave is bound, never written into the statement. A plus in `task`, before a column, keeps it from an index."""
    conditions: list[str] = []
    bindings: list[Any] = []
    if which.states:
        texts = []
        for state in which.states:
            text, values = _state_condition(state, now, task)
            texts.append(text)
            bindings += values
        conditions.append(f"({' OR '.join(texts)})")
    for column, names in (("type", which.types), ("queue", which.queues)):
        if names:
            conditions.append(f"{task}{column} IN ({', '.join('?' * len(names))})")
            bindings += sorted(names)
    if which.tenant is not None:
        conditions.append(f"{task}tenant = ? AND {task}tenant <> ''" if which.tenant else f"{task}tenant = ?")
        bindings.append(which.tenant)
    for name, value in which.tags.items():
        conditions.append(f"EXISTS (SELECT 1 FROM taskmill_tag tags WHERE tags.name = ? AND tags.value = ? AND tags.seq = {task.lstrip('+')}seq)")
        bindings += [name, value]
    for text, moment in ((f"{task}created_at >= ?", which.created_from), (f"{task}created_at < ?", which.created_to)):
        if moment is not None:
            conditions.append(text)
            bindings.append(moment)
    return conditions, bindings


def _state_condition(state: State, now: int, task: str) -> tuple[str, list[int]]:
    number = NUMBERS[state]
    if number == PENDING:
        return f"({task}state = 0 OR {task}state IN (1, 2, 4) AND {task}ready_at <= ?)", [now]
    if number in (SCHEDULED, RETRYING, WAITING):
        return f"({task}state = ? AND {task}ready_at > ?)", [number, now]
    # With its number in the text, so that the partial index of a final failure is seen to hold it.
    return f"({task}state = {number} AND {task}state >= 6)" if number > COMPLETED else f"{task}state = {number}", []
