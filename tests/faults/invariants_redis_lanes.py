"""The same for lanes, shares and limits: what is next, what is open, and what is counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.faults.invariants_redis import ORDERED, PENDING, RUNNING, Dump, differ

__all__ = ["CHECKS"]

COMPLETED = 5
CAP = "="
"""In front of a limit whose rate does not count for a lane."""

_decode = msgspec.msgpack.decode


class Lane(msgspec.Struct, array_like=True, frozen=True):
    queue: str
    share: int
    limits: list[str] | dict[str, str]
    order_key: str
    type: str
    needs: str
    top: int | bool
    head_at: int | bool
    head_seq: int | bool
    shut: str | bool
    live: int
    field: str

    @property
    def empty(self) -> bool:
        return self.top is False


def lanes_of(d: Dump) -> dict[int, Lane]:
    return {int(number): msgspec.msgpack.decode(raw, type=Lane) for number, raw in d.all("L:").items()}


def _lanes(d: Dump) -> Iterator[str]:
    lanes = lanes_of(d)
    yield from differ("lanes", {lane.field: number for number, lane in lanes.items()}, {name: int(value) for name, value in d.hash("lanes").items()})
    live = Counter(h.lane for h in d.tasks.values() if h.lane and h.state < COMPLETED)
    yield from differ("live tasks", dict(live), {number: lane.live for number, lane in lanes.items() if lane.live})
    for id, h in d.tasks.items():
        if h.lane and h.state < COMPLETED and h.lane in lanes and bool(h.flags & ORDERED) != bool(lanes[h.lane].order_key):
            yield f"{id} is not ordered as its lane is"
    for number, lane in lanes.items():
        if not lane.live and str(number) not in d.scores("empty"):
            yield f"lane {number} is empty, and nobody will remove it"
        head = _head(d, number, lane)
        if (lane.top, lane.head_at, lane.head_seq) != head:
            yield f"lane {number} believes in {lane.top, lane.head_at, lane.head_seq}; its next is {head}"
        if lane.shut is not False and (lane.empty or lane.shut not in list(lane.limits)):
            yield f"lane {number} stands at {lane.shut}, which it should not"


def _head(d: Dump, number: int, lane: Lane) -> tuple[int | bool, int | bool, int | bool]:
    mine = [(-h.priority, h.ready_at, h.seq, h.state) for h in d.tasks.values() if h.lane == number and h.state < COMPLETED]
    if lane.order_key:
        mine = sorted(mine, key=lambda one: one[2])[:1]
    ready = sorted(one[:3] for one in mine if one[3] == PENDING)
    return (-ready[0][0], ready[0][1], ready[0][2]) if ready else (False, False, False)


def _indexes(d: Dump) -> Iterator[str]:
    """Open lanes by share and priority, those that stand at a limit, and shares by what they have."""
    expected: dict[str, dict[str, int]] = defaultdict(dict)
    needy: dict[str, set[str]] = defaultdict(set)
    tops: dict[int, int] = {}
    stands: dict[str, int] = {}
    for number, lane in lanes_of(d).items():
        if lane.empty:
            continue
        place = f"o:{lane.share}:{lane.top}" if lane.shut is False else f"s:{lane.shut}\t{lane.share}:{lane.top}"
        expected[place][f"{lane.head_seq:012x}{number}"] = int(lane.head_at)
        if lane.shut is False:
            tops[lane.share] = max(tops.get(lane.share, 0), int(lane.top))
            if lane.needs and lane.limits:
                needy[f"n:{lane.queue}"].add(str(number))
        else:
            field = f"{lane.shut}\t{lane.share}"
            stands[field] = max(stands.get(field, 0), int(lane.top))
    shares = {int(number): _decode(raw) for number, raw in d.all("S:").items()}
    for number, (queue, _, turn, top) in shares.items():
        if top != tops.get(number, False):
            yield f"share {number} believes in {top}; its best open lane has {tops.get(number)}"
        if number in tops:
            expected[f"os:{queue}:{tops[number]}"][f"{number:012x}"] = turn
    for field, top in stands.items():
        limit, _, share = field.rpartition("\t")
        queue, _, turn, _ = shares[int(share)]
        expected[f"st:{limit}\t{queue}:{top}"][f"{int(share):012x}"] = turn
    yield from differ("stands", stands, {name: int(value) for name, value in d.hash("stands").items()})
    names = {name for name in d.keys if name.partition(":")[0] in ("o", "os", "s", "st")}
    for name in names | expected.keys():
        yield from differ(name, expected[name], d.scores(name))
    for name in needy.keys() | {f"n:{queue}" for queue in d.all("n:")}:
        if needy[name] != {number.decode() for number in d.keys.get(name, ())}:
            yield f"{name} is {d.keys.get(name)}, not {needy[name]}"


def _limits(d: Dump) -> Iterator[str]:
    lanes = lanes_of(d)
    running: Counter[str] = Counter()
    for h in d.tasks.values():
        if h.state == RUNNING and h.lane:
            running.update(name.removeprefix(CAP) for name in lanes[h.lane].limits)
    counters = {name: _decode(raw) for name, raw in d.all("c:").items()}
    yield from differ("running tasks", dict(running), {name: counter[0] for name, counter in counters.items() if counter[0]})
    for name, (_, used, _) in counters.items():
        logged = sum(int(entry.split()[1]) for entry in d.keys.get(f"w:{name}", ()))
        if used != logged:
            yield f"limit {name} counts {used} starts, its log has {logged}"
    definitions: dict[str, Any] = {name: _decode(raw) for name, raw in d.hash("limits").items()}
    opened = Counter(name for lane in lanes.values() if not lane.empty and lane.shut is False for name in lane.limits)
    wakes = d.scores("wakes")
    for number, lane in lanes.items():
        if isinstance(lane.shut, str) and lane.shut not in wakes:
            limit = lane.shut.removeprefix(CAP)
            rate, _, cap = definitions.get(limit.partition(":")[0], (False, 0, False))
            if rate is not False and lane.shut == limit and counters[limit][1] >= rate:
                yield f"lane {number} stands at the rate {lane.shut}, and no time is noted when it opens"
            elif cap is False or cap - counters[limit][0] > opened[lane.shut]:
                yield f"lane {number} stands at {lane.shut}, which has room, and nothing opens it"


CHECKS: tuple[Callable[[Dump], Iterator[str]], ...] = (_lanes, _indexes, _limits)
