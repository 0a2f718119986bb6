"""The invariants themselves: a store at work keeps them all, and each of them can be seen broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from taskmill.clock import SECOND
from taskmill.engine import Joining, Room
from taskmill.engines.redis.records import AT, Header
from taskmill.task import NewTask, Unique
from tests.faults.invariants_redis import broken, dump
from tests.faults.workload import TYPES, Worker, batch, client_of, prepare
from tests.servers.redis import RedisServer

P = "tm:{0}:"
FIELDS = Header.__struct_fields__


class Damage:
    """One thing is changed behind the engine's back."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url()
        self.client = server.client()

    def task(self, which: Callable[[Header], bool] = lambda _: True) -> str:
        return next(id for id, header in sorted(dump(self.url).tasks.items()) if which(header))

    def change(self, id: str, **fields: object) -> bool:
        raw: Any = self.client.get(f"{P}t:{id}")
        end = AT + int(raw[28:AT], 16)
        row = msgspec.msgpack.decode(raw[AT:end])
        for name, value in fields.items():
            row[FIELDS.index(name)] = value
        array = msgspec.msgpack.encode(row)
        return bool(self.client.set(f"{P}t:{id}", raw[:28] + b"%08x" % len(array) + array + raw[end:]))

    def key(self, prefix: str) -> str:
        return min(str(key.decode()) for key in self.client.scan_iter(f"{P}{prefix}*"))

    def packed(self, key: str, place: int, value: object) -> bool:
        raw: Any = self.client.get(key)
        row = msgspec.msgpack.decode(raw)
        row[place] = value
        return bool(self.client.set(key, msgspec.msgpack.encode(row)))


def running(header: Header) -> bool:
    return header.state == 3


def completed(header: Header) -> bool:
    return header.state == 5


DAMAGES: dict[str, Callable[[Damage], object]] = {
    "a key of no kind": lambda d: d.client.set(f"{P}strange", "1"),
    "ids:": lambda d: d.client.zadd(f"{P}ids", {"nobody": 1}),
    "that the store has not given": lambda d: d.client.set(f"{P}token", "1"),
    "has ended at no time": lambda d: d.change(d.task(completed), finished_at=False),
    "counts:": lambda d: d.client.hincrby(f"{P}counts", next(iter(dump(d.url).hash("counts"))), 1),
    "q:default:1:": lambda d: d.client.zrem(f"{P}q:default:1", *[m for m, _ in dump(d.url).keys["q:default:1"]]),
    "due:": lambda d: d.client.delete(f"{P}due"),
    "ended:5:": lambda d: d.client.zadd(f"{P}ended:5", {"nobody": 1}),
    "in:1:": lambda d: d.client.zadd(f"{P}in:1", {"nobody": 1}),
    "beside:": lambda d: d.client.hset(f"{P}beside", "nobody", "1 1"),
    "order:": lambda d: d.client.delete(d.key("order:")),
    "run:": lambda d: d.client.delete(d.key("run:")),
    "which is not registered": lambda d: d.client.delete(f"{P}workers"),
    "is to be stopped by": lambda d: d.client.sadd(f"{P}stop:x", "nobody"),
    "not of the same workers": lambda d: d.client.zadd(f"{P}beats", {"nobody": 1}),
    "is of 2 tasks": lambda d: [d.change(d.task(running), token=7), d.change(d.task(completed), token=7)],
    "falling and fallen differ": lambda d: d.client.hset(f"{P}fallen", "nobody", "x"),
    "open edges, there are": lambda d: d.change(d.task(running), open_edges=1),
    "does not know its edges": lambda d: d.client.delete(d.key("edge_order:")),
    "does not know that": lambda d: [d.client.delete(key) for key in d.client.scan_iter(f"{P}waiters:*")],
    "which is gone": lambda d: [d.client.delete(f"{P}t:{key.decode().rpartition(':')[2]}") for key in d.client.scan_iter(f"{P}waiters:*")],
    "is waited for and does not know it": lambda d: [d.change(id, flags=0) for id, h in dump(d.url).tasks.items() if h.flags & 32],
    "never falls": lambda d: [d.change(id, state=5, finished_at=1) for id, h in dump(d.url).tasks.items() if h.flags & 32 and h.state < 4],
    "waits for nothing": lambda d: d.change(d.task(), state=4, ready_at=1 << 62, flags=0, open_edges=0),
    "is of nobody who knows it": lambda d: d.client.hset(f"{P}checkpoints:{d.task(running)}", "x", "1"),
    "has ended and has signals": lambda d: [
        d.change(d.task(completed), flags=1024), d.client.rpush(f"{P}signals:{d.task(completed)}", msgspec.msgpack.encode([1, "x", "1", "id", 0])),
    ],
    "attempts:nobody is of nobody": lambda d: d.client.rpush(f"{P}attempts:nobody", msgspec.msgpack.encode([1])),
    "has attempts": lambda d: d.client.rpush(f"{P}attempts:{d.task(running)}", msgspec.msgpack.encode([9])),
    "remembered as gone": lambda d: d.client.set(f"{P}known:{d.task()}", "x"),
    "which does not live": lambda d: d.client.set(f"{P}u:x", "nobody"),
    "without its unique key": lambda d: d.client.delete(f"{P}u:\tplain\tkept"),
    "without its idempotency key": lambda d: d.client.delete(f"{P}d:\tplain\tkept"),
    "stands at": lambda d: d.client.zincrby(d.key("outbox:ended"), 1, dump(d.url).keys["outbox:ended"][0][0]),
    "before its outbox entry": lambda d: d.client.delete(f"{P}t:{d.task(completed)}"),
    "owing:": lambda d: d.client.hset(f"{P}owing", "nobody", 1),
    "lanes:": lambda d: d.client.hset(f"{P}lanes", "nobody", 1),
    "live tasks:": lambda d: d.packed(d.key("L:"), 10, 99),
    "not ordered as its lane": lambda d: d.change(d.task(lambda h: bool(h.flags & 1) and h.state < 5), flags=0),
    "nobody will remove it": lambda d: [d.client.delete(f"{P}empty"), *(d.packed(key.decode(), 10, 0) for key in d.client.scan_iter(f"{P}L:*"))],
    "its next is": lambda d: d.packed(d.key("L:"), 7, 12345),
    "which it should not": lambda d: d.packed(d.key("L:"), 9, "nothing"),
    "its best open lane has": lambda d: d.packed(d.key("S:"), 3, 2),
    "stands:": lambda d: d.client.hset(f"{P}stands", "few\t99", 1),
    "o:": lambda d: d.client.delete(*d.client.scan_iter(f"{P}o:*")),
    "os:": lambda d: d.client.delete(*d.client.scan_iter(f"{P}os:*")),
    "n:default is": lambda d: d.client.sadd(f"{P}n:default", "99"),
    "running tasks:": lambda d: d.packed(f"{P}c:few", 0, 77),
    "its log has": lambda d: d.client.rpush(f"{P}w:pace", "1 1"),
    "which has room": lambda d: [d.client.hset(f"{P}limits", n, msgspec.msgpack.encode([False, 1, 99])) for n in ("few", "each", "many")],
}  # fmt: skip


async def make(url: str, history: Path) -> None:
    """A store in the middle of its work: tasks in every state, some of them running, lanes that stand at their limits."""
    async with client_of(url, history) as client:
        await prepare(client)
        worker = Worker(client, 4 * SECOND)
        await worker.join()
        random = Random(3)
        for _ in range(6):
            await client.submit(batch(random))
            await worker.turn(slots=6)
        await client.submit([NewTask(type="plain", payload=b"{}", unique=Unique("kept"), idempotency_key="kept", delay=3_600 * SECOND)])
        await client.submit([*batch(random), *batch(random), *batch(random)])
        await client.claim(worker.name, worker.request + 1, ("default",), Room(9))
        await client.join(Joining(worker="narrow", queues=("default",), types={"lined": TYPES["lined"]}))
        await client.claim("narrow", 1, ("default",), Room(9))


async def test_each_can_be_seen_broken(tmp_path: Path, private_redis: RedisServer) -> None:
    url = private_redis.url()
    await make(url, tmp_path / "history")
    assert broken(url) == []
    damage = Damage(private_redis)
    whole = {key: damage.client.dump(key) or b"" for key in damage.client.scan_iter()}
    unseen = []
    for what, harm in DAMAGES.items():
        harm(damage)
        if not any(what in text for text in broken(url)):
            unseen.append(what)
        damage.client.flushall()
        with damage.client.pipeline(transaction=False) as pipeline:
            for key, value in whole.items():
                pipeline.restore(key, 0, value)
            pipeline.execute()
    damage.client.close()
    assert unseen == []
