"""Queues: who is in them, whether they are paused, and emptying one."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable

import msgspec
from msgspec import Struct

from taskmill.engine import Count, Engine, Filter, Item, Target, WorkerInfo
from taskmill.operations import bulk, settings
from taskmill.operations.model import QueueInfo, QueueSettings, Tally
from taskmill.operations.names import unknown
from taskmill.operations.pauses import Pause, pauses
from taskmill.operations.pauses import pause as put_pause
from taskmill.operations.pauses import resume as drop_pause
from taskmill.operations.types import check_type, settings_of
from taskmill.task import LIVE, State, TypeSettings, check_name

__all__ = ["check_filter", "drop", "find", "pause", "purge", "put", "queues", "resume"]

WAITING = LIVE - {State.RUNNING}
REMEDY = "a queue appears with its first task, type or worker"


class _Named(Struct, frozen=True):
    """Everything that names a queue."""

    counts: tuple[Count, ...]
    workers: tuple[WorkerInfo, ...]
    types: dict[str, TypeSettings]
    pauses: dict[str, Pause]
    settings: dict[str, Item]

    def queues(self) -> set[str]:
        of_workers = {queue for worker in self.workers for queue in worker.queues}
        return {count.queue for count in self.counts} | of_workers | {known.queue for known in self.types.values()} | set(self.pauses) | set(self.settings)


async def _named(engine: Engine) -> _Named:
    counts, workers, types, paused, items = await asyncio.gather(
        engine.counts(), engine.workers(), settings_of(engine), pauses(engine, "queue"), engine.items("queue")
    )
    return _Named(counts, workers, types, paused, {item.name: item for item in items})


async def queues(engine: Engine) -> tuple[QueueInfo, ...]:
    named = await _named(engine)
    by_queue: dict[str, list[Count]] = defaultdict(list)
    for count in named.counts:
        by_queue[count.queue].append(count)
    now = engine.clock.now()
    return tuple(_info(name, by_queue[name], named, now) for name in sorted(named.queues()))


def _info(name: str, counts: list[Count], named: _Named, now: int) -> QueueInfo:
    states: Counter[State] = Counter()
    for count in counts:
        states[count.state] += count.tasks
    oldest = min((count.oldest for count in counts if count.oldest is not None and count.state is State.PENDING), default=None)
    paused, put = named.pauses.get(name), named.settings.get(name)
    return QueueInfo(
        name=name,
        paused=paused is not None,
        reason=paused.reason if paused else "",
        counts=dict(states),
        oldest=None if oldest is None else max(0, now - oldest),
        no_worker=sum(count.tasks for count in counts if count.no_worker),
        workers=sum(worker.alive and name in worker.queues for worker in named.workers),
        settings=QueueSettings() if put is None else msgspec.json.decode(put.value, type=QueueSettings),
        version=0 if put is None else put.version,
    )


async def find(engine: Engine, name: str) -> QueueInfo:
    """Counts may be some seconds old: a queue that only its tasks name is shown before they are counted."""
    named = await _named(engine)
    if name not in named.queues():
        await _check(engine, name)
    return _info(name, [count for count in named.counts if count.queue == name], named, engine.clock.now())


async def check_filter(engine: Engine, which: Filter) -> None:
    """Names of queues and types that appear nowhere are mistakes, not empty sets."""
    for queue in sorted(which.queues):
        await _check(engine, queue, field="queues")
    for type_name in sorted(which.types):
        await check_type(engine, type_name, field="types")


async def _check(engine: Engine, name: str, field: str = "name") -> None:
    """Counts may be some seconds old, so the tasks have the last word."""
    known = (await _named(engine)).queues()
    if check_name(name, field) not in known and not (await engine.list(Filter(queues=frozenset({name})), n=1)).tasks:
        raise unknown("queue", name, known, REMEDY, field=field)


async def pause(engine: Engine, name: str, reason: str) -> bool:
    await _check(engine, name)
    return await put_pause(engine, "queue", name, reason)


async def resume(engine: Engine, name: str) -> bool:
    await _check(engine, name)
    return await drop_pause(engine, "queue", name)


async def put(engine: Engine, name: str, wanted: QueueSettings, version: int | None) -> QueueInfo:
    """The engine checks the numbers. A queue need not be known yet: its settings may come before its first task."""
    await settings.put(engine, "queue", check_name(name, "name"), msgspec.json.encode(wanted), version)
    return await find(engine, name)


async def drop(engine: Engine, name: str, version: int | None) -> bool:
    """Whether there were any. A queue that nothing else names is unknown from then on."""
    await _check(engine, name)
    return await engine.drop("queue", name, version=version)


async def purge(engine: Engine, name: str, *, dry_run: bool, progress: Callable[[int], None] | None) -> Tally:
    """Each batch is cancelled and then, by id, removed: what had been cancelled before is not touched."""
    await _check(engine, name)
    which = Filter(queues=frozenset({name}), states=WAITING)
    tallying = bulk.Tallying(progress)
    if dry_run:
        await bulk.count(engine, which, WAITING, tallying)
        return tallying.tally()
    cursor = None
    while True:
        changes = await engine.cancel(which, after=cursor, n=bulk.BATCH)
        cancelled = [change for change in changes.tasks if change.state is State.CANCELLED]
        others = [change for change in changes.tasks if change.state is not State.CANCELLED]
        removed = await engine.delete([Target(change.task) for change in cancelled])
        tallying.add([*removed.tasks, *others])
        cursor = changes.cursor
        if cursor is None:
            return tallying.tally()
