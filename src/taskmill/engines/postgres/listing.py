"""Which tasks match a filter, newest first. Every branch goes by an index that has the order of a page, or by one that holds only few.

Tasks that live and those that ended lie in tables of their own, so a filter on states is answered by one branch for each kind: the first page of a listing is
most often full of what was submitted last, so a bounded look at that comes first, and only where it finds too few the whole branch is asked.
"""

from __future__ import annotations

from typing import Any

from taskmill.engine import Filter
from taskmill.engines.postgres.store import Store
from taskmill.engines.postgres.target import quoted
from taskmill.engines.rows import CANCELLED, COMPLETED, DEAD, NUMBERS, PENDING, RETRYING, SCHEDULED, WAITING, json_text
from taskmill.errors import InvalidInput
from taskmill.task import State

__all__ = ["MOST_ROWS", "matching"]

MOST_ROWS = 1_000
WINDOW = 20
"""How many of the newest tasks are looked at for each that is asked for, before other ways are tried."""


class _Statement:
    """A statement made of fixed texts; what the caller gave is bound, never written into it."""

    def __init__(self, schema: str, now: int | None) -> None:
        self.schema = schema
        self.bindings: list[Any] = []
        self._now = now
        self._moment = ""

    def bind(self, value: Any, kind: str) -> str:
        self.bindings.append(value)
        return f"${len(self.bindings)}::{kind}"

    @property
    def now(self) -> str:
        """The store's clock, read once."""
        self._moment = self._moment or f"(SELECT {self.schema}.moment({self.bind(self._now, 'bigint')}))"
        return self._moment


async def matching(store: Store, which: Filter, after: str | None, n: int) -> tuple[list[str], str | None]:
    """Ids of the tasks that match, newest first, and where to go on."""
    if not 0 < n <= MOST_ROWS:
        raise InvalidInput(f"{n} is out of range", code="out_of_range", field="n", hint=f"1 to {MOST_ROWS}")
    if after is not None and not (after.isascii() and after.isdecimal() and int(after) < 1 << 63):
        raise InvalidInput(f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on what the page before answered")
    before = None if after is None else int(after)
    rows: list[Any] = []
    for statement, bindings in statements(quoted(store.schema), which, before, n, store.now()):
        rows = await store.pool.fetch(statement, *bindings)
        if len(rows) == n:
            break
    return [row["id"] for row in rows], str(rows[-1]["seq"]) if len(rows) == n else None


def statements(schema: str, which: Filter, before: int | None, n: int, now: int | None) -> list[tuple[str, list[Any]]]:
    """The ways to a page, the cheapest first; each but the last may find too few."""
    ways = [_by_body(schema, which, before, n, now, window=None)]
    if which.states:
        ways = [_by_body(schema, which, before, n, now, window=WINDOW * n), _by_states(schema, which, before, n, now)]
    return ways


def _by_body(schema: str, which: Filter, before: int | None, n: int, now: int | None, *, window: int | None) -> tuple[str, list[Any]]:
    """From the newest on, by type or tenant where one is given; with a `window`, at most so many are looked at."""
    made = _Statement(schema, now)
    conditions = _conditions(made, which, before, types=False)
    most = made.bind(n, "bigint")
    inner = most if window is None else made.bind(window, "bigint")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    page = f"SELECT b.id, b.seq FROM {schema}.body b {where} ORDER BY b.seq DESC LIMIT {inner}"
    if which.types:
        # Each type's own newest: a page of several types is the newest of those.
        of_type = f"{where} AND b.type = k.type" if where else "WHERE b.type = k.type"
        page = (
            f"SELECT p.id, p.seq FROM unnest({made.bind(sorted(which.types), 'text[]')}) k(type), "
            f"LATERAL (SELECT b.id, b.seq FROM {schema}.body b {of_type} ORDER BY b.seq DESC LIMIT {inner}) p ORDER BY p.seq DESC LIMIT {inner}"
        )
    if window is None:
        return f"SELECT id::text, seq FROM ({page}) found ORDER BY seq DESC", made.bindings
    states = _state_conditions(made, which.states)
    # Each by its id, whatever the planner believes: LIMIT keeps it from reading a whole table to join it.
    text = (
        f"SELECT w.id::text, w.seq FROM ({page}) w LEFT JOIN LATERAL (SELECT t.state, t.ready_at FROM {schema}.task t WHERE t.id = w.id LIMIT 1) t ON true "
        f"LEFT JOIN LATERAL (SELECT e.state FROM {schema}.ended e WHERE e.id = w.id LIMIT 1) e ON true WHERE {states} ORDER BY w.seq DESC LIMIT {most}"
    )
    return text, made.bindings


def _by_states(schema: str, which: Filter, before: int | None, n: int, now: int | None) -> tuple[str, list[Any]]:
    """From the tables of the live, of the failed and of the completed, each with its own newest."""
    made = _Statement(schema, now)
    rest = "".join(f" AND {condition}" for condition in _conditions(made, which, before, types=True))
    most = made.bind(n, "bigint")
    branches = []
    live = [state for state in which.states if NUMBERS[state] < COMPLETED]
    if live:
        states = " OR ".join(_live_condition(made, state) for state in sorted(live))
        branches.append(f"SELECT b.id, b.seq FROM {schema}.task t JOIN {schema}.body b ON b.id = t.id WHERE ({states}){rest} ORDER BY b.seq DESC LIMIT {most}")
    failed = [state for state in (DEAD, CANCELLED) if any(NUMBERS[one] == state for one in which.states)]
    # With its number in the text, so that the partial index is seen to hold it.
    branches += [
        f"SELECT b.id, b.seq FROM {schema}.ended e JOIN {schema}.body b ON b.id = e.id WHERE e.state = {state} AND e.state >= 6"
        f"{rest.replace('b.seq <', 'e.seq <')} ORDER BY e.seq DESC LIMIT {most}"
        for state in failed
    ]
    if State.COMPLETED in which.states:
        branches.append(
            f"SELECT b.id, b.seq FROM {schema}.body b JOIN {schema}.ended e ON e.id = b.id WHERE e.state = {COMPLETED}{rest} ORDER BY b.seq DESC LIMIT {most}"
        )
    union = " UNION ALL ".join(f"({branch})" for branch in branches)
    return f"SELECT id::text, seq FROM ({union}) found ORDER BY seq DESC LIMIT {most}", made.bindings


def _conditions(made: _Statement, which: Filter, before: int | None, *, types: bool) -> list[str]:
    conditions = []
    if before is not None:
        conditions.append(f"b.seq < {made.bind(before, 'bigint')}")
    if types and which.types:
        conditions.append(f"b.type = ANY ({made.bind(sorted(which.types), 'text[]')})")
    if which.queues:
        conditions.append(f"b.queue = ANY ({made.bind(sorted(which.queues), 'text[]')})")
    if which.tenant is not None:
        conditions.append(f"b.tenant = {made.bind(which.tenant, 'text')}" + (" AND b.tenant <> ''" if which.tenant else ""))
    if which.tags:
        conditions.append(f"b.tags @> {made.bind(json_text(dict(which.tags)), 'jsonb')} AND b.tags IS NOT NULL")
    for text, moment in ((">=", which.created_from), ("<", which.created_to)):
        if moment is not None:
            conditions.append(f"b.created_at {text} {made.bind(moment, 'bigint')}")
    return conditions


def _state_conditions(made: _Statement, states: frozenset[State]) -> str:
    """For a row of which task or ended, or neither (it was just pruned), is there."""
    texts = [_live_condition(made, state) if NUMBERS[state] < COMPLETED else f"e.state = {NUMBERS[state]}" for state in sorted(states)]
    return f"({' OR '.join(texts)})"


def _live_condition(made: _Statement, state: State) -> str:
    """What is due reads as pending without anybody having touched it."""
    number = NUMBERS[state]
    if number == PENDING:
        return f"(t.state = 0 OR (t.state IN ({SCHEDULED}, {RETRYING}, {WAITING}) AND t.ready_at <= {made.now}))"
    if number in (SCHEDULED, RETRYING, WAITING):
        return f"(t.state = {number} AND t.ready_at > {made.now})"
    return f"t.state = {number}"
