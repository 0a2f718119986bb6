"""What must hold in a store on Redis between any two scripts, whatever was killed, cut off, emptied or failed over before.

Scripts keep some facts twice, so that none has to count: where a task stands in its line, the tasks of every state, a limit's running tasks and starts, the
head of a lane, a task's open edges. All keys are read (nobody may be at work), and all of it is counted again the slow way; see also invariants_redis_lanes.py.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from taskmill.engines.redis.records import Body, Header, parts, under_lease
from taskmill.engines.redis.target import parse
from taskmill.engines.rows import decode_meta
from tests.faults.redis_reading import reader

__all__ = ["CHECKS", "FAR", "ORDERED", "PENDING", "RUNNING", "Dump", "broken", "dump", "dumps"]

PENDING, SCHEDULED, RETRYING, RUNNING, WAITING, COMPLETED = 0, 1, 2, 3, 4, 5
ORDERED, CANCEL, UNIQUE_STARTED, UNIQUE_ENDED, EDGES, WAITED, SEALED, AWAITS, _, CHECKPOINTS, SIGNALS = (1 << n for n in range(11))
FAR = 1 << 62
HOLD = 2
SINGLE = frozenset(
    [
        "beside",
        "counts",
        "due",
        "edge",
        "empty",
        "events",
        "expiry",
        "fallen",
        "falling",
        "forgets",
        "generation",
        "ids",
        "keys",
        "lanes",
        "leases",
        "levels",
        "limits",
        "listen",
        "mark",
        "moving",
        "numbers",
        "outbox",
        "owed",
        "owing",
        "paused",
        "post",
        "posts",
        "queue_settings",
        "queues",
        "requests",
        "seq",
        "served",
        "shards",
        "shares",
        "stands",
        "store",
        "takens",
        "told",
        "token",
        "turns",
        "unused",
        "waited",
        "waited_for",
        "wakes",
        "workers",
        "beats",
    ]
)
MANY = frozenset(
    [
        "t",
        "q",
        "l",
        "ended",
        "in",
        "attempts",
        "checkpoints",
        "signals",
        "signal_ids",
        "edges",
        "edge_order",
        "waiters",
        "known",
        "d",
        "u",
        "L",
        "S",
        "o",
        "os",
        "n",
        "s",
        "st",
        "sq",
        "ss",
        "c",
        "w",
        "order",
        "run",
        "stop",
        "items",
        "term",
        "outbox",
        "taken",
        "terms",
        "alias",
        "wake",
        "watchers",
    ]
)
"""Names of keys: those that are alone, and those behind which a name follows."""

_decode = msgspec.msgpack.decode


class Dump:
    """All keys of a store, read once."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        found = {name: parts(raw) for name, raw in self.all("t:").items()}
        self.leases = {id: lease.decode() for id, lease in self.hash("leases").items()}
        self.tasks: dict[str, Header] = {id: under_lease(header, self.leases[id]) if id in self.leases else header for id, (header, _) in found.items()}
        self.bodies: dict[str, Body] = {id: body for id, (_, body) in found.items()}

    def all(self, prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in self.keys.items() if name.startswith(prefix)}

    @functools.cache  # noqa: B019 - it lives as long as one look
    def hash(self, name: str) -> dict[str, bytes]:
        return {field.decode(): value for field, value in self.keys.get(name, {}).items()}

    @functools.cache  # noqa: B019
    def scores(self, name: str) -> dict[str, int]:
        return {member.decode(): int(score) for member, score in self.keys.get(name, ())}

    def number(self, name: str) -> int:
        return int(self.keys.get(name, 0))

    def edges(self, task: str) -> dict[str, Any]:
        return {child: _decode(raw) for child, raw in self.hash(f"edges:{task}").items()}


READ: dict[bytes, Callable[[Any, str], Any]] = {
    b"string": lambda ask, key: ask.get(key),
    b"hash": lambda ask, key: ask.hgetall(key),
    b"set": lambda ask, key: ask.smembers(key),
    b"list": lambda ask, key: ask.lrange(key, 0, -1),
    b"zset": lambda ask, key: ask.zrange(key, 0, -1, withscores=True),
    b"stream": lambda ask, key: ask.xlen(key),
}


def dumps(url: str) -> dict[int, Dump]:
    """Every shard of the store, by its number; one server has one."""
    prefix = parse(url).prefix
    with reader(url) as client:
        names = sorted({key.decode() for key in client.scan_iter(f"{prefix}:{{*", count=1_000)})
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.type(name)
        for name, kind in zip(names, pipeline.execute() if names else (), strict=True):
            READ[kind](pipeline, name)
        shards: dict[int, dict[str, Any]] = {0: {}}
        for name, value in zip(names, pipeline.execute() if names else (), strict=True):
            number, _, rest = name.removeprefix(f"{prefix}:{{").partition("}:")
            shards.setdefault(int(number), {})[rest] = value
    return {number: Dump(keys) for number, keys in shards.items()}


def dump(url: str) -> Dump:
    return dumps(url)[0]


def broken(url: str) -> list[str]:
    """Everything that is wrong in the store of this URL."""
    from tests.faults import invariants_redis_lanes, invariants_redis_shards

    found = dumps(url)
    checks = (*CHECKS, *invariants_redis_lanes.CHECKS)
    if not parse(url).cluster:
        return [text for check in checks for text in check(found[0])]
    near = [f"shard {number}: {text}" for number, each in found.items() for check in checks if check is not edges_are_known for text in check(each)]
    return near + list(invariants_redis_shards.check(found))


def differ(what: str, expected: dict[Any, Any], found: dict[Any, Any]) -> Iterator[str]:
    """What stands in one of them only, or otherwise."""
    for name in sorted(expected.keys() | found.keys(), key=str):
        if expected.get(name) != found.get(name):
            yield f"{what}: {name} is {found.get(name)}, not {expected.get(name)}"


# Where tasks are


def member(header: Header, id: str) -> str:
    plain = header.expires_at is False and not header.flags & UNIQUE_STARTED
    return f"{header.seq:012x}{'-' if plain else '+'}{header.type}{id}"


def _names(d: Dump) -> Iterator[str]:
    for name in d.keys:
        if name not in SINGLE and name.partition(":")[0] not in MANY:
            yield f"a key of no kind: {name}"


def _numbers(d: Dump) -> Iterator[str]:
    yield from differ("ids", {id: h.seq for id, h in d.tasks.items()}, d.scores("ids"))
    for id, h in d.tasks.items():
        if h.seq > d.number("seq") or int(h.token) > d.number("token"):
            yield f"{id} has a number or token that the store has not given"
        if h.state >= COMPLETED and h.finished_at is False:
            yield f"{id} has ended at no time"
    counted = Counter(f"{h.queue}\t{h.type}\t{h.priority}\t{h.state}" for h in d.tasks.values())
    yield from differ("counts", dict(counted), {name: int(value) for name, value in d.hash("counts").items()})


def _lines(d: Dump) -> Iterator[str]:
    expected: dict[str, dict[str, int]] = defaultdict(dict)
    for id, h in d.tasks.items():
        line = f"q:{h.queue}:{h.priority}" if h.lane == 0 else f"l:{h.lane}:{h.priority}"
        if h.state == PENDING or (h.lane == 0 and h.state < RUNNING):
            expected[line][member(h, id)] = h.ready_at
        if h.state in (SCHEDULED, RETRYING, WAITING) and h.ready_at < FAR:
            expected["due"][id] = h.ready_at
        if h.state >= COMPLETED:
            expected[f"ended:{h.state}"][id] = int(h.finished_at)
        if h.state not in (PENDING, RUNNING, COMPLETED):
            expected[f"in:{h.state}"][id] = h.seq
        if h.state < COMPLETED and h.flags & ORDERED:
            expected[f"order:{h.lane}"][id] = h.seq
    names = {name for name in d.keys if name == "due" or name.startswith(("q:", "l:", "ended:", "in:", "order:"))}
    for name in names | expected.keys():
        yield from differ(name, expected[name], d.scores(name))


def _leases(d: Dump) -> Iterator[str]:
    running = {id: h for id, h in d.tasks.items() if h.state == RUNNING}
    expected: dict[str, dict[str, str]] = defaultdict(dict)
    for id, h in running.items():
        expected[f"run:{h.worker}"][f"{h.token:016x}"] = f"{h.request}\t{id}"
        if str(h.worker) not in d.hash("workers"):
            yield f"{id} runs under {h.worker}, which is not registered"
    for name in expected.keys() | {f"run:{worker}" for worker in d.all("run:")}:
        yield from differ(name, expected[name], {token: value.decode() for token, value in d.hash(name).items()})
    for worker, stops in d.all("stop:").items():
        for id in map(bytes.decode, stops):
            if id not in running or running[id].worker != worker or not running[id].flags & CANCEL:
                yield f"{id} is to be stopped by {worker} and does not run there"
    if d.hash("workers").keys() != d.scores("beats").keys() or d.hash("requests").keys() - d.hash("workers").keys():
        yield "workers, beats and requests are not of the same workers"
    for token, times in Counter(h.token for h in d.tasks.values() if h.token).items():
        if times > 1:
            yield f"token {token} is of {times} tasks"


# What tasks have


def edges_are_known(d: Dump) -> Iterator[str]:
    falling = d.hash("fallen")
    if falling.keys() != d.scores("falling").keys():
        yield "falling and fallen differ"
    for id, h in d.tasks.items():
        edges = d.edges(id)
        opened = [child for child, edge in edges.items() if edge[2] is False]
        if len(opened) != h.open_edges:
            yield f"{id} counts {h.open_edges} open edges, there are {len(opened)}"
        if edges.keys() != d.scores(f"edge_order:{id}").keys() or bool(edges) > bool(h.flags & EDGES):
            yield f"{id} does not know its edges"
        for child in opened:
            yield from _open_edge(d, id, child, edges[child], falling)
        if h.state == WAITING and not (opened or h.flags & (SEALED | AWAITS) or h.ready_at < FAR):
            yield f"{id} waits for nothing"


def _open_edge(d: Dump, id: str, child: str, edge: Any, falling: dict[str, bytes]) -> Iterator[str]:
    found = d.tasks.get(child)
    if id not in d.scores(f"waiters:{child}"):
        yield f"{child} does not know that {id} waits for it"
    if found is None:
        yield f"{id} waits for {child}, which is gone"
    elif not found.flags & WAITED:
        yield f"{child} is waited for and does not know it"
    elif found.state >= COMPLETED and (found.state == COMPLETED or edge[1] != HOLD) and child not in falling:
        yield f"the edge of {id} onto {child} never falls"


def _bytes(d: Dump) -> dict[str, str]:
    """What tasks have beside their records: bytes of checkpoints and of signals."""
    steps = {id: sum(len(name.encode()) + len(value) for name, value in d.hash(f"checkpoints:{id}").items()) for id in d.all("checkpoints:")}
    signals = {id: sum(len(part.encode()) for raw in raws for part in _decode(raw)[1:3]) for id, raws in d.all("signals:").items()}
    return {id: f"{steps.get(id, 0)} {signals.get(id, 0)}" for id in steps.keys() | signals.keys()}


def _belongings(d: Dump) -> Iterator[str]:
    for kind, flag in (("checkpoints:", CHECKPOINTS), ("signals:", SIGNALS)):
        for id in d.all(kind):
            if id not in d.tasks or not d.tasks[id].flags & flag:
                yield f"{kind}{id} is of nobody who knows it"
            elif kind == "signals:" and d.tasks[id].state >= COMPLETED:
                yield f"{id} has ended and has signals"
    yield from differ("beside", _bytes(d), {id: text.decode() for id, text in d.hash("beside").items()})
    for kind in ("attempts:", "edges:", "edge_order:", "signal_ids:"):
        yield from (f"{kind}{id} is of nobody" for id in d.all(kind) if id not in d.tasks)
    for id, raws in d.all("attempts:").items():
        numbers = [_decode(raw)[0] for raw in raws]
        if id in d.tasks and (len(set(numbers)) < len(numbers) or max(numbers) > d.tasks[id].executions):
            yield f"{id} has attempts {numbers} of {d.tasks[id].executions}"
    yield from (f"{id} is there and remembered as gone" for id in d.all("known:") if id in d.tasks)
    yield from (f"{id} has a lease and no record" for id in d.leases if id not in d.tasks)


def _keys(d: Dump) -> Iterator[str]:
    for name, holder in d.all("u:").items():
        id = holder.decode()
        if id not in d.tasks or d.tasks[id].state >= COMPLETED:
            yield f"the unique key {name!r} is held by {id}, which does not live"
    for id, h in d.tasks.items():
        unique = d.keys.get(f"u:{h.tenant}\t{h.type}\t{h.unique}")
        if h.state < COMPLETED and h.flags & UNIQUE_ENDED and unique != id.encode():
            yield f"{id} lives without its unique key"
        key = decode_meta(d.bodies[id].meta).key
        raw = d.keys.get(f"d:{h.tenant}\t{h.type}\t{key}")
        if key and h.state < COMPLETED and (raw is None or _decode(raw)[0] != id):
            yield f"{id} lives without its idempotency key"


def _outbox(d: Dump) -> Iterator[str]:
    owed: Counter[str] = Counter()
    ends: Counter[tuple[str, str]] = Counter()
    for kind, entries in d.all("outbox:").items():
        for raw, number in entries:
            found, subject, data, _ = _decode(raw)
            owed[subject] += 1
            if found != number or number > d.number("outbox"):
                yield f"outbox entry {found} of {kind} stands at {number:.0f}"
            if kind in ("ended", "dead"):
                ends[kind, f"{subject} {msgspec.json.decode(data)['version']}"] += 1
                if subject not in d.tasks:
                    yield f"{subject} was removed before its outbox entry was delivered"
    yield from (f"{end} stands {times} times in the outbox" for end, times in ends.items() if times > 1)
    yield from differ("owing", dict(owed), {name: int(value) for name, value in d.hash("owing").items()})


CHECKS: tuple[Callable[[Dump], Iterator[str]], ...] = (_names, _numbers, _lines, _leases, edges_are_known, _belongings, _keys, _outbox)
