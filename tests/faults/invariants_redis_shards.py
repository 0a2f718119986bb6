"""What must hold between the shards of a store on a Cluster, when nobody is at work and all that was left for other shards has been brought there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tests.faults.invariants_redis import FAR, Dump

__all__ = ["check"]

WAITING, COMPLETED = 4, 5
SEALED, AWAITS = 1 << 6, 1 << 7
HOLD = 2


def check(shards: Mapping[int, Dump]) -> Iterator[str]:
    homes = {id: number for number, shard in shards.items() for id in shard.tasks}
    twice = Counter(id for shard in shards.values() for id in shard.tasks)
    yield from (f"{id} is in {times} shards" for id, times in twice.items() if times > 1)
    listed = {int(number) for number in shards[0].keys.get("shards", ())} | {0}
    yield from (f"shard {number} has tasks and is not listed" for number, shard in shards.items() if shard.tasks and number not in listed)
    for number, shard in shards.items():
        if shard.keys.get("posts"):
            yield f"shard {number} has left something for others, and nobody brought it"
        yield from _edges(number, shards, homes)


def _edges(number: int, shards: Mapping[int, Dump], homes: Mapping[str, int]) -> Iterator[str]:
    shard = shards[number]
    for id, header in shard.tasks.items():
        edges = shard.edges(id)
        opened = [child for child, edge in edges.items() if edge[2] is False]
        if len(opened) != header.open_edges:
            yield f"{id} counts {header.open_edges} open edges, there are {len(opened)}"
        if header.state == WAITING and not (opened or header.flags & (SEALED | AWAITS) or header.ready_at < FAR):
            yield f"{id} waits for nothing"
        if header.state >= COMPLETED:
            continue
        for child in opened:
            yield from _open(number, shards, homes.get(child), id, child, hold=edges[child][1] == HOLD)


def _open(number: int, shards: Mapping[int, Dump], home: int | None, id: str, child: str, *, hold: bool) -> Iterator[str]:
    """Whoever waits is told: by its own shard, or because the other one knows of it."""
    if id not in shards[number].scores(f"waiters:{child}"):
        yield f"shard {number} does not know that {id} waits for {child}"
    if home is None:
        yield f"{id} waits for {child}, which is nowhere"
        return
    found = shards[home].tasks[child]
    if home != number and f"{number}:{child}".encode() not in shards[home].keys.get(f"watchers:{child}", ()):
        yield f"shard {home} does not know that shard {number} waits for {child}"
    if found.state == COMPLETED or (found.state > COMPLETED and not hold):
        yield f"the edge of {id} onto {child} never falls"
