"""Settings, workers and what is done under a term: put, drop, join, fire, take, restore, outbox, prune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill import codec
from taskmill.engine import Changed, Entry, Fired, Item, Joining, Moved, Record, Retention, Taken, Target, Term
from taskmill.engines.redis.inspect import items
from taskmill.engines.redis.records import Body, body_of
from taskmill.engines.redis.store import Store
from taskmill.engines.redis.submit import Batch
from taskmill.engines.rows import (
    FAR,
    NUMBERS,
    ON_FAILURE_NUMBERS,
    REJECTED,
    RUNNING,
    STATES,
    WAITING,
    decode_meta,
    encode_error,
    encode_progress,
    encode_retry,
    json_text,
    restored_flags,
    restored_lane,
    restored_meta,
)
from taskmill.engines.settings import check_item
from taskmill.errors import InvalidInput, NotFound, StaleTerm, StaleVersion, StoreError, TaskmillError
from taskmill.task import STORED, NewTask, State, check_key, check_limit, check_name, check_range, check_settings, resolve

__all__ = ["admin", "check_fire", "drop", "fire", "join", "last_fired", "move_types", "outbox", "prune", "put", "restore", "take"]

ROUNDS = 20
RESTORED = 100
"""Records of one step."""
SLICES = 20
"""Of edges that are left to fall: so many are applied before others are left to do it."""

_encode = msgspec.msgpack.Encoder().encode


async def put(store: Store, kind: str, name: str, value: bytes, version: int | None, *, operator: bool) -> Item:
    check_item(kind, name, value)
    found = await store.run("put", ["put", kind, name, operator, False if version is None else version, value.decode()])
    if found[0] is False:
        raise StaleVersion(f"{kind} {name!r} has version {found[1]}, not {version}", field="version", hint="read it again, then put")
    return Item(kind=kind, name=name, value=value, version=found[0], operator=operator)


async def drop(store: Store, kind: str, name: str, version: int | None) -> bool:
    found = await store.run("put", ["drop", kind, name, True, False if version is None else version, ""])
    if found[0] is False:
        raise StaleVersion(f"{kind} {name!r} has version {found[1]}, not {version}", field="version", hint="read it again, then drop")
    return bool(found[0])


async def join(store: Store, joining: Joining, *, declares: bool = True) -> None:
    """`declares`: its settings too; they are shard 0's."""
    check_key(joining.worker, "worker", length=128)
    for queue in joining.queues:
        check_name(queue, "queues")
    for name, settings in joining.types.items():
        check_settings(settings, name)
    declared = [("limit", name, value) for name, value in joining.limits.items()]
    declared += [("type", name, msgspec.json.encode(settings)) for name, settings in joining.types.items()]
    declared += [("schedule", name, value) for name, value in joining.schedules.items()]
    for kind, name, value in declared:
        check_item(kind, name, value)
    record = [list(joining.queues), sorted(joining.types), joining.lease, 0, dict(joining.info)]
    sent = [[kind, name, value.decode()] for kind, name, value in declared] if declares else []
    schedules = list(joining.schedules) if declares else []
    await store.run("join", [joining.worker, record, list(joining.queues), joining.app, joining.version, sent, schedules, store.mono()])


async def fire(store: Store, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term, *, made: str | None = None) -> Fired:
    """`made`: the last task that was made for it in another shard."""
    for _ in range(ROUNDS):
        batches = [Batch(store.settings, (new,)) for new in tasks]
        raws: list[bytes] = []
        sent = [batch.packed(raws) for batch in batches if not batch.refused]
        found, answered = await store.run_raw(
            "fire",
            [store.generation, schedule, version, sent, False if next_at is None else next_at, [term.role, term.holder, term.number], made or False],
            raws,
        )
        if found != "settings":
            break
        await store.renew()
    else:
        raise StoreError("the settings change all the time", code="store_busy", hint="nothing was written, ask again")
    if not found[0]:
        raise _unfired(schedule, version, term, *found[1:])
    durability = store.target.durability
    by_id = {new.id: (new, batch) for new, batch in zip(tasks, batches, strict=True) if not batch.refused}
    answers = [batch.answers([], [], durability)[0] for batch in batches if batch.refused]
    rest = [batch for _, batch in by_id.values()]
    for answer in found[1] or ():
        batch = next((batch for new, batch in by_id.values() if new.id == answer[1]), rest[0])
        answers.append(batch.answers([answer], answered, durability)[0])
    return Fired(tuple(answers), version)


async def check_fire(store: Store, schedule: str, version: int, term: Term) -> None:
    """Refuse what `fire` would refuse, before anything is made."""
    holder, number = await store.ask("HMGET", store.key(f"term:{term.role}"), "holder", "number")
    if (holder or b"").decode() != term.holder or int(number or 0) != term.number:
        raise _stale(term)
    item = next((item for item in await items(store, "schedule") if item.name == schedule), None)
    if item is None:
        raise _unfired(schedule, version, term, "not_found")
    if item.version != version:
        raise _unfired(schedule, version, term, "stale_version", item.version)


async def last_fired(store: Store, schedule: str) -> tuple[str, str | None]:
    """What a schedule says of overlaps, and the last task that was made for it."""
    values = {kind: {item.name: msgspec.json.decode(item.value) for item in await items(store, kind)}.get(schedule, {}) for kind in ("schedule", "fired")}
    return values["schedule"].get("overlap", "allow"), values["fired"].get("last")


def _unfired(schedule: str, version: int, term: Term, code: str, current: int = 0) -> TaskmillError:
    if code == "stale_term":
        return _stale(term)
    if code == "not_found":
        return NotFound(f"there is no schedule {schedule!r}", field="schedule")
    return StaleVersion(f"schedule {schedule!r} has version {current}, not {version}", field="version", hint="read it again")


def _stale(term: Term) -> StaleTerm:
    return StaleTerm(f"term {term.number} of {term.role} is over", field="term", hint="lead again before you write")


async def take(store: Store, name: str, n: int, id: str) -> Taken:
    check_limit(name)
    check_range(n, "n", 1, 1 << 40)
    granted, retry_at, why, rate = (*await store.run("take", [name, n, id]), None, None)[:4]
    if why == "unknown":
        raise NotFound(f"there is no rate {name!r}", code="unknown_limit", field="limit", hint="put it first")
    if why == "range":
        check_range(n, "n", 1, rate)
    return Taken(bool(granted), retry_at or None)


async def outbox(store: Store, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
    if after and not after.isdecimal():
        raise InvalidInput(
            f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on the cursor of the last entry that was delivered"
        )
    found = await store.run("outbox", [kind, int(after or 0), n, [term.role, term.holder, term.number]])
    if found is False:
        raise _stale(term)
    return tuple(Entry(str(number), kind, subject, data.encode(), at) for number, subject, data, at in found or ())


def _hash(body: bytes) -> str:
    return codec.payload_hash(body_of(body).payload).hex()


async def prune(store: Store, n: int, term: Term, retention: Retention) -> tuple[Moved, list[str]]:
    """And the ids of which nothing is known any more. Records whose id stays known want the hash of their payload, which only we can make: they are
    asked for twice."""
    kept = [retention.completed, retention.dead, retention.cancelled]
    hashes: dict[str, str] = {}
    n = min(n, 200)
    moved, more = 0, True
    forgotten: list[str] = []
    for _ in range(2):
        found, raws = await store.run_raw("prune", [n - moved, [term.role, term.holder, term.number], kept, hashes])
        if found is False:
            raise _stale(term)
        moved, more = moved + found[0], bool(found[1])
        forgotten += found[3] or ()
        if not found[2] or moved >= n:
            break
        hashes = {id: _hash(raws[number - 1]) for id, number in found[2]}
    if not more and retention.results < retention.completed:
        dropped = await _drop_results(store, n, term, retention.results)
        return Moved(moved + dropped.moved, dropped.more), forgotten
    return Moved(moved, more), forgotten


async def _drop_results(store: Store, n: int, term: Term, kept: int) -> Moved:
    """Behind those of the calls before: a pass over all of them costs once, not every minute."""
    found = await store.run("results", [n, [term.role, term.holder, term.number], kept, *store.results_dropped])
    if found is False:
        raise _stale(term)
    moved, more, last, ended_at = found
    store.results_dropped = (last, ended_at)
    return Moved(moved, bool(more))


async def admin(store: Store, verb: str, targets: Sequence[Target], *, from_start: bool = False) -> tuple[Changed, ...]:
    answers: list[Changed] = []
    for first in range(0, len(targets), 200):
        answers += await _changed(store, verb, targets[first : first + 200], from_start)
    return tuple(answers)


async def _changed(store: Store, verb: str, targets: Sequence[Target], from_start: bool) -> list[Changed]:
    sent: list[list[Any]] = [[target.task, False if target.version is None else target.version, False] for target in targets]
    found, raws = await store.run_raw("admin", [verb, sent, from_start])
    again = [place for place, row in enumerate(found) if row[4] == "hash"]
    if again:
        for place in again:
            sent[place][2] = _hash(raws[found[place][2] - 1])
        second = await store.run("admin", [verb, [sent[place] for place in again], from_start])
        for place, row in zip(again, second, strict=True):
            found[place] = row
    return [
        Changed(target.task, done, None if state is False else STATES[state], None if version is False else version, requested, code or None)
        for target, (done, state, version, requested, code) in zip(targets, found, strict=True)
    ]


async def move_types(store: Store, n: int) -> bool:
    """Tasks of a type that got limits or a fair key after they were submitted move into its lanes, a slice at a time."""
    found, raws = await store.run_raw("move", ["look", min(n, 200)])
    if not found:
        return False
    await store.renew()
    name, rows = found
    settings = store.settings.types.get(name)
    sent, bodies = [], []
    for id, tenant, number in rows or ():
        body = body_of(raws[number - 1])
        meta = decode_meta(body.meta)
        if settings is None or meta.own:
            continue
        try:
            resolved = resolve(NewTask(type=name, payload=body.payload, tenant=tenant), settings, STORED)
        except TaskmillError:  # its payload has no such key: it stays in the plain line, as it was accepted
            continue
        text = json_text(msgspec.structs.replace(meta, limits=resolved.limits, share=resolved.share))
        bodies.append(_encode(Body(body.payload, body.retry, body.timeout, text)))
        sent.append([id, resolved.share, list(resolved.limits), len(bodies)])
    if sent:
        await store.run("move", ["move", name, sent], bodies)
    return True


async def restore(store: Store, records: Sequence[Record], elsewhere: Mapping[str, int] = MappingProxyType({})) -> tuple[bool, ...]:
    answers: list[bool] = []
    for first in range(0, len(records), RESTORED):
        raws: list[bytes] = []
        sent = [_restored(record, raws) for record in records[first : first + RESTORED]]
        more, found = await store.run("restore", [sent, dict(elsewhere)], raws)
        answers += found
        for _ in range(SLICES if more else 0):
            if not await store.run("fell", []):
                break
    return tuple(answers)


def _restored(record: Record, raws: list[bytes]) -> list[Any]:
    task = record.task
    state = NUMBERS[task.state]
    if state == RUNNING or (state == WAITING and not (task.open_edges or task.sealed)):
        state = 0  # a lease of another store is none here; and what it waited for, its handler looks at again
    leased = task.state is State.RUNNING
    meta, flags = restored_meta(task), restored_flags(record)
    raws.append(_encode(Body(task.payload, encode_retry(task.retry), task.timeout, meta)))
    body = len(raws)
    header = [
        0, task.type, task.queue, task.tenant, task.priority, 0, state, FAR if state == WAITING else task.run_at, task.version, task.executions,
        task.failures, task.crashes, flags, task.open_edges, task.created_at, task.updated_at, _or_false(task.expires_at),
        _or_false(task.finished_at), False if leased or task.token is None else _token(task.token), False if leased else _or_false(task.worker), False,
        False if leased else _or_false(task.started_at), False if leased else _or_false(task.started_at), _or_false(task.must_end), _or_false(task.phase),
        False if task.progress is None else encode_progress(task.progress), False, False, task.run_at, task.max_crashes,
        False if task.unique is None else task.unique.key, task.idempotency_window, False if task.result is None else task.result.decode(),
        _or_false(encode_error(task.error)), len(task.payload) + len(meta), False,
    ]  # fmt: skip
    share, limits, order_key = restored_lane(task)
    key: Any = False
    if task.idempotency_key is not None and not flags & REJECTED:
        key = [task.idempotency_key, codec.payload_hash(task.payload).hex(), task.created_at + task.idempotency_window]
    attempts = []
    for a in [a for a in record.attempts if a.ended_at is not None]:
        raws.append(_encode([a.number, a.worker, a.token, a.started_at, a.ended_at, a.outcome, _or_false(encode_error(a.error))]))
        attempts.append(len(raws))
    edges = [
        [
            edge.task, ON_FAILURE_NUMBERS[edge.on_failure], False if edge.outcome is None else NUMBERS[edge.outcome],
            False if edge.result is None else edge.result.decode(),
        ]
        for edge in record.edges
    ]  # fmt: skip
    return [
        task.id, header, body, [share, list(limits), order_key or ""], key, attempts,
        {name: value.decode() for name, value in record.checkpoints.items()},
        [[s.number, s.name, s.data.decode(), s.id, s.at] for s in record.signals], edges,
    ]  # fmt: skip


def _token(token: int) -> int | str:
    """A token of another store may be larger than the numbers of a script."""
    return token if abs(token) < 1 << 53 else str(token)


def _or_false(value: Any) -> Any:
    return False if value is None else value
