"""The arrows of a task's life, and what each of them owes to lanes, limits, unique keys, edges, outbox and events.

Verbs decide, `Moves` writes. Everything that concerns other rows (slots, lanes, edges) is gathered and done once by `settle`, so a batch of 500 ends
touches each limit and each parent once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from taskmill.engines.rows import (
    AWAITS,
    CANCEL,
    CANCELLED,
    COMPLETED,
    DEAD,
    FAR,
    ON_FAILURE,
    ORDERED,
    PENDING,
    RUNNING,
    SCHEDULED,
    SEALED,
    SIGNALS,
    STATES,
    SUSPECT,
    UNIQUE_ENDED,
    UNIQUE_STARTED,
    UNWIND,
    WAITED,
    WAITING,
    encode_error,
    facts,
)
from taskmill.engines.sqlite import lanes
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.events import of_state
from taskmill.task import ErrorInfo, OnFailure

__all__ = ["EDGE_SLICE", "Moves", "Row", "fall_slice", "read_rows"]

queries = load("transitions.sql")

EDGE_SLICE = 250
"""Edges applied in one step; a task that more are waiting for falls in slices."""


class Row(msgspec.Struct):
    """A task's row as a transition reads it; the order is that of the query `row`."""

    seq: int
    id: str
    type: str
    queue: str
    tenant: str
    lane: int
    state: int
    ready_at: int
    version: int
    executions: int
    failures: int
    crashes: int
    flags: int
    open_edges: int
    token: int | None
    worker: str | None
    claimed_at: int | None
    must_end: str | None
    priority: int

    def facts(self) -> dict[str, Any]:
        return facts(self.type, self.queue, self.tenant)


def read_rows(step: Step, tasks: Iterable[str]) -> dict[str, Row]:
    return {row[1]: Row(*row) for row in step.db.executemany(queries.row, [(task,) for task in tasks])}


class Moves:
    """The transitions of one step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.freed: dict[int, int] = {}
        self.stirred: set[int] = set()
        self.fallen: list[tuple[int, int]] = []

    def note(self) -> tuple[dict[int, int], set[int], int]:
        """Where a part of the step began that may be taken back."""
        return dict(self.freed), set(self.stirred), len(self.fallen)

    def back_to(self, noted: tuple[dict[int, int], set[int], int]) -> None:
        self.freed, self.stirred = noted[0], noted[1]
        del self.fallen[noted[2] :]

    # Arrivals

    def ready(
        self, row: Row, *, ready_at: int, must_end: str | None = None, keep_lease: bool = False, executions: int | None = None, crashed: str | None = None
    ) -> None:
        """The task can be claimed from `ready_at` on. `crashed`: the code of what ended its attempt."""
        told = {} if crashed is None else self._of_attempt(row, crashed, None)
        self._leave_lease(row)
        if must_end is not None:
            row.flags &= ~(CANCEL | AWAITS | SEALED)
            row.crashes = 0
        state = PENDING
        ready_at = min(ready_at, self.step.now)  # its time has come once; if the clock was set back since, it is due all the same
        values = (state, ready_at, row.failures, row.crashes, row.executions if executions is None else executions, row.flags, must_end or row.must_end)
        self.step.db.execute(queries.set_ready, (*values, keep_lease, self.step.now, row.seq))
        self._arrived(row, state, told, ready_at)

    def later(self, row: Row, state: int, ready_at: int, *, error: ErrorInfo | None = None, started_after: int | None = None) -> None:
        """Scheduled or retrying, until `ready_at`; its lease ends with it and stays known, for the repeat of this step."""
        told = self._of_attempt(row, None if error is None else error.code, started_after)
        self._leave_lease(row)
        values = (state, ready_at, row.failures, row.crashes, row.executions, row.flags, row.must_end)
        self.step.db.execute(queries.set_ready, (*values, True, self.step.now, row.seq))
        self._arrived(row, state, told)

    def wake_up(self, row: Row) -> None:
        """Nothing is left to wait for; still no task starts before its time."""
        run_at = self.step.db.execute(queries.run_at, (row.seq,)).fetchone()[0]
        if row.executions == 0 and run_at > self.step.now:
            self.later(row, SCHEDULED, run_at)
        else:
            self.ready(row, ready_at=self.step.now)

    def wait(self, row: Row, *, deadline: int, awaits: str | None) -> None:
        self._leave_lease(row)
        self.step.db.execute(queries.set_waiting, (deadline, row.flags, row.open_edges, awaits, self.step.now, row.seq))
        self.step.woke |= deadline < FAR  # a sleeper may know of nothing that is due as early
        self._arrived(row, WAITING, {})

    def end(
        self,
        row: Row,
        state: int,
        *,
        error: ErrorInfo | None = None,
        result: bytes | None = None,
        phase: str | None = None,
        started_after: int | None = None,
    ) -> None:
        """Completed, dead or cancelled. The attempt that ended it stays in the row; one that ended earlier has its own record."""
        attempt = row.state == RUNNING
        told = self._of_attempt(row, None if error is None else error.code, started_after)
        self._leave_lease(row)
        flags = row.flags & ~(CANCEL | AWAITS | SEALED | (SUSPECT if state == COMPLETED else 0))
        self.step.db.execute(
            queries.set_ended, (state, self.step.now, row.failures, row.crashes, row.executions, flags, phase, attempt, started_after, row.seq)
        )
        if error is not None or result is not None:
            self.step.db.execute(queries.set_ending, (row.seq, result, encode_error(error)))
        self._let_go(row, state)
        self._arrived(row, state, told)
        self.step.ended = True
        owed = {"id": row.id, "type": row.type, "queue": row.queue, "state": STATES[state].value, "version": row.version}
        self.step.owe("ended", row.id, owed)
        if state == DEAD:
            self.step.owe("dead", row.id, owed)

    def cancel(self, row: Row, error: ErrorInfo | None = None, reason: str = "cancelled") -> int:
        """Cancelled; a task that must unwind becomes ready to do so instead. Answers the state it came to."""
        if row.flags & UNWIND and row.must_end is None:
            self.ready(row, ready_at=self.step.now, must_end=reason)
            return PENDING
        self.end(row, CANCELLED, error=error)
        return CANCELLED

    def attempt(self, row: Row, outcome: str, started_at: int | None, error: ErrorInfo | None) -> None:
        """The record of an attempt that did not end its task."""
        values = (row.seq, row.executions, row.worker, row.token, started_at or row.claimed_at, self.step.now, outcome, encode_error(error))
        self.step.db.execute(queries.add_attempt, values)

    def count(self, row: Row, state: int, ready_at: int = 0) -> None:
        """It leaves the state it has for another; `ready_at`, where that is pending."""
        counting = self.step.counting
        kind = counting.kind(row.queue, row.type, row.priority)
        counting.left(kind, row.state, row.seq)
        counting.came(kind, state, row.seq, ready_at)

    def begun(self, row: Row) -> None:
        """Its handler ran: a unique key that it held until then is free."""
        if row.flags & UNIQUE_STARTED:
            self.step.db.execute(queries.release_unique, (row.seq,))

    # What a transition owes

    def _leave_lease(self, row: Row) -> None:
        """Its slot returns. A lane looks for its next task when a waiting one left it, or the one that its order waited for."""
        if row.lane > 0:
            if row.state == RUNNING:
                self.freed[row.lane] = self.freed.get(row.lane, 0) + 1
            if row.state != RUNNING or row.flags & ORDERED:
                self.stirred.add(row.lane)

    def completed(self, seq: int, flags: int, lane: int) -> None:
        """What the end of a task owes that was written without reading its row."""
        if flags & WAITED:
            self.fallen.append((seq, COMPLETED))
        if lane > 0:
            self.freed[lane] = self.freed.get(lane, 0) + 1
            if flags & ORDERED:
                self.step.db.execute(queries.leave_order, (lane, seq))
                self.stirred.add(lane)

    def _let_go(self, row: Row, state: int) -> None:
        if row.flags & (UNIQUE_ENDED | UNIQUE_STARTED):
            self.step.db.execute(queries.release_unique, (row.seq,))
        if row.flags & SIGNALS:
            self.step.db.execute(queries.forget_signals, (row.seq,))
        if row.flags & ORDERED:
            self.step.db.execute(queries.leave_order, (row.lane, row.seq))
        if row.flags & WAITED:
            self.fallen.append((row.seq, state))

    def _of_attempt(self, row: Row, error: str | None, started_after: int | None) -> dict[str, Any]:
        """What an event says of the attempt that ends with it, if one does, and of the error."""
        if not self.step.listening:
            return {}
        told: dict[str, Any] = {} if error is None else {"error": error}
        if row.state == RUNNING:
            told |= {"attempt": row.executions, "duration": max(0, self.step.now - (row.claimed_at or self.step.now) - (started_after or 0))}
        return told

    def _arrived(self, row: Row, state: int, told: dict[str, Any], ready_at: int = 0) -> None:
        self.count(row, state, ready_at)
        row.state = state
        row.version += 1
        if state < RUNNING:
            self.step.woke = True
            if row.lane > 0:
                self.stirred.add(row.lane)
        self.step.event(of_state(STATES[state]), row.id, row.version, row.facts() | told)

    # Other rows, once for the whole step

    def settle(self) -> bool:
        """Apply what was decided. True if edges are left to fall in later slices."""
        more = self._fall()
        if self.freed:
            lanes.give_back(self.step, self.freed)
            self.freed = {}
        if self.stirred:
            lanes.refresh(self.step, self.stirred, left=True)
            self.stirred = set()
        return more

    def _fall(self) -> bool:
        """Edges of tasks that ended here: a few fall at once, many in slices. A cascade of cancels is taken up by the slices too."""
        fallen, self.fallen = self.fallen, []
        if not fallen:
            return False
        db = self.step.db
        states = dict(fallen)
        edges = db.executemany(queries.open_edges, [(seq, 0, EDGE_SLICE // 8) for seq in states]).fetchall()
        most = max(Counter(child for _, _, child, _ in edges).values(), default=0)
        if most == EDGE_SLICE // 8 or len(edges) > EDGE_SLICE * 2 or any(state != COMPLETED for state in states.values()):
            db.executemany(queries.add_falling, fallen)
            return fall_slice(self.step, self)
        self.apply_edges(edges, states)
        return False

    def apply_edges(self, edges: list[tuple[int, int, int, int]], states: dict[int, int]) -> None:
        """Edges (id, parent, child, on_failure) fall with their child's state."""
        fallen: list[tuple[int, int]] = []
        counts: dict[int, int] = {}
        cancelled: set[int] = set()
        for edge, parent, child, on_failure in edges:
            state = states[child]
            if state != COMPLETED and ON_FAILURE[on_failure] is OnFailure.HOLD:
                continue
            fallen.append((state, edge))
            counts[parent] = counts.get(parent, 0) + 1
            if state != COMPLETED and ON_FAILURE[on_failure] is OnFailure.CANCEL:
                cancelled.add(parent)
        self.step.db.executemany(queries.set_outcome, fallen)
        for found in self.step.db.executemany(queries.lower_edges, [(n, parent) for parent, n in counts.items()]).fetchall():
            self._waiter(Row(*found), found[0] in cancelled)

    def _waiter(self, row: Row, cancelled: bool) -> None:
        if row.state != WAITING:
            return
        if cancelled:
            self.cancel(row, ErrorInfo("edge_failed", "a task it waited for did not complete"), reason="edge_failed")
        elif row.open_edges == 0 and not row.flags & (SEALED | AWAITS):
            self.wake_up(row)


def fall_slice(step: Step, moves: Moves | None = None) -> bool:
    """One slice of the edges that are still to fall; True if there are more. Whoever comes next calls it: claim, finish, recover_lost."""
    first = step.db.execute(queries.first_falling).fetchone()
    if first is None:
        return False
    own = moves or Moves(step)
    budget = EDGE_SLICE
    while first is not None and budget > 0:
        seq, state, after = first
        edges = step.db.execute(queries.open_edges, (seq, after, budget)).fetchall()
        own.apply_edges(edges, {seq: state})
        if len(edges) < budget:
            step.db.execute(queries.drop_falling, (seq,))
        else:
            step.db.execute(queries.advance_falling, (edges[-1][0], seq))
        step.db.executemany(queries.add_falling, own.fallen)
        own.fallen = []
        budget -= len(edges) + 1
        first = step.db.execute(queries.first_falling).fetchone()
    if moves is None:
        own.settle()
    return first is not None
