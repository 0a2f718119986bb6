"""Settings as data: what operators put; schedules' firing; rates asked for directly; the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from taskmill.engine import Entry, Fired, Item, Status, Submitted, Taken, Term
from taskmill.engines.postgres.horizon import Horizon
from taskmill.engines.postgres.recover import check_term
from taskmill.engines.postgres.store import Store
from taskmill.engines.postgres.submit import submit
from taskmill.engines.settings import check_item
from taskmill.errors import InvalidInput, NotFound, StaleTerm, StaleVersion
from taskmill.task import NewTask, check_limit, check_range

__all__ = ["drop", "fire", "items", "outbox", "put", "take"]

IN_TRANSACTION = "reject_in_transaction"


async def put(store: Store, kind: str, name: str, value: bytes, version: int | None, *, operator: bool) -> Item:
    check_item(kind, name, value)
    row = await store.pool.fetchrow(store.load("settings.sql").put, kind, name, operator, value, version, store.now())
    assert row is not None
    done, current = row
    if not done:
        raise StaleVersion(f"{kind} {name!r} has version {current}, not {version}", field="version", hint="read it again, then put")
    return Item(kind=kind, name=name, value=value, version=current, operator=operator)


async def drop(store: Store, kind: str, name: str, version: int | None) -> bool:
    row = await store.pool.fetchrow(store.load("settings.sql").drop, kind, name, version, store.now())
    assert row is not None
    done, current = row
    if current is not None and not done:
        raise StaleVersion(f"{kind} {name!r} has version {current}, not {version}", field="version", hint="read it again, then drop")
    return current is not None


async def items(store: Store, kind: str, within: Any = None) -> tuple[Item, ...]:
    """`within`: as a user's transaction sees them, on its connection."""
    rows = await store.pool.fetch(store.load("settings.sql").items, kind) if within is None else await within.items(kind)
    return tuple(Item(kind=kind, name=name, value=value, version=version, operator=operator) for name, value, version, operator in rows)


# Rates


async def take(store: Store, limit: str, n: int, request: str) -> Taken:
    check_limit(limit)
    bounded = max(-1, min(n, 1 << 62))
    row = await store.pool.fetchrow(store.load("settings.sql").take, limit, bounded, request, store.now())
    assert row is not None
    rate, granted, retry_at = row
    if rate is None:
        raise NotFound(f"there is no rate {limit!r}", code="unknown_limit", field="limit", hint="put it first")
    check_range(n, "n", 1, rate)
    return Taken(granted, retry_at)


# Outbox


async def outbox(store: Store, horizon: Horizon, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
    if after and not (after.isdecimal() and int(after) < 1 << 63):
        raise InvalidInput(
            f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on the cursor of the last entry that was delivered"
        )
    until = await horizon.look()
    rows = await store.pool.fetch(store.load("settings.sql").outbox, kind, int(after or 0), until, n, term.role, term.holder, term.number)
    if rows and rows[0]["number"] is None:
        raise StaleTerm(f"term {term.number} of {term.role} is over", field="term", hint="lead again before you write")
    return tuple(Entry(str(number), kind, subject, data, at) for number, subject, data, at in rows)


# Schedules


async def fire(store: Store, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
    """The rows of the term and of the schedule are held until the commit, so neither can pass to another meanwhile."""
    queries = store.load("settings.sql")
    async with store.pool.transaction() as db:
        await check_term(store, db, term)
        row = await db.fetchrow(queries.schedule, schedule)
        if row is None:
            raise NotFound(f"there is no schedule {schedule!r}", field="schedule")
        if row["version"] != version:
            raise StaleVersion(f"schedule {schedule!r} has version {row['version']}, not {version}", field="version", hint="read it again")
        setting = msgspec.json.decode(row["value"])
        before = await db.fetchrow(queries.fired, schedule)
        state: dict[str, Any] = {} if before is None else msgspec.json.decode(before["value"])
        answers, last = await _fire_all(store, db, tasks, state.get("last"), setting.get("overlap", "allow"))
        state |= {"next_at": next_at, "last": last, "cron": setting.get("cron")}
        if tasks:  # without, its next time was only found out
            state["fired_at"] = await db.fetchval(queries.moment, store.now())
        await db.execute(queries.set_fired, schedule, msgspec.json.encode(state))
        await db.execute(queries.tell_fired, schedule, version, store.now())
        await db.execute(queries.announce, sorted({new.queue for new in tasks if new.queue} | _default_queues(store, tasks)))
    if tasks:
        await store.settle()
    return Fired(await _outside(store, tasks, answers), version)


async def _fire_all(store: Store, db: Any, tasks: Sequence[NewTask], last: Any, overlap: str) -> tuple[list[Submitted], Any]:
    answers: list[Submitted] = []
    queries = store.load("settings.sql")
    for new in tasks:
        if isinstance(last, str) and last != new.id and overlap != "allow" and await db.fetchval(queries.overlap, last, new.id):
            if overlap == "skip":
                continue
            if overlap == "replace":
                await db.execute(queries.replace, last, store.now())
        [answer] = await submit(store, (new,), db=db)
        answers.append(answer)
        refused = answer.status is Status.REFUSED and not _waits(answer)
        last = last if refused else answer.id
    return answers, last


def _default_queues(store: Store, tasks: Sequence[NewTask]) -> set[str]:
    """Where tasks go that name no queue: what their type says."""
    return {store.settings.types[new.type].queue for new in tasks if new.queue is None and new.type in store.settings.types}


def _waits(answer: Submitted) -> bool:
    return answer.error is not None and answer.error.code == IN_TRANSACTION


async def _outside(store: Store, tasks: Sequence[NewTask], answers: Sequence[Submitted]) -> tuple[Submitted, ...]:
    """A task that a full limit rejects is judged in a step of its own; by its id it is made once, whoever repeats."""
    by_id = {new.id: new for new in tasks}
    return tuple([(await submit(store, (by_id[answer.id],)))[0] if _waits(answer) and answer.id in by_id else answer for answer in answers])
