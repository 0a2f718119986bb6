"""Settings as data: what operators put and code declares; schedules' firing; and rates asked for directly."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskmill.engine import Entry, Fired, Item, Joining, Status, Submitted, Taken, Term
from taskmill.engines.rows import (
    CANCEL,
    COMPLETED,
    RUNNING,
    json_text,
)
from taskmill.engines.settings import Settings, check_item
from taskmill.engines.sqlite import lanes
from taskmill.engines.sqlite.recover import check_term
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import EPOCH, Step
from taskmill.engines.sqlite.submit import submit
from taskmill.engines.sqlite.transitions import Moves, Row, read_rows
from taskmill.errors import InvalidInput, NotFound, StaleVersion
from taskmill.events import Kind
from taskmill.task import NewTask, check_key, check_limit, check_name, check_range, check_settings

__all__ = ["drop", "fire", "join", "lead", "outbox", "put", "resign", "take"]

queries = load("settings.sql")
step_queries = load("step.sql")

HOT = {"type", "limit", "queue", "pause", "outbox"}
"""Kinds that every step obeys; a change of them makes all processes read them anew."""


def put(step: Step, kind: str, name: str, value: bytes, version: int | None, *, operator: bool) -> Item:
    check_item(kind, name, value)
    row = step.db.execute(queries.item, (kind, name, operator)).fetchone()
    current = 0 if row is None else row[1]
    if version is not None and current != version:
        if row is not None and current == version + 1 and row[0] == value:
            return Item(kind=kind, name=name, value=value, version=current, operator=operator)
        raise StaleVersion(f"{kind} {name!r} has version {current}, not {version}", field="version", hint="read it again, then put")
    if row is None or row[0] != value or version is not None:
        current += 1
        step.db.execute(queries.put, (kind, name, operator, value, current, "", 0))
        _changed(step, [(kind, name)])
        if operator:
            step.owe("audit", f"{kind}/{name}", {"kind": kind, "name": name, "version": current})
    return Item(kind=kind, name=name, value=value, version=current, operator=operator)


def _changed(step: Step, changes: Sequence[tuple[str, str]]) -> None:
    """Obeyed by every following step at once, this one included. However many changed, they are read once."""
    for kind, name in changes:
        step.event(Kind.SETTING_CHANGED, f"{kind}/{name}", 0)
        step.woke |= kind in HOT or kind == "schedule"
    hot = [(kind, name) for kind, name in changes if kind in HOT]
    if not hot:
        return
    before = step.settings
    step.settings_changed = True
    step.settings = step.settings.again(step.db.execute(step_queries.settings))
    for kind, name in hot:
        if kind == "limit":
            for (counter,) in step.db.execute(queries.shut_counters, (name,)).fetchall():
                lanes.wake(step, lanes.Limit(step, counter))
        elif kind == "type":
            _move_older(step, name, before)


def _move_older(step: Step, name: str, before: Settings) -> None:
    """A type's first limit takes tasks from then on; older ones move into lanes in slices."""
    now, was = step.settings.types.get(name), before.types.get(name)
    if now is not None and was is not None and (now.limits, now.fair) != (was.limits, was.fair):
        step.db.execute(queries.add_moving, (name,))


def drop(step: Step, kind: str, name: str, version: int | None) -> bool:
    row = step.db.execute(queries.item, (kind, name, True)).fetchone()
    if row is None:
        return False
    if version is not None and row[1] != version:
        raise StaleVersion(f"{kind} {name!r} has version {row[1]}, not {version}", field="version", hint="read it again, then drop")
    step.db.execute(queries.drop, (kind, name))
    if kind == "schedule" and step.db.execute(queries.declared, (kind, name)).fetchone() is None:
        step.db.execute(queries.drop_fired, (name,))  # put again some day, it is a new schedule
    step.owe("audit", f"{kind}/{name}", {"kind": kind, "name": name, "version": None})
    _changed(step, [(kind, name)])
    return True


# Workers and what their code declares


def join(step: Step, joining: Joining) -> None:
    check_key(joining.worker, "worker", length=128)
    for queue in joining.queues:
        step.queue(check_name(queue, "queues"))
    for name, settings in joining.types.items():
        check_settings(settings, name)
    declared = [("limit", name, value) for name, value in joining.limits.items()]
    declared += [("type", name, msgspec.json.encode(settings)) for name, settings in joining.types.items()]
    declared += _schedules(step, joining)
    _changed(step, [(kind, name) for kind, name, value in declared if _declare(step, joining, kind, name, value)])
    names = msgspec.json.encode(sorted(joining.types)).decode()
    step.db.execute(queries.join, (joining.worker, json_text(joining.queues), names, joining.lease, step.now, json_text(dict(joining.info))))
    step.event(Kind.WORKER_JOINED, joining.worker, 0)
    step.woke = True


def _declare(step: Step, joining: Joining, kind: str, name: str, value: bytes) -> bool:
    """Code's own setting, never over one of a higher version; whether it is another than before."""
    check_item(kind, name, value)
    row = step.db.execute(queries.declared, (kind, name)).fetchone()
    if row is not None and (row[2] > joining.version or (row[0] == value and row[2] == joining.version)):
        return False
    version = 1 if row is None else row[1] + (row[0] != value)
    step.db.execute(queries.put, (kind, name, False, value, version, joining.app, joining.version))
    return row is None or row[0] != value


def _schedules(step: Step, joining: Joining) -> list[tuple[str, str, bytes]]:
    """A schedule that its own app no longer declares is paused as orphaned; declared again, it goes on."""
    for name in joining.schedules:
        step.db.execute(queries.drop_declared, ("pause", f"schedule:{name}", joining.version))
    orphaned = [
        f"schedule:{name}"
        for name, app_version in step.db.execute(queries.schedules_of, (joining.app,))
        if name not in joining.schedules and app_version <= joining.version
    ]
    return [*(("schedule", name, value) for name, value in joining.schedules.items()), *(("pause", name, b'{"reason":"orphaned"}') for name in orphaned)]


# Leadership: the number is here, the renewal in the live file


def lead(step: Step, role: str, holder: str) -> Term:
    """A new term, with a higher number than any before, also of a store that was made anew: the clock is its epoch, as it is for tokens."""
    number: int = step.db.execute(queries.lead, (role, step.now - EPOCH, holder)).fetchone()[0]
    step.event(Kind.LEADER_CHANGED, role, number, {"holder": holder})
    return Term(role, holder, number)


def resign(step: Step, term: Term) -> bool:
    return step.db.execute(queries.resign, (term.role, term.number, term.holder)).fetchone() is not None


# Schedules


def fire(step: Step, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
    check_term(step, term)
    row = step.db.execute(queries.schedule, (schedule,)).fetchone()
    if row is None:
        raise NotFound(f"there is no schedule {schedule!r}", field="schedule")
    value, current = row
    if current != version:
        raise StaleVersion(f"schedule {schedule!r} has version {current}, not {version}", field="version", hint="read it again")
    fired = step.db.execute(queries.item, ("fired", schedule, False)).fetchone()
    state: dict[str, object] = {} if fired is None else msgspec.json.decode(fired[0])
    setting = msgspec.json.decode(value)
    overlap = setting.get("overlap", "allow")
    answers: list[Submitted] = []
    last = state.get("last")
    for new in tasks:
        answer = _fire_one(step, new, last if isinstance(last, str) else None, overlap)
        if answer is not None:
            answers.append(answer)
            last = last if answer.status is Status.REFUSED else answer.id
    state |= {"next_at": next_at, "last": last, "cron": setting.get("cron")}
    if tasks:  # without, its next time was only found out
        state["fired_at"] = step.now
    step.db.execute(queries.put, ("fired", schedule, False, msgspec.json.encode(state), 1 if fired is None else fired[1] + 1, "", 0))
    step.event(Kind.SCHEDULE_FIRED, schedule, version)
    return Fired(tuple(answers), version)


def _fire_one(step: Step, new: NewTask, last: str | None, overlap: str) -> Submitted | None:
    """One fire time's task; None where the one before still lives and the schedule skips."""
    row = read_rows(step, (last,)).get(last) if last is not None and last != new.id else None
    if row is not None and row.state < COMPLETED and read_rows(step, (new.id,)).get(new.id) is None:
        if overlap == "skip":
            return None
        if overlap == "replace":
            _cancel(step, row)
    return submit(step, (new,))[0]


def _cancel(step: Step, row: Row) -> None:
    if row.state != RUNNING:
        moves = Moves(step)
        moves.cancel(row)
        moves.settle()
    elif not row.flags & CANCEL:
        step.db.execute(queries.request_cancel, (step.now, row.seq))
        step.event(Kind.CANCELLING, row.id, row.version + 1, row.facts())


# Rates


def take(step: Step, name: str, n: int, request: str) -> Taken:
    definition = step.settings.limits.get(check_limit(name)[0])
    if definition is None or definition.rate is None:
        raise NotFound(f"there is no rate {name!r}", code="unknown_limit", field="limit", hint="put it first")
    check_range(n, "n", 1, definition.rate)
    row = step.db.execute(queries.taken, (request,)).fetchone()
    if row is not None:
        return Taken(bool(row[0]), row[1])
    limit = lanes.Limit(step, name)
    granted = definition.rate - limit.used >= n
    if granted:
        limit.count(n)
        limit.save()
    retry_at = None if granted else limit.next_room_at()
    step.db.execute(queries.remember_taken, (request, granted, retry_at, step.now + definition.window))
    return Taken(granted, retry_at)


# Outbox


def outbox(step: Step, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
    check_term(step, term)
    if after and not after.isdecimal():
        raise InvalidInput(
            f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on the cursor of the last entry that was delivered"
        )
    number = int(after or 0)
    step.db.execute(queries.cut_outbox, (kind, number))
    return tuple(Entry(str(row[0]), *row[1:]) for row in step.db.execute(queries.outbox, (kind, number, n)))
