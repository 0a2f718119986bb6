"""Finish: every ending of an attempt, applied only under its current lease; and checkpoints and signals, which live under the same rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from operator import itemgetter
from types import MappingProxyType

import msgspec

from taskmill.engine import Checkpoint, Ending, Finished, Outcome, Refusal, Status
from taskmill.engines.refusals import cycle
from taskmill.engines.rows import (
    AWAITS,
    CANCEL,
    CANCELLED,
    CHECKPOINTS,
    COMPLETED,
    DEAD,
    EDGES,
    FAR,
    ORDERED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    SIGNALS,
    STATES,
    SUSPECT,
    UNWIND,
    WAITED,
    WAITING,
    encode_progress,
    json_text,
)
from taskmill.engines.sqlite import edges
from taskmill.engines.sqlite.counting import BLOCK
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.submit import submit, unknown_edge
from taskmill.engines.sqlite.transitions import Moves, Row, fall_slice, read_rows
from taskmill.errors import Conflict, Expired, InvalidInput, NotFound
from taskmill.events import Kind
from taskmill.task import MOST_SIGNAL_BYTES, MOST_SIGNALS, MOST_STEP_BYTES, MOST_STEPS, Edge, ErrorInfo, OnFailure, State

__all__ = ["checkpoint", "crash", "finish", "signal"]

queries = load("finish.sql")

ATTEMPT_OUTCOMES = {
    Ending.RETRY: "failed",
    Ending.SNOOZED: "snoozed",
    Ending.WAITING: "waiting",
    Ending.RELEASED: "released",
    Ending.CRASHED: "crashed",
}


CARELESS = ORDERED | EDGES | WAITED | CHECKPOINTS
"""Flags that make no difference to an end."""
TERMINAL_ENDINGS = {Ending.COMPLETED, Ending.DEAD, Ending.CANCELLED}
ENDINGS = {COMPLETED: Ending.COMPLETED, DEAD: Ending.DEAD, CANCELLED: Ending.CANCELLED}


def finish(step: Step, outcomes: Sequence[Outcome]) -> Finished:
    moves = Moves(step)
    rest = _finish_plain(step, moves, outcomes)
    refused: list[Refusal] = []
    instead: dict[str, State] = {}
    if rest:
        rows = read_rows(step, (outcome.task for outcome in rest))
        for outcome in rest:
            row = rows.get(outcome.task)
            refusal = _apply(moves, row, outcome, instead) if not outcome.then else _apply_with_then(moves, row, outcome, instead)
            if refusal is not None:
                refused.append(refusal)
    more = moves.settle() or fall_slice(step)
    return Finished(tuple(refused), MappingProxyType(instead), more)


def _finish_plain(step: Step, moves: Moves, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Completed tasks that hold nothing but slots and edges end in one update each; answers those that need more.

    The update's guard is the whole lease and the absence of every other flag, so a row it does not match is simply left to the long way.
    """
    if step.listening or "ended" in step.settings.outbox:
        return outcomes
    plain = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETED and not outcome.then]
    if not plain:
        return outcomes
    step.ended = True
    if _finish_known(step, moves, plain):
        return [] if len(plain) == len(outcomes) else [outcome for outcome in outcomes if outcome.ending is not Ending.COMPLETED or outcome.then]
    ended = step.db.executemany(
        queries.complete_plain, [(step.now, outcome.started_after, outcome.task, outcome.token, outcome.worker) for outcome in plain]
    ).fetchall()
    for _, seq, flags, lane, *_ in ended:
        moves.completed(seq, flags, lane)
    counting = step.counting
    counting.moved(Counter((counting.kind(*row[4:]), RUNNING, row[1] >> BLOCK) for row in ended), COMPLETED)
    seqs = {row[0]: row[1] for row in ended}  # by token: an older lease of the same task may stand in the same batch
    _keep_results(step, [(seqs[outcome.token], outcome.result) for outcome in plain if outcome.token in seqs])
    return [outcome for outcome in outcomes if outcome.token not in seqs or outcome.ending is not Ending.COMPLETED]


def _finish_known(step: Step, moves: Moves, plain: Sequence[Outcome]) -> bool:
    """All of them at once, if every row is still as this process claimed it: found by number, nothing read back. Else nothing is done."""
    rows, touched, results, counted = [], [], [], []
    now, leases = step.now, step.leases
    for outcome in plain:
        lease = leases.pop(outcome.token, None)
        if lease is None or lease[1] != outcome.task or lease[2] & ~CARELESS:
            return False
        rows.append((now, outcome.started_after, lease[0], outcome.token, outcome.worker, lease[2]))
        counted.append(lease[4])
        if lease[2] or lease[3] > 0:
            touched.append(lease)
        if outcome.result is not None:
            results.append((lease[0], outcome.result))
    before = step.db.total_changes()
    step.db.execute("SAVEPOINT known")
    seqs = list(map(itemgetter(2), rows))
    rows.sort(key=itemgetter(2))
    step.db.executemany(queries.complete_known, rows)
    complete = step.db.total_changes() - before == len(rows)
    if not complete:
        step.db.execute("ROLLBACK TO known")
    step.db.execute("RELEASE known")
    if complete:
        step.counting.moved_columns(counted, (RUNNING,) * len(counted), seqs, COMPLETED)
        for seq, _, flags, lane, _ in touched:
            moves.completed(seq, flags, lane)
        _keep_results(step, results)
    return complete


def _keep_results(step: Step, results: Sequence[tuple[int, bytes | None]]) -> None:
    kept = [row for row in results if row[1] is not None]
    if kept:
        step.db.executemany(queries.add_result, kept)


def _apply(moves: Moves, row: Row | None, outcome: Outcome, instead: dict[str, State]) -> Refusal | None:
    if row is None:
        return Refusal(outcome.task, outcome.token, "not_found", "there is no such task")
    if not _is_under(row, outcome):
        if _was_applied(moves.step, row, outcome):
            _tell_instead(row, outcome, instead)
            return None
        return Refusal(outcome.task, outcome.token, "stale_lease", "the lease is no longer current; nothing was written")
    if outcome.ending is Ending.WAITING and outcome.tasks:
        refusal = _check_wait(moves.step, outcome)
        if refusal is not None:
            return refusal
    _note_start(moves, row, outcome)
    if row.flags & CANCEL and outcome.ending not in TERMINAL_ENDINGS:
        _record(moves, row, outcome)
        instead[row.id] = STATES[moves.cancel(row)]
        return None
    _APPLY[outcome.ending](moves, row, outcome)
    return None


def _note_start(moves: Moves, row: Row, outcome: Outcome) -> None:
    """What the attempt itself left: a process that died or was killed makes its task suspect, a handler that began lets go of a key held until then."""
    if outcome.suspect or outcome.ending is Ending.CRASHED:
        row.flags |= SUSPECT
    if outcome.started_after is not None or outcome.ending is Ending.CRASHED:
        moves.begun(row)


def _is_under(row: Row, outcome: Outcome) -> bool:
    """Whether the lease is the current one."""
    return row.state == RUNNING and row.token == outcome.token and row.worker == outcome.worker


def _apply_with_then(moves: Moves, row: Row | None, outcome: Outcome, instead: dict[str, State]) -> Refusal | None:
    """End this and start those, or neither: a task that the store refuses takes its outcome back and leaves the lease as it was."""
    step = moves.step
    mark, noted, before, current = step.mark(), moves.note(), copy(row), row is not None and _is_under(row, outcome)
    step.db.execute("SAVEPOINT outcome")
    refusal = _apply(moves, row, outcome, instead)
    if refusal is None and row is not None and current:  # not in a repeat: another may hold the task by now
        refusal = _start_those(step, moves, row, outcome)
    if refusal is not None:
        step.db.execute("ROLLBACK TO outcome")
        step.back_to(mark)
        moves.back_to(noted)
        instead.pop(outcome.task, None)
        for name in Row.__struct_fields__ if row is not None else ():  # the same task may be named again in this batch
            setattr(row, name, getattr(before, name))
    step.db.execute("RELEASE outcome")
    return refusal


def _start_those(step: Step, moves: Moves, row: Row, outcome: Outcome) -> Refusal | None:
    answers = submit(step, outcome.then)
    for answer in answers:
        if answer.status is Status.REFUSED and answer.error is not None:
            return Refusal(outcome.task, outcome.token, "refused", f"the task {answer.id} that follows was refused: {answer.error}")
    if outcome.ending is Ending.WAITING and row.state != CANCELLED and row.must_end is None:
        children = tuple(answer.id for answer in answers)
        refusal = _circle(step, outcome, children)
        if refusal is not None:
            return refusal
        _begin_to_wait(moves, row, outcome, children)
    return None


def _tell_instead(row: Row, outcome: Outcome, instead: dict[str, State]) -> None:
    """In a repeat too: the task came to another state than asked for."""
    if outcome.ending not in TERMINAL_ENDINGS:
        if row.state == CANCELLED:
            instead[row.id] = State.CANCELLED
        elif row.must_end == "cancelled":
            instead[row.id] = STATES[row.state]


def _was_applied(step: Step, row: Row, outcome: Outcome) -> bool:
    """A repeat: this lease was ended by its holder, and in this way. The attempt's record tells, or the row itself where there is none."""
    found = step.db.execute(queries.attempt_outcome, (row.seq, outcome.token, outcome.worker)).fetchone()
    if found is not None:
        ended, by_recovery = found
        return bool(ended == ATTEMPT_OUTCOMES.get(outcome.ending)) and not by_recovery
    if row.state == RUNNING or row.token != outcome.token or row.worker != outcome.worker:
        return False
    if row.state < RUNNING:
        return outcome.ending is Ending.RELEASED
    return outcome.ending is ENDINGS.get(row.state)


def _record(moves: Moves, row: Row, outcome: Outcome) -> None:
    started_at = None if outcome.started_after is None else (row.claimed_at or 0) + outcome.started_after
    moves.attempt(row, ATTEMPT_OUTCOMES[outcome.ending], started_at, outcome.error)


def _completed(moves: Moves, row: Row, outcome: Outcome) -> None:
    row.flags &= ~SUSPECT
    moves.end(row, COMPLETED, result=outcome.result, error=outcome.error, started_after=outcome.started_after)


def _dead(moves: Moves, row: Row, outcome: Outcome) -> None:
    row.failures += 1
    phase = "compensation_failed" if row.flags & UNWIND else None
    moves.end(row, DEAD, error=outcome.error, result=outcome.result, phase=phase, started_after=outcome.started_after)


def _cancelled(moves: Moves, row: Row, outcome: Outcome) -> None:
    moves.end(row, CANCELLED, error=outcome.error, result=outcome.result, started_after=outcome.started_after)


def _retry(moves: Moves, row: Row, outcome: Outcome) -> None:
    _record(moves, row, outcome)
    row.failures += 1
    moves.later(row, RETRYING, moves.step.now + outcome.after, error=outcome.error, started_after=outcome.started_after)


def _snoozed(moves: Moves, row: Row, outcome: Outcome) -> None:
    _record(moves, row, outcome)
    moves.later(row, SCHEDULED, moves.step.now + outcome.after, started_after=outcome.started_after)


def _released(moves: Moves, row: Row, outcome: Outcome) -> None:
    if outcome.started_after is None:
        moves.ready(row, ready_at=row.ready_at, keep_lease=True, executions=row.executions - 1)
        return
    _record(moves, row, outcome)
    moves.ready(row, ready_at=row.ready_at, keep_lease=True)


def _crashed(moves: Moves, row: Row, outcome: Outcome) -> None:
    _record(moves, row, outcome)
    crash(moves, row, outcome.error, keep_lease=True)


def crash(moves: Moves, row: Row, error: ErrorInfo | None, *, keep_lease: bool) -> None:
    """One crash more; past the most that it may have the task is poison. A cancel that was asked for comes first."""
    row.crashes += 1
    if row.flags & CANCEL:
        moves.cancel(row)
        return
    most = moves.step.db.execute(queries.max_crashes, (row.seq,)).fetchone()[0]
    code = "lease_lost" if error is None else error.code
    if row.crashes <= most:
        moves.ready(row, ready_at=row.ready_at, keep_lease=keep_lease, crashed=code)
    elif row.flags & UNWIND and row.must_end is None:
        moves.ready(row, ready_at=moves.step.now, must_end="poison", keep_lease=keep_lease, crashed=code)
    else:
        poison = ErrorInfo("poison", f"its worker died {row.crashes} times" + (f": {error.message}" if error else ""))
        moves.end(row, DEAD, error=poison, phase="compensation_failed" if row.flags & UNWIND else None)


def _check_wait(step: Step, outcome: Outcome) -> Refusal | None:
    """Whether it may wait for these: they are known, and none of them waits for it."""
    children = edges.awaited(step, outcome.tasks)
    for task in outcome.tasks:
        if task not in children:
            return Refusal(outcome.task, outcome.token, "unknown_edge", unknown_edge(task).message)
    return _circle(step, outcome, outcome.tasks)


def _circle(step: Step, outcome: Outcome, tasks: Collection[str]) -> Refusal | None:
    return Refusal(outcome.task, outcome.token, "refused", cycle().message) if edges.reaches(step, tasks, outcome.task) else None


def _waiting(moves: Moves, row: Row, outcome: Outcome) -> None:
    _record(moves, row, outcome)
    if not outcome.then:
        _begin_to_wait(moves, row, outcome, ())


def _begin_to_wait(moves: Moves, row: Row, outcome: Outcome, children: tuple[str, ...]) -> None:
    step = moves.step
    on_failure = OnFailure(outcome.on_failure)
    failed = False
    tasks = dict.fromkeys((*outcome.tasks, *children))
    if tasks:
        opened, failed = edges.link(step, row.seq, [Edge(task, on_failure) for task in tasks], edges.awaited(step, tasks))
        row.open_edges += opened
        row.flags |= EDGES
    awaits = None
    if outcome.signals and not _has_come(step, row, outcome):
        awaits = json_text([outcome.seen, list(outcome.signals)])
        row.flags |= AWAITS
    moves.wait(row, deadline=FAR if outcome.deadline is None else step.now + outcome.deadline, awaits=awaits)
    if failed:
        moves.cancel(row, ErrorInfo("edge_failed", "a task it waits for did not complete"), reason="edge_failed")
    elif row.open_edges == 0 and not row.flags & AWAITS and (outcome.tasks or children or outcome.signals):
        moves.ready(row, ready_at=step.now, keep_lease=True)


def _has_come(step: Step, row: Row, outcome: Outcome) -> bool:
    """A signal that it would wait for is there already, behind the last it has seen."""
    if not row.flags & SIGNALS:
        return False
    names = {name for (name,) in step.db.execute(queries.signal_names, (row.seq, outcome.seen))}
    return not names.isdisjoint(outcome.signals)


_APPLY = {
    Ending.COMPLETED: _completed,
    Ending.RETRY: _retry,
    Ending.DEAD: _dead,
    Ending.SNOOZED: _snoozed,
    Ending.WAITING: _waiting,
    Ending.CANCELLED: _cancelled,
    Ending.RELEASED: _released,
    Ending.CRASHED: _crashed,
}


def checkpoint(step: Step, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
    refused = []
    rows = read_rows(step, {entry.task for entry in entries})
    for entry in entries:
        row = rows.get(entry.task)
        if row is None or row.state != RUNNING or row.token != entry.token or row.worker != entry.worker:
            refused.append(Refusal(entry.task, entry.token, "stale_lease" if row else "not_found", "the lease is no longer current; nothing was written"))
        elif (refusal := _too_much(step, row, entry)) is not None:
            refused.append(refusal)
        else:
            _began(step, row, entry)
            _save_checkpoint(step, row, entry)
    return tuple(refused)


def _too_much(step: Step, row: Row, entry: Checkpoint) -> Refusal | None:
    """A claim brings all steps of its task, so they are bounded."""
    if entry.name is None:
        return None
    steps, size = step.db.execute(queries.other_steps, (row.seq, entry.name)).fetchone() if row.flags & CHECKPOINTS else (0, 0)
    if steps >= MOST_STEPS:
        return Refusal(entry.task, entry.token, "too_many_steps", f"the task has {steps} steps already; nothing was written")
    if size + len(entry.name.encode()) + len(entry.value) > MOST_STEP_BYTES:
        return Refusal(entry.task, entry.token, "steps_too_large", f"the steps of a task have at most {MOST_STEP_BYTES} bytes; nothing was written")
    return None


def _began(step: Step, row: Row, entry: Checkpoint) -> None:
    """Its handler runs. That is no change of the task, so it has no version and no event."""
    if entry.started_after is not None:
        step.db.execute(queries.set_started, (entry.started_after, row.seq))
        Moves(step).begun(row)


def _save_checkpoint(step: Step, row: Row, entry: Checkpoint) -> None:
    if entry.name is None and entry.progress is None and entry.unwind is None and entry.phase is None:
        return
    flags = row.flags
    if entry.name is not None:
        step.db.execute(queries.save_checkpoint, (row.seq, entry.name, entry.value))
        flags |= CHECKPOINTS
    if entry.unwind is not None:
        flags = flags | UNWIND if entry.unwind else flags & ~UNWIND
    progress = None if entry.progress is None else encode_progress(entry.progress)
    step.db.execute(queries.save_progress, (flags, progress, entry.phase, step.now, row.seq))
    row.flags = flags
    row.version += 1
    data = {"value": entry.progress.value, "message": entry.progress.message} if entry.progress else {"checkpoint": entry.name}
    step.event(Kind.PROGRESS, row.id, row.version, row.facts() | data)


def signal(step: Step, task: str, name: str, data: bytes, signal_id: str) -> int:
    row = read_rows(step, (task,)).get(task)
    if row is None:
        if step.db.execute(queries.is_known, (task, step.now)).fetchone():
            raise Expired(f"the record of task {task} is gone", field="task")
        raise NotFound(f"there is no task {task}", field="task")
    sent = step.db.execute(queries.sent_signal, (row.seq, signal_id)).fetchone()
    if sent is not None:
        return int(sent[0])
    if row.state >= COMPLETED:
        raise Conflict(f"task {task} has ended ({STATES[row.state]})", code="terminal", field="task", hint="a signal reaches live tasks only")
    if row.flags & SIGNALS:
        signals, size = step.db.execute(queries.signal_size, (row.seq,)).fetchone()
        _check_signals(signals, size + len(name.encode()) + len(data))
    number: int = step.db.execute(queries.add_signal, (row.seq, signal_id, name, data, step.now)).fetchone()[0]
    _deliver(step, row, name, number)
    return number


def _check_signals(signals: int, size: int) -> None:
    """A claim brings all signals of its task, so they are bounded."""
    if signals >= MOST_SIGNALS:
        raise InvalidInput(f"the task has {signals} signals already", code="too_many_signals", field="task", hint=f"at most {MOST_SIGNALS} to one task")
    if size > MOST_SIGNAL_BYTES:
        hint = f"at most {MOST_SIGNAL_BYTES} bytes to one task; send a pointer"
        raise InvalidInput("the signals of the task are too large", code="signals_too_large", field="data", hint=hint)


def _deliver(step: Step, row: Row, name: str, number: int) -> None:
    flags = row.flags | SIGNALS
    awaited = row.flags & AWAITS and row.state == WAITING and _awaited(step, row, name, number)
    row.flags = flags & ~AWAITS if awaited else flags
    step.db.execute(queries.set_flags, (row.flags, step.now, row.seq))
    row.version += 1
    step.event(Kind.SIGNALLED, row.id, row.version, row.facts() | {"name": name, "number": number})
    if awaited and row.open_edges == 0:
        moves = Moves(step)
        moves.ready(row, ready_at=step.now, keep_lease=True)
        moves.settle()


def _awaited(step: Step, row: Row, name: str, number: int) -> bool:
    seen, names = msgspec.json.decode(step.db.execute(queries.awaits, (row.seq,)).fetchone()[0])
    return number > seen and name in names
