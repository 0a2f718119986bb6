"""Workers, their beats and what the dead among them held; maintenance in bounded steps; leadership.

What is decided is decided by the functions of the store (0007_recover.sql), each call one step. Only two things need this program: the hash of a payload, by
which a removed task's id stays known, and the lanes of a task whose type got limits after it was submitted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from taskmill import codec
from taskmill.clock import MINUTE
from taskmill.engine import Beat, Joining, Moved, Retention, Term, WorkerInfo
from taskmill.engines.postgres.connecting import Record
from taskmill.engines.postgres.store import Store
from taskmill.engines.rows import decode_meta, encode_names, json_text
from taskmill.engines.settings import check_item
from taskmill.errors import StaleTerm, TaskmillError
from taskmill.task import STORED, NewTask, Resolved, TypeSettings, check_key, check_name, check_settings, resolve

__all__ = ["check_term", "free_stuck", "heartbeat", "join", "lead", "leave", "prune", "recover_lost", "resign", "workers"]


STUCK_SLICE = 5_000

# Workers


async def join(store: Store, joining: Joining) -> None:
    check_key(joining.worker, "worker", length=128)
    for queue in joining.queues:
        check_name(queue, "queues")
    for name, settings in joining.types.items():
        check_settings(settings, name)
    items = [("limit", name, value) for name, value in joining.limits.items()]
    items += [("type", name, msgspec.json.encode(settings)) for name, settings in joining.types.items()]
    items += [("schedule", name, value) for name, value in joining.schedules.items()]
    for item in items:
        check_item(*item)
    declared = [list(column) for column in zip(*items, strict=True)] or [[], [], []]
    await store.pool.fetch(
        store.load("recover.sql").join,
        joining.worker,
        list(joining.queues),
        sorted(joining.types),
        joining.lease,
        json_text(dict(joining.info)),
        joining.app,
        joining.version,
        *declared,
        store.now(),
        store.monotonic(),
    )
    if joining.limits:
        await store.settle()


async def leave(store: Store, worker: str) -> None:
    await store.pool.fetch(store.load("recover.sql").leave, worker, store.now())
    await store.settle()


async def heartbeat(store: Store, worker: str, request: int, leases: Iterable[int], tasks: bool = False) -> Beat:
    row = await store.pool.fetchrow(store.load("recover.sql").heartbeat, worker, request, list(leases), store.now(), store.monotonic(), tasks)
    assert row is not None
    if row["owes"]:
        await store.settle(wait=False)
    command = _command(row["command"])
    told = dict(zip(row["held"] or (), row["tasks"] or (), strict=True))
    return Beat(row["known"], tuple(row["lost"]), tuple(row["cancelled"] or ()), () if command is None else (command,), told)


def _command(value: bytes | None) -> str | None:
    return None if value is None else msgspec.json.decode(value, type=dict[str, Any]).get("command")


async def workers(store: Store) -> tuple[WorkerInfo, ...]:
    return tuple(_worker(row) for row in await store.pool.fetch(store.load("recover.sql").workers, store.monotonic()))


def _worker(row: Record) -> WorkerInfo:
    return WorkerInfo(
        id=row["id"],
        queues=tuple(row["queues"]),
        types=tuple(row["types"]),
        lease=row["lease"],
        joined_at=row["joined_at"],
        silent=row["silent"],
        alive=row["silent"] <= row["lease"],
        running=row["running"],
        info=msgspec.json.decode(row["info"]),
        command=_command(row["command"]),
    )


# Recovery


async def recover_lost(store: Store, n: int) -> Moved:
    row = await store.pool.fetchrow(store.load("recover.sql").recover, n, store.lease, store.now(), store.monotonic())
    assert row is not None
    more = row["more"]
    if row["moving"]:
        more |= await _move_types(store, n)
    freed = await free_stuck(store)
    if row["owes"] or row["moving"] or freed:
        more |= await store.settle()
    return Moved(row["moved"] + freed, more, tuple(row["lost"]))


async def free_stuck(store: Store) -> int:
    """Waiting tasks that nothing would wake become ready: a slice of all that wait, at most once a minute in a process."""
    now = store.monotonic() or time.monotonic_ns() // 1_000
    if store.looked_at is not None and 0 <= now - store.looked_at < MINUTE:
        return 0
    store.looked_at = now
    row = await store.pool.fetchrow(store.load("recover.sql").free_stuck, store.looked_up_to, STUCK_SLICE, store.now())
    assert row is not None
    store.looked_up_to = row["last"]
    freed: int = row["freed"]
    return freed


async def _move_types(store: Store, n: int) -> bool:
    """Tasks of a type that got limits or a fair key after they were submitted move from the plain line into its lanes, a slice at a time."""
    queries = store.load("recover.sql")
    settings = await store.read_settings()
    async with store.pool.transaction() as db:
        rows = await db.fetch(queries.look_to_move, n)
        if not rows:
            return False
        head, *found = rows
        type_name = head["type"]
        moving = _resolved(settings.types.get(type_name), found)
        after, last = found[-1]["seq"] if found else head["seq"], len(found) < n
        ids, metas = [task for task, _, _ in moving], [meta for _, _, meta in moving]
        shares, limits = [to.share for _, to, _ in moving], [encode_names(to.limits) for _, to, _ in moving]
        await db.fetch(queries.move, type_name, ids, shares, limits, metas, after, last, store.now())
    return True


def _resolved(settings: TypeSettings | None, rows: list[Record]) -> list[tuple[str, Resolved, str]]:
    """(task, what it resolves to, its new meta). One whose payload has no such key stays in the plain line, as it was accepted."""
    moving = []
    for row in rows if settings is not None else ():
        meta = decode_meta(row["meta"])
        if not row["movable"] or meta.own:
            continue
        try:
            resolved = resolve(NewTask(type=row["type"], payload=row["payload"].encode(), tenant=row["tenant"]), settings, STORED)
        except TaskmillError:
            continue
        moving.append((row["id"], resolved, json_text(replace(meta, limits=resolved.limits, share=resolved.share))))
    return moving


# Leadership


async def lead(store: Store, role: str, holder: str) -> Term | None:
    check_name(role, "role")
    check_key(holder, "holder", length=128)
    number = await store.pool.fetchval(store.load("recover.sql").lead, role, holder, store.term, store.now(), store.monotonic())
    return None if number is None else Term(role, holder, number)


async def resign(store: Store, term: Term) -> None:
    await store.pool.fetch(store.load("recover.sql").resign, term.role, term.holder, term.number)


async def leaders(store: Store, roles: Sequence[str]) -> tuple[Term, ...]:
    wanted = [check_name(role, "roles") for role in roles]
    rows = await store.pool.fetch(store.load("recover.sql").leaders, wanted, store.monotonic())
    found = {role: Term(role, holder, number) for role, holder, number in rows}
    return tuple(found[role] for role in wanted if role in found)


async def check_term(store: Store, db: Any, term: Term) -> None:
    """In a transaction: nobody else's term begins before it ends."""
    if not await db.fetchval(store.load("recover.sql").holds_term, term.role, term.holder, term.number):
        raise _stale(term)


def _stale(term: Term) -> StaleTerm:
    return StaleTerm(f"term {term.number} of {term.role} is over", field="term", hint="lead again before you write")


# Retention


async def prune(store: Store, n: int, term: Term, retention: Retention) -> Moved:
    queries = store.load("recover.sql")
    held = (term.role, term.holder, term.number)
    kept = [retention.completed, retention.dead, retention.cancelled]
    row = await store.pool.fetchrow(queries.prune, *held, n, kept, store.now())
    assert row is not None
    if row["stale"]:
        raise _stale(term)
    moved = row["moved"]
    if row["ids"]:
        hashes = [codec.payload_hash(payload.encode()) for payload in row["payloads"]]
        moved += _moved(await store.pool.fetchval(queries.prune_known, *held, row["ids"], hashes, kept, store.now()), term)
    if row["more"] or moved >= n:
        return Moved(moved, True)
    idle = await store.pool.fetchrow(queries.look_for_idle, n - moved, store.now())
    assert idle is not None
    moved += _moved(await store.pool.fetchval(queries.forget, *held, n - moved, *idle, store.now()), term)
    return Moved(moved, moved >= n)


async def drop_results(store: Store, n: int, term: Term, kept: int, moved: int) -> Moved:
    """Results of tasks that completed longer ago than `kept`, behind those of the calls before: a pass over them costs once, not every minute. A task that owes
    its result to others ends the pass until it is delivered."""
    held = (term.role, term.holder, term.number)
    row = await store.pool.fetchrow(store.load("recover.sql").drop_results, *held, *store.results_dropped, kept, n, store.now())
    assert row is not None
    if not row["stands"]:
        raise _stale(term)
    if row["seen"]:
        store.results_dropped = (row["finished_at"], row["seq"])
    return Moved(moved + row["moved"], row["seen"] == n)


async def prune_inbox(store: Store, n: int, term: Term, retention: Retention, moved: int) -> Moved:
    """Messages whose time is over, as many as the tasks have left of `n`."""
    held = (term.role, term.holder, term.number)
    moved += _moved(await store.pool.fetchval(store.load("transaction.sql").prune_inbox, *held, n - moved, retention.inbox, store.now()), term)
    return Moved(moved, moved >= n)


def _moved(number: int | None, term: Term) -> int:
    if number is None:
        raise _stale(term)
    return number
