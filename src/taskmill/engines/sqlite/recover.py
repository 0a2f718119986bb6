"""Maintenance steps, bounded: leases of dead workers, what time has changed, retention."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from taskmill import codec
from taskmill.clock import MINUTE, SECOND
from taskmill.engine import Moved, Retention, Term
from taskmill.engines.rows import CANCEL, CANCELLED, COMPLETED, DEAD, PENDING, REJECTED, RUNNING, decode_meta, json_text
from taskmill.engines.sqlite import lanes
from taskmill.engines.sqlite.finish import crash
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import Moves, Row, fall_slice
from taskmill.errors import StaleTerm, TaskmillError
from taskmill.events import Kind
from taskmill.task import DEFAULT_DEDUPE_WINDOW, STORED, ErrorInfo, NewTask, OnLimit, TypeSettings, resolve

__all__ = ["check_term", "give_back", "leave", "newest", "prune", "purge", "recover"]

queries = load("recover.sql")

PLAIN_SLICE = 2_000
"""Delayed tasks of plain lines that one step of recovery settles."""


def recover(step: Step, dead: Collection[str], n: int, back: int = 0) -> Moved:
    """Up to n leases of these workers are lost; then a slice of everything that only time, an earlier step or a clock that was set `back` has decided."""
    moved, lost = 0, []
    moves = Moves(step)
    for worker in dead:
        rows = [Row(*row) for row in step.db.execute(queries.held_by, (worker, n - moved)).fetchall()]
        for row in rows:
            moves.attempt(row, "crashed", None, ErrorInfo("lease_lost", f"worker {worker} was not heard of any more"))
            crash(moves, row, None, keep_lease=False)
        moved += len(rows)
        if moved >= n:
            break
        step.db.execute(queries.drop_worker, (worker,))
        step.event(Kind.WORKER_LOST, worker, 0)
        lost.append(worker)
    more = moves.settle()
    expired = _expire(step, n)
    more |= lanes.open_due(step)
    lanes.settle_plain(step, PLAIN_SLICE)
    more |= fall_slice(step)
    more |= _move_types(step, n)
    more |= back > 0 and _pull_pending(step, back, n)
    return Moved(moved + expired, more or moved >= n or expired >= n, tuple(lost))


def _expire(step: Step, n: int) -> int:
    """Tasks whose time is over before they run. One that runs is looked at again later; one that must end already is left to its handler."""
    moves = Moves(step)
    due = step.db.execute(queries.due_expiries, (step.now, n)).fetchall()
    for at, seq in due:
        step.db.execute(queries.drop_expiry, (at, seq))
        found = step.db.execute(queries.row, (seq,)).fetchone()
        row = None if found is None else Row(*found)
        if row is None or row.state >= COMPLETED or row.must_end is not None:
            continue
        if row.state == RUNNING:
            step.db.execute(queries.add_expiry, (step.now + SECOND, seq))
        else:
            moves.cancel(row, ErrorInfo("expired", "its deadline (expires) has passed"), reason="expired")
    moves.settle()
    return len(due)


def newest(step: Step) -> int:
    """When the last task was submitted, by the clock of that time."""
    found = step.db.execute(queries.newest).fetchone()
    return 0 if found is None else found[0]


def _pull_pending(step: Step, back: int, n: int) -> bool:
    """What was pending before the clock was set back stays due, and in its order; whether there may be more. (A claim of plain tasks asks for their time.)"""
    until = step.now + back + MINUTE  # something may have become ready after the clock was last looked at
    found = [
        seq
        for (queue,) in step.db.execute(queries.queues).fetchall()
        for priority in range(4)
        for (seq,) in step.db.execute(queries.pending_ahead, (-queue, priority, step.now, until, n)).fetchall()
    ]
    step.db.executemany(queries.pull, [(back, step.now, seq) for seq in found])
    if found:
        step.counting.set_back()
    step.woke |= bool(found)
    return bool(found)


def _move_types(step: Step, n: int) -> bool:
    """Tasks of a type that got limits or a fair key after they were submitted move from the plain line into its lanes, a slice at a time."""
    found = step.db.execute(queries.first_moving).fetchone()
    if found is None:
        return False
    type_name, after = found
    settings = step.settings.types.get(type_name)
    rows = step.db.execute(queries.plain_of_type, (type_name, after, n)).fetchall() if settings is not None else []
    stirred: set[int] = set()
    for seq, lane, state, payload, tenant, text, queue, priority, ready_at in rows:
        if lane < 0 and state < RUNNING and settings is not None and not decode_meta(text).own:
            target = _move(step, NewTask(type=type_name, payload=payload, tenant=tenant), settings, (seq, lane, text))
            if target and state != PENDING and ready_at <= step.now:
                kind = step.counting.kind(queue, type_name, priority)
                step.counting.left(kind, state, seq)
                step.counting.came(kind, PENDING, seq, ready_at)
            if target > 0:
                stirred.add(target)
    lanes.refresh(step, stirred)
    if len(rows) < n:
        step.db.execute(queries.drop_moving, (type_name,))
    else:
        step.db.execute(queries.advance_moving, (rows[-1][0], type_name))
    return True


def _move(step: Step, new: NewTask, settings: TypeSettings, row: tuple[int, int, str | None]) -> int:
    seq, lane, text = row
    try:
        resolved = resolve(new, settings, STORED)
    except TaskmillError:  # its payload has no such key: it stays in the plain line, as it was accepted
        return 0
    reject = resolved.on_limit is OnLimit.REJECT
    target = step.lane_id(-lane, resolved.share, lanes.limits_of_lane(step, resolved.limits, reject=reject))
    step.db.execute(queries.move, (target, step.now, seq))
    meta = replace(decode_meta(text), limits=resolved.limits, share=resolved.share, reject=reject)
    step.db.execute(queries.set_meta, (json_text(meta), seq))
    return target


def leave(step: Step, worker: str) -> None:
    """What it still held is released, as if it had never been started."""
    give_back(step, worker, 1 << 62, frozenset())
    if step.db.execute(queries.drop_worker, (worker,)).fetchone() is not None:
        step.event(Kind.WORKER_LEFT, worker, 0)


def give_back(step: Step, worker: str, request: int, named: Collection[int]) -> int:
    """Leases of requests up to this one that the worker does not name never reached it."""
    moves = Moves(step)
    rows = [Row(*row) for row in step.db.execute(queries.held_up_to, (worker, request)).fetchall() if row[14] not in named]
    for row in rows:
        if row.flags & CANCEL:
            moves.cancel(row)
        else:
            moves.ready(row, ready_at=row.ready_at, executions=row.executions - 1)
    moves.settle()
    return len(rows)


def check_term(step: Step, term: Term) -> None:
    if not step.check_term(term.role, term.holder, term.number):
        raise StaleTerm(f"term {term.number} of {term.role} is over", field="term", hint="lead again before you write")


def prune(step: Step, n: int, term: Term, retention: Retention) -> Moved:
    check_term(step, term)
    moved = 0
    for state, kept in ((COMPLETED, retention.completed), (DEAD, retention.dead), (CANCELLED, retention.cancelled)):
        rows = step.db.execute(queries.old, (state, step.now - kept, n - moved)).fetchall()
        for seq, task, version, created_at, flags in rows:
            purge(step, seq, task, state, version, created_at, flags)
        moved += len(rows)
        if moved >= n:
            return Moved(moved, True)
    moved += _forget(step, n)
    return Moved(moved, moved >= n)


def drop_results(step: Step, n: int, term: Term, kept: int, after: tuple[int, int]) -> tuple[Moved, tuple[int, int]]:
    """Results of tasks that completed longer ago than `kept`, behind `after` (when it ended, its number): a pass over them costs once, not every minute. A task
    that owes its result to others ends the pass until it is delivered."""
    check_term(step, term)
    rows = step.db.execute(queries.with_results, (*after, step.now - kept, n)).fetchall()
    moved = 0
    for seq, finished_at, stored, owes in rows:
        if owes:
            return Moved(moved, False), after
        if stored:
            step.db.execute(queries.keep_results, (seq,))
            step.db.execute(queries.drop_result, (seq,))
            moved += 1
        after = (finished_at, seq)
    return Moved(moved, len(rows) == n), after


def purge(step: Step, seq: int, task: str, state: int, version: int, created_at: int, flags: int) -> None:
    """Remove a record; its id stays known for its window (unless it was rejected), and its result with those who waited for it."""
    payload, text = step.db.execute(queries.body, (seq,)).fetchone()
    meta = decode_meta(text)
    until = created_at + (meta.window or DEFAULT_DEDUPE_WINDOW)
    if until > step.now and not flags & REJECTED:
        step.db.execute(queries.add_known, (task, state, version, codec.payload_hash(payload), until))
    if meta.tags:
        step.db.executemany(queries.drop_tag, [(name, value, seq) for name, value in meta.tags.items()])
    for statement in (
        queries.keep_results,
        queries.drop_ending,
        queries.drop_edges,
        queries.drop_attempts,
        queries.drop_checkpoints,
        queries.drop_body,
    ):
        step.db.execute(statement, (seq,))
    step.counting.left(step.counting.kind(*step.db.execute(queries.drop_task, (seq,)).fetchone()), state, seq)


def _forget(step: Step, n: int) -> int:
    """Entries whose window has passed, and lanes, shares and counters that nothing needs any more."""
    forgotten = sum(
        len(step.db.execute(statement, (step.now, n)).fetchall()) for statement in (queries.forget_known, queries.forget_dedupe, queries.forget_taken)
    )
    gone = len(step.db.execute(queries.forget_lanes, (n,)).fetchall())
    gone += len(step.db.execute(queries.forget_shares, (n,)).fetchall())
    for number, name, newest in step.db.execute(queries.idle_counters, (step.now, n)).fetchall():
        empty_at = 0 if newest is None else newest + step.settings.limit(name).window
        if empty_at > step.now:  # its window was made longer since
            step.db.execute(queries.set_idle_at, (empty_at, number))
        elif step.db.execute(queries.forget_counter, (number,)).fetchall():
            step.db.execute(queries.forget_starts, (number,))
            gone += 1
    if gone:  # other processes remember them by number
        step.settings_changed = True
        step.forget_names()
    return forgotten + gone
