"""Claim: the tasks that are next, admitted by all their limits, become running under new tokens.

What is taken and in which order is decided by the script, in pieces of bounded work; here its answers are put together. What few tasks bring along
(checkpoints, signals, results) is read after it: it belongs to the lease, so it cannot change before this worker's own next step.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from taskmill.engine import Claim, Claimed, Room
from taskmill.engines.redis.inspect import edges
from taskmill.engines.redis.records import Body, Header, Held, held, parts
from taskmill.engines.redis.records import claimed as under
from taskmill.engines.redis.store import Store
from taskmill.engines.rows import CHECKPOINTS, EDGES, NO_META, SIGNALS, UNWIND, decode_meta, decode_retry
from taskmill.errors import Conflict
from taskmill.task import Signal

__all__ = ["RESULTS", "claim", "signals"]

RESULTS = 1_000
PIECE = 200
MOST_HELD = 10_000


async def claim(store: Store, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
    slots, prefetch = min(room.slots, PIECE), min(room.prefetch, max(0, PIECE - room.slots))
    answer, raws = await store.run_raw("claim", [worker, request, list(queues), slots, prefetch, room.max_bytes, dict(room.types)])
    how, next_at, more, tasks, now = answer
    if how == "unknown_worker":
        raise Conflict(f"worker {worker} is not registered (any more)", code="unknown_worker", field="worker", hint="join under a new id")
    claimed = []
    for id, number, limits, token in tasks:
        raw = raws[number - 1]
        h, body = parts(raw)
        if token:
            if h.flags == 0:
                hold(store, token, held(raw, h, token, worker, request, now))
            h = under(h, token, worker, now, request)
        claimed.append(await _claimed(store, worker, id, h, body, limits))
    if how == "repeated":
        claimed.sort(key=lambda task: task.token)
    return Claim(tuple(claimed), next_at or None, bool(more))


def hold(store: Store, token: int, one: Held) -> None:
    if len(store.held) >= MOST_HELD:
        del store.held[next(iter(store.held))]
    store.held[token] = one


async def _claimed(store: Store, worker: str, id: str, h: Header, body: Body, limits: list[str] | bool) -> Claimed:
    flags = h.flags
    found: dict[bytes, bytes] = await store.ask("HGETALL", store.key(f"checkpoints:{id}")) if flags & CHECKPOINTS else {}
    return Claimed(
        id,
        h.type,
        h.queue,
        body.payload,
        worker,
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
        tuple(limits) if isinstance(limits, list) else (),
        bool(flags & UNWIND),
        h.must_end if isinstance(h.must_end, str) else None,
        h.phase if isinstance(h.phase, str) else None,
        decode_meta(body.meta).headers if body.meta is not None else NO_META.headers,
        {name.decode(): value for name, value in found.items()},
        await signals(store, id) if flags & SIGNALS else (),
        await edges(store, id, 0, RESULTS) if flags & EDGES else (),
    )


async def signals(store: Store, id: str) -> tuple[Signal, ...]:
    found = [msgspec.msgpack.decode(raw) for raw in await store.ask("LRANGE", store.key(f"signals:{id}"), 0, -1)]
    return tuple(_signal(*row) for row in found)


def _signal(number: int, name: str, data: str, id: str, at: int) -> Signal:
    return Signal(number, name, data.encode(), id, at)
