"""Claim: the tasks that are next, admitted by all their limits, become running under new tokens.

What is taken and in which order is decided by the script, in pieces of bounded work; here its answers are put together. What few tasks bring along
(checkpoints, signals, results) is read after it: it belongs to the lease, so it cannot change before this worker's own next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill.engine import Claim, Claimed, Room
from taskmill.engines.redis.inspect import edges, signal_of
from taskmill.engines.redis.records import Body, Header, Held, parts, pieces
from taskmill.engines.redis.records import claimed as under
from taskmill.engines.redis.store import Store
from taskmill.engines.rows import CHECKPOINTS, EDGES, SIGNALS, SUSPECT, UNWIND, decode_retry, handlers_meta
from taskmill.errors import Conflict
from taskmill.task import Signal, unscoped_limit

__all__ = ["RESULTS", "claim", "signals"]

RESULTS = 1_000
PIECE = 200
MOST_HELD = 10_000
CROWDED = 16
"""Claims for which the swift script is not asked, after it met something that it leaves to the other: what stood in its way may be gone."""
NOTHING: Mapping[str, bytes] = MappingProxyType({})


async def claim(store: Store, worker: str, request: int, queues: Sequence[str], room: Room, most_bytes: int | None = None) -> Claim:
    """`most_bytes`: the bytes that there was room for before other shards gave something; a task that comes first may have more."""
    slots, prefetch = min(room.slots, PIECE), min(room.prefetch, max(0, PIECE - room.slots))
    asked = [worker, request, list(queues), slots, prefetch, room.max_bytes, dict(room.types), most_bytes or room.max_bytes]
    of = tuple(queues)
    left = store.crowded.pop(of, 0)
    if not left:
        found, raws = await store.run_raw("swift", asked)
        if found != "full":
            return await _swift(store, worker, request, found, raws)
        left = CROWDED
    store.crowded[of] = left - 1
    answer, raws = await store.run_raw("claim", asked)
    how, next_at, more, tasks, generation = answer
    if how == "unknown_worker":
        raise Conflict(f"worker {worker} is not registered (any more)", code="unknown_worker", field="worker", hint="join under a new id")
    store.shards.heard(generation)
    if not tasks:
        store.crowded.pop(of, None)
    claimed = []
    for id, number, limits in tasks:
        header, body = parts(raws[number - 1])
        claimed.append(await _with_all(store, _claimed(id, header, body, limits if isinstance(limits, list) else ()), header.flags))
    if how == "repeated":
        claimed.sort(key=lambda task: task.token)
    return Claim(tuple(claimed), next_at or None, bool(more))


async def _swift(store: Store, worker: str, request: int, found: Sequence[Any], raws: Sequence[bytes]) -> Claim:
    """Tasks whose records are those from before the claim; tokens follow each other."""
    next_at, now, first, ids, generation = found
    store.shards.heard(generation)
    tail = f"\t{request}\t{now}\t{worker}"
    held = store.held
    claimed = []
    for n, raw in enumerate(raws):
        token = first + n
        before, body, rest = pieces(raw)
        header = under(before, token, worker, now, request)
        task = _claimed(ids[36 * n : 36 * n + 36], header, body, ())
        if header.flags:
            task = await _with_all(store, task, header.flags)
        else:
            held[token] = Held(header, rest, tail)
        claimed.append(task)
    while len(held) > MOST_HELD:
        del held[next(iter(held))]
    return Claim(tuple(claimed), next_at or None)


def _claimed(id: str, h: Header, body: Body, limits: Sequence[str]) -> Claimed:
    meta = handlers_meta(body.meta)
    return Claimed(
        id,
        h.type,
        h.queue,
        body.payload,
        str(h.worker),
        int(h.token),
        h.executions,
        int(h.claimed_at),
        h.priority,
        h.failures,
        h.crashes,
        h.max_crashes,
        h.version,
        h.created_at,
        decode_retry(body.retry),
        body.timeout,
        None if h.expires_at is False else int(h.expires_at),
        h.tenant,
        tuple(map(unscoped_limit, limits)) if limits else (),
        bool(h.flags & UNWIND),
        h.must_end if isinstance(h.must_end, str) else None,
        h.phase if isinstance(h.phase, str) else None,
        meta.headers,
        NOTHING,
        (),
        (),
        int(h.ready_at),
        meta.key,
        bool(h.flags & SUSPECT),
    )


async def _with_all(store: Store, task: Claimed, flags: int) -> Claimed:
    """What few tasks bring along."""
    if not flags & (CHECKPOINTS | SIGNALS | EDGES):
        return task
    found: dict[bytes, bytes] = await store.ask("HGETALL", store.key(f"checkpoints:{task.id}")) if flags & CHECKPOINTS else {}
    return msgspec.structs.replace(
        task,
        checkpoints={name.decode(): value for name, value in found.items()},
        signals=await signals(store, task.id) if flags & SIGNALS else (),
        results=await edges(store, task.id, 0, RESULTS) if flags & EDGES else (),
    )


async def signals(store: Store, id: str) -> tuple[Signal, ...]:
    return tuple(signal_of(*msgspec.msgpack.decode(raw)) for raw in await store.ask("LRANGE", store.key(f"signals:{id}"), 0, -1))
