"""Which shard a task lives in: that of its queue, by its name. An id that we made says its shard; any other has a pointer (crossing.py).

A queue with `partitions` lies in several shards. What must meet there (a unique key, an order key, an idempotency key) is placed by that key, everything else
by its id.
"""

from __future__ import annotations

import random
import zlib

from taskmill.engines.redis.target import SHARDS
from taskmill.engines.settings import Settings
from taskmill.errors import TaskmillError
from taskmill.task import UUID, NewTask, new_id, unscoped

__all__ = ["id_in", "queue_of", "shard_for", "shard_said", "shards_of"]


def _hashed(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS


def shards_of(queue: str, settings: Settings) -> tuple[int, ...]:
    """Its shards. A queue that gets more partitions keeps those it has."""
    found = settings.queues.get(queue)
    if found is None or found.partitions == 1:
        return (_hashed(queue),)
    return tuple(dict.fromkeys(_hashed(f"{queue}/{part}" if part else queue) for part in range(found.partitions)))


def queue_of(new: NewTask, settings: Settings) -> str | None:
    """None for a task that will be refused."""
    if new.queue is not None:
        return new.queue
    known = settings.types.get(new.type)
    return None if known is None else known.queue


def shard_for(new: NewTask, settings: Settings) -> int:
    """Where it belongs; one that will be refused is refused by shard 0."""
    queue = queue_of(new, settings)
    if queue is None:
        return 0
    shards = shards_of(queue, settings)
    if len(shards) == 1:
        return shards[0]
    try:
        resolved = settings.resolve(new)
    except TaskmillError:
        return shards[0]
    key = resolved.unique.key if resolved.unique else unscoped(resolved.order_key or "") or new.idempotency_key
    if key is not None:
        return shards[zlib.crc32(f"{new.tenant}\t{new.type}\t{key}".encode()) % len(shards)]
    said = shard_said(new.id)
    return said if said in shards else shards[zlib.crc32(new.id.encode()) % len(shards)]


def id_in(shards: tuple[int, ...]) -> str:
    """A new id (UUIDv8) in one of the shards: the order of its creation, then the shard, then chance."""
    shard = shards[0] if len(shards) == 1 else random.choice(shards)
    made = new_id()
    chance = int(made[19:23], 16) & 0xF
    return f"{made[:14]}8{made[15:18]}-{0x8000 | shard << 4 | chance:04x}{made[23:]}"


def shard_said(id: str) -> int | None:
    """What an id says of its shard; it may say so by accident, and is looked for elsewhere too."""
    return (int(id[19:23], 16) & 0x3FFF) >> 4 if id[14:15] == "8" and UUID.fullmatch(id) else None
