"""Edges as they are made: onto tasks that are there, were there, or are still to come; and the circles that they would close.

An edge onto a task that is only reserved, or that `restore` has not brought yet, is open and has no child (`COMING`). It is linked when that task comes, and
falls at once if that has ended already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from taskmill.engines.rows import AWAITS, CANCELLED, COMPLETED, EDGES, ON_FAILURE_NUMBERS, SEALED, WAITED, WAITING, json_text
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import Moves, Row
from taskmill.task import Edge, ErrorInfo, OnFailure

__all__ = ["Child", "arrive", "awaited", "cancel_reserved", "coming", "link", "open_waits", "reaches", "settle", "wake_stuck"]

queries = load("edges.sql")

COMING = 0
GONE = -1
MOST_WALKED = 1_000
"""Open edges that a look for circles follows; a longer way round is not seen."""


class Child(NamedTuple):
    """A task that is waited for. `state` None: it is still to come."""

    seq: int
    state: int | None
    flags: int

    def falls(self, on_failure: OnFailure) -> bool:
        return self.state is not None and self.state >= COMPLETED and (self.state == COMPLETED or on_failure is not OnFailure.HOLD)


UNKNOWN = Child(COMING, None, WAITED)
FORGOTTEN = Child(GONE, None, WAITED)


def awaited(step: Step, tasks: Collection[str]) -> dict[str, Child]:
    """Those of these tasks that the store knows, by two statements however many they are."""
    found = {task: Child(*row) for task, *row in step.db.execute(queries.tasks, (json_text(list(tasks)),))} if tasks else {}
    missing = [task for task in tasks if task not in found]
    if missing:
        known = step.db.execute(queries.known, (json_text(missing), step.now))
        found |= {task: UNKNOWN if state is None else Child(GONE, state, WAITED) for task, state in known}
    return found


def link(step: Step, parent: int, edges: Iterable[Edge], children: Mapping[str, Child]) -> tuple[int, bool]:
    """New edges of a task: how many of them are open, and whether one has failed. An edge that it had already stays as it is."""
    opened, failed = 0, False
    for edge in edges:
        child = children[edge.task]
        fallen = child.falls(edge.on_failure)
        values = (parent, child.seq, edge.task, ON_FAILURE_NUMBERS[edge.on_failure], child.state if fallen else None)
        if step.db.execute(queries.add_edge, values).fetchone() is None:
            continue
        opened += not fallen
        failed |= fallen and child.state != COMPLETED and edge.on_failure is OnFailure.CANCEL
        if not child.flags & WAITED:
            step.db.execute(queries.mark_waited, (WAITED, child.seq))
    step.db.execute(queries.raise_edges, (opened, EDGES, parent))
    return opened, failed


def settle(moves: Moves, seq: int) -> None:
    """A waiting task whose edges may all have fallen: it is cancelled if one has failed, and ready if none is open."""
    row = Row(*moves.step.db.execute(queries.row, (seq,)).fetchone())
    if row.state != WAITING:
        return
    if moves.step.db.execute(queries.failed_edge, (seq,)).fetchone():
        moves.cancel(row, ErrorInfo("edge_failed", "a task it waited for did not complete"), reason="edge_failed")
    elif row.open_edges == 0 and not row.flags & (SEALED | AWAITS):
        moves.wake_up(row)


def wake_stuck(step: Step, after: int, n: int) -> int | None:
    """A slice of the tasks that wait behind number `after`: those whose edges have all fallen and that nobody woke are ready, whatever made them.
    Where to go on; None at the end."""
    rows = step.db.execute(queries.waiting, (after, n)).fetchall()
    moves = Moves(step)
    for seq, stuck in rows:
        if stuck:
            step.db.execute(queries.no_open_edges, (seq,))
            settle(moves, seq)
    moves.settle()
    return rows[-1][0] if len(rows) == n else None


# Tasks that are waited for before they are there


def coming(step: Step, tasks: Collection[str]) -> set[str]:
    """Those of these new tasks that others wait for already. Nearly always there are no such edges, and that is one look."""
    if step.db.execute(queries.any_coming).fetchone() is None:
        return set()
    return {task for (task,) in step.db.execute(queries.coming, (json_text(list(tasks)),))}


def arrive(moves: Moves, task: str, seq: int, state: int) -> None:
    """A task that was waited for is there."""
    moves.step.db.execute(queries.came, (seq, task))
    if state >= COMPLETED:
        moves.fallen.append((seq, state))


def cancel_reserved(moves: Moves, task: str) -> None:
    """It never comes: edges onto it fall under a number that no task will have."""
    if coming(moves.step, (task,)):
        moves.step.seq += 1
        arrive(moves, task, moves.step.seq, CANCELLED)


# Circles


def open_waits(step: Step, starts: Iterable[str]) -> dict[str, set[str]]:
    """What these tasks wait for, what those wait for, and so on, by id."""
    waits: dict[str, set[str]] = {}
    frontier: Sequence[str] = list(starts)
    left = MOST_WALKED
    while frontier and left > 0:
        rows = step.db.execute(queries.open_waits, (json_text(frontier), left)).fetchall()
        for waiter, task in rows:
            waits.setdefault(waiter, set()).add(task)
        left -= len(rows)
        frontier = [task for task in {task for _, task in rows} if task not in waits]
    return waits


def reaches(step: Step, starts: Collection[str], task: str) -> bool:
    """Whether one of these is the task, or waits for it in the end."""
    return task in starts or any(task in targets for targets in open_waits(step, starts).values())
