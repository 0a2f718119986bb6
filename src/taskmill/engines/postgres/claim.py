"""Claim: the tasks that are next, admitted by all their limits, become running under new tokens.

What is taken and in which order is decided by the function `claim` of the store, in one call; here its answer is put together. What few tasks bring
along (checkpoints, signals, results) is read after it: it belongs to the lease, so it cannot change before this worker's own next step, and an answer
that gets lost here is asked for again by its request number.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill.engine import Claim, Claimed, Room
from taskmill.engines.postgres.connecting import Record
from taskmill.engines.postgres.errors import applied
from taskmill.engines.postgres.store import Store
from taskmill.engines.rows import CHECKPOINTS, DEFAULT_RETRY, EDGES, ON_FAILURE, SIGNALS, STATES, SUSPECT, UNWIND, decode_retry, handlers_meta
from taskmill.errors import Conflict
from taskmill.task import EdgeResult, Signal, unscoped_limit

__all__ = ["RESULTS", "claim"]

_TOKEN = itemgetter(4)
CAP = "cap "
"""Before the name of a limit in a lane that is under its cap alone (0012_caps.sql)."""

RESULTS = 1_000
"""Edges that come with a claimed task; `edges` pages through more."""


class Extras(msgspec.Struct):
    """What few tasks bring along."""

    checkpoints: dict[str, bytes] = msgspec.field(default_factory=dict)
    signals: list[Signal] = msgspec.field(default_factory=list)
    results: list[EdgeResult] = msgspec.field(default_factory=list)


async def claim(store: Store, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
    rows = await _ask(store, worker, request, queues, room)
    if rows[-1]["type"] == "idle":  # whoever submits from now on announces it; what came before this was noted is seen by a second look
        rows = await _ask(store, worker, request, queues, room)
    tail = rows.pop()
    if tail["type"] == "unknown_worker":
        raise Conflict(f"worker {worker} is not registered (any more)", code="unknown_worker", field="worker", hint="join under a new id")
    rows.sort(key=_TOKEN)
    with applied():
        extras = await _extras(store, [row for row in rows if row[18] & (CHECKPOINTS | SIGNALS | EDGES)])
    return Claim(tuple([_claimed(worker, row, extras.get(row[0])) for row in rows]), tail["token"], bool(tail["flags"]))


async def _ask(store: Store, worker: str, request: int, queues: Sequence[str], room: Room) -> list[Record]:
    rooms = msgspec.json.encode(dict(room.types)).decode() if room.types else None
    return await store.pool.fetch(store.load("claim.sql").claim, worker, request, list(queues), room.slots, rooms, room.prefetch, room.max_bytes, store.now())


async def _extras(store: Store, flagged: Sequence[Record]) -> dict[str, Extras]:
    if not flagged:
        return {}
    found = {row[0]: Extras() for row in flagged}
    queries = store.load("claim.sql")

    async def read(flag: int, statement: str, *args: Any) -> list[Record]:
        ids = [row[0] for row in flagged if row[18] & flag]
        return await store.pool.fetch(statement, ids, *args) if ids else []

    for task, name, value in await read(CHECKPOINTS, queries.checkpoints):
        found[task].checkpoints[name] = value
    for task, *signal in await read(SIGNALS, queries.signals):
        found[task].signals.append(Signal(*signal))
    for task, child, on_failure, outcome, result in await read(EDGES, queries.results, RESULTS):
        state = None if outcome is None else STATES[outcome]
        found[task].results.append(EdgeResult(child, ON_FAILURE[on_failure], state, None if result is None else result.encode()))
    return found


def _claimed(worker: str, row: Record, extras: Extras | None) -> Claimed:
    (
        task, type_name, queue, payload, token, attempt, claimed_at, priority, failures, crashes, max_crashes, version, created_at, retry, timeout,
        expires_at, tenant, limits, flags, must_end, phase, text, ready_at,
    ) = row  # fmt: skip
    meta = handlers_meta(text)
    return Claimed(  # by place: by name it costs four times as much, for every task
        task,
        type_name,
        queue,
        payload.encode(),
        worker,
        token,
        attempt,
        claimed_at,
        priority,
        failures,
        crashes,
        max_crashes,
        version,
        created_at,
        DEFAULT_RETRY if retry is None else decode_retry(retry),
        timeout,
        expires_at,
        tenant,
        tuple([unscoped_limit(limit.removeprefix(CAP)) for limit in limits]) if limits else (),
        bool(flags & UNWIND),
        must_end,
        phase,
        meta.headers,
        _NOTHING if extras is None else extras.checkpoints,
        () if extras is None else tuple(extras.signals),
        () if extras is None else tuple(extras.results),
        ready_at,
        meta.key,
        bool(flags & SUSPECT),
    )


_NOTHING: MappingProxyType[str, bytes] = MappingProxyType({})
