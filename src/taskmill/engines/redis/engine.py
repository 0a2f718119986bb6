"""The fast engine: every transition is one script on a Redis server. What a verb does lies in the script of its name; here each is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from taskmill.batching import Shared
from taskmill.clock import SECOND, Clock
from taskmill.engine import (
    DEFAULT_RETENTION,
    EVERYTHING,
    Beat,
    Changes,
    Checkpoint,
    Claim,
    Count,
    Durability,
    Entry,
    Features,
    Filter,
    Finding,
    Finished,
    Fired,
    Item,
    Joining,
    Matching,
    Moved,
    Outcome,
    Page,
    Record,
    Refusal,
    Retention,
    Room,
    Submitted,
    Taken,
    Target,
    Term,
    Transaction,
    WorkerInfo,
)
from taskmill.engines.outcomes import check_outcomes
from taskmill.engines.redis import claim, finish, inspect, listing, settings, submit
from taskmill.engines.redis.check import STUCK, check, emptied, guard
from taskmill.engines.redis.store import Shards, Store
from taskmill.engines.redis.target import Target as Place
from taskmill.engines.redis.waiting import Events, Hints, Waiters, Wakes, listen
from taskmill.errors import Conflict, StoreError
from taskmill.task import RULES, Attempt, EdgeResult, Gone, NewTask, Rules, State, Task, check_id, check_key, check_name, new_id, sequence_of

if TYPE_CHECKING:
    from taskmill.engines.redis.cluster import ClusterEngine

__all__ = ["RedisEngine", "engine_of"]

COUNTS_AGE = 5 * SECOND
MEND = 60.0
"""Seconds between two looks for tasks that wait for nothing."""


def engine_of(
    place: Place,
    *,
    clock: Clock | None = None,
    lease: int = 4 * SECOND,
    term: int = 4 * SECOND,
    rules: Rules = RULES,
) -> RedisEngine | ClusterEngine:
    """The engine for what a URL says, not yet opened."""
    shards = Shards(place, clock, rules)
    if not place.cluster:
        return RedisEngine(shards[0], lease=lease, term=term)
    from taskmill.engines.redis.cluster import ClusterEngine

    return ClusterEngine(shards, lease=lease, term=term)


class RedisEngine:
    """A store on a Redis server, or a shard of one on a Cluster."""

    features = Features(name="redis", user_transactions=False, token_never_repeats=False, filters_by_index=False)

    def __init__(self, store: Store, *, lease: int, term: int) -> None:
        self.store = self._store = store
        self.clock = store.shards.clock
        self._lease = lease
        self._term = term
        self._open = False
        self.served: dict[str, tuple[str, ...]] = {}
        """The workers that have joined here, with their queues."""
        self._mend_at, self._mended = 0.0, 0
        """When waiting tasks are looked at next, and behind which."""
        self._counts = Shared(lambda: inspect.counts(self._opened()), self.clock, COUNTS_AGE)

    # Coming and going

    async def open(self) -> None:
        if not self._open:
            try:
                await guard(self._store.shards)
                await self._store.read_settings()
            except BaseException:
                await self._store.shards.close()
                raise
            self.start()

    def start(self) -> None:
        self._waiters = Waiters(self._store)
        self._wakes = Wakes(self._store, lambda: sorted({queue for queues in self.served.values() for queue in queues}))
        self._open = True

    async def stop(self) -> None:
        if self._open:
            self._open = False
            await self._waiters.close()
            await self._wakes.close()

    async def close(self) -> None:
        if self._open:
            await self.stop()
            await self._store.shards.close()

    def _opened(self) -> Store:
        if not self._open:
            raise StoreError("the engine is not open", code="closed", hint="await engine.open() first")
        return self._store

    async def migrate(self) -> tuple[str, ...]:
        return ()

    async def check(self) -> tuple[Finding, ...]:
        return await check(self._opened().shards)

    def new_id(self, queue: str) -> str:
        return new_id()

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        raise Conflict("Redis has no transaction that a user's own writes could be in", code="no_transactions", hint="use PostgreSQL or SQLite for that")

    def in_transaction(self) -> bool:
        return False

    # A task's life

    async def submit(
        self,
        tasks: Sequence[NewTask],
        *,
        unseal: Sequence[str] = (),
        reserved: bool = False,
        durability: Durability | None = None,
        tx: Transaction | None = None,
    ) -> tuple[Submitted, ...]:
        sequence_of(tasks)
        return tuple(await submit.submit(self._opened(), tasks, unseal=unseal, reserved=reserved, durability=durability))

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        return await self.claim_rest(worker, request, queues, room, room.max_bytes)

    async def claim_rest(self, worker: str, request: int, queues: Sequence[str], room: Room, most_bytes: int) -> Claim:
        """Within what other shards left of so many bytes."""
        for queue in queues:
            check_name(queue, "queues")
        self.serve(worker, queues)
        return await claim.claim(self._opened(), worker, request, queues, room, most_bytes)

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        check_outcomes(outcomes)
        return await finish.finish(self._opened(), outcomes)

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        return await finish.checkpoint(self._opened(), entries)

    async def signal(self, task: str, name: str, data: bytes, id: str) -> int:
        check_name(name, "name")
        check_key(id, "id")
        return await finish.signal(self._opened(), task, name, data, id)

    # Workers

    async def join(self, joining: Joining) -> None:
        await settings.join(self._opened(), joining)
        self.serve(joining.worker, joining.queues)

    def serve(self, worker: str, queues: Sequence[str]) -> None:
        self.served[worker] = tuple(queues)

    async def leave(self, worker: str) -> None:
        await self._opened().run("leave", [worker])
        self.served.pop(worker, None)

    async def heartbeat(self, worker: str, request: int, leases: Iterable[int], *, tasks: bool = False) -> Beat:
        return (await self.beat(worker, request, leases, tasks))[0]

    async def beat(self, worker: str, request: int, leases: Iterable[int], tasks: bool) -> tuple[Beat, str]:
        """And the shards that know the worker, if this is shard 0."""
        store = self._opened()
        named = sorted(leases)
        known, *rest = await store.run("heartbeat", [worker, request, named, store.mono(), tasks])
        if not known:
            return Beat(False, tuple(named)), ""
        lost, cancelled, command, served, told = rest
        held = dict(zip(told[::2], told[1::2], strict=True)) if told else {}
        return Beat(True, tuple(sorted(lost or ())), tuple(cancelled or ()), inspect.commands(command), held), served or ""

    async def recover_lost(self, n: int = 500) -> Moved:
        store = self._opened()
        moved, more, lost, moving, whole = await store.run("recover", [min(n, 200), self._lease, store.mono()])
        if not whole:
            await emptied(store)
        if moving:
            more = await settings.move_types(store, n) or more
        return Moved(moved + await self._mend(store), bool(more), tuple(lost or ()))

    async def _mend(self, store: Store) -> int:
        """Once a minute: some of the tasks that wait, and are to be made ready if nothing else will do it. How many were."""
        now = asyncio.get_running_loop().time()
        if now < self._mend_at:
            return 0
        self._mend_at = now + MEND
        mended, after = await store.run("stuck", [self._mended, STUCK, True])
        self._mended = after or 0
        return len(mended or ())

    async def prune(self, n: int, term: Term, retention: Retention = DEFAULT_RETENTION) -> Moved:
        moved, _ = await settings.prune(self._opened(), n, term, retention)
        return moved

    # Administration

    async def cancel(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await self._change("cancel", which, after, n)

    async def requeue(self, which: Sequence[Target] | Filter, *, from_start: bool = False, after: str | None = None, n: int = 500) -> Changes:
        return await self._change("requeue", which, after, n, from_start=from_start)

    async def delete(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await self._change("delete", which, after, n)

    async def _change(self, verb: str, which: Sequence[Target] | Filter, after: str | None, n: int, *, from_start: bool = False) -> Changes:
        store = self._opened()
        cursor = None
        if isinstance(which, Filter):
            ids, cursor = await listing.matching(store, which, after, n)
            which = [Target(task) for task in ids]
        return Changes(await settings.admin(store, verb, which, from_start=from_start), cursor)

    # Inspection

    async def get(self, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
        return await inspect.get(self._opened(), ids)

    async def edges(self, task: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        return await inspect.edges(self._opened(), task, after, n)

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        return await listing.list_tasks(self._opened(), which, after, n)

    async def cursor_of(self, task: str) -> str:
        """Where a page goes on that ended with this task."""
        store = self._opened()
        return str(int(await store.ask("ZSCORE", store.key("ids"), task) or 0))

    async def matching(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 1_000) -> Matching:
        ids, cursor = await listing.matching(self._opened(), which, after, n)
        return Matching(tuple(ids), cursor)

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        return await inspect.attempts(self._opened(), task)

    async def counts(self) -> tuple[Count, ...]:
        return await self._counts.get()

    async def workers(self) -> tuple[WorkerInfo, ...]:
        store = self._opened()
        return await inspect.workers(store, store.mono() or await inspect.now_of(store))

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        for task in ids:
            check_id(task)
        self._opened()
        return await self._waiters.wait(ids, timeout)

    # Settings

    async def put(self, kind: str, name: str, value: bytes, *, version: int | None = None, operator: bool = True) -> Item:
        return await settings.put(self._opened(), kind, name, value, version, operator=operator)

    async def drop(self, kind: str, name: str, *, version: int | None = None) -> bool:
        return await settings.drop(self._opened(), kind, name, version)

    async def items(self, kind: str, *, tx: Transaction | None = None) -> tuple[Item, ...]:
        return await inspect.items(self._opened(), kind)

    # Leadership and what is done under it

    async def lead(self, role: str, holder: str) -> Term | None:
        check_name(role, "role")
        check_key(holder, "holder", length=128)
        store = self._opened()
        number = await store.run("lead", ["lead", role, holder, self._term, 0, store.mono()])
        return Term(role, holder, number) if number else None

    async def resign(self, term: Term) -> None:
        store = self._opened()
        await store.run("lead", ["resign", term.role, term.holder, self._term, term.number, store.mono()])

    async def leaders(self, roles: Sequence[str]) -> tuple[Term, ...]:
        store = self._opened()
        return await inspect.leaders(store, roles, store.mono() or await inspect.now_of(store), self._term)

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        return await settings.fire(self._opened(), schedule, version, tasks, next_at, term)

    async def take(self, limit: str, n: int, id: str) -> Taken:
        check_key(id, "id")
        return await settings.take(self._opened(), limit, n, id)

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        return await settings.outbox(self._opened(), kind, after, n, term)

    async def records(self, ids: Sequence[str]) -> tuple[Record | None, ...]:
        return await inspect.records(self._opened(), ids)

    async def restore(self, records: Sequence[Record]) -> tuple[bool, ...]:
        return await settings.restore(self._opened(), records)

    # Hints

    async def wakeups(self) -> Hints:
        self._opened()
        return self._wakes.listen()

    def hints(self, heard: asyncio.Event) -> Hints:
        """The same, into an event that others share."""
        self._opened()
        return self._wakes.listen(heard)

    async def events(self) -> Events:
        return await listen(self._opened())
