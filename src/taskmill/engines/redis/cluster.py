"""A store on a Redis Cluster: 1,024 shards, each as a store on one server is, and a queue whole in its shard. Here every verb finds the shards it is about.

Shard 0 has what is everybody's: settings, schedules, terms, the list of shards in use, and all workers; settings that steps obey are copied to every shard
in use.
A token is its shard's number times 1,024 plus the shard, so none is another's.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec

from taskmill.batching import Shared
from taskmill.engine import (
    DEFAULT_RETENTION,
    EVERYTHING,
    Beat,
    Changed,
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
from taskmill.engines.redis import finish, inspect, settings, spread
from taskmill.engines.redis.check import check, guard
from taskmill.engines.redis.crossing import Crossing, by_shard
from taskmill.engines.redis.engine import COUNTS_AGE, RedisEngine
from taskmill.engines.redis.hearing import ClusterEvents, ClusterHints
from taskmill.engines.redis.placement import id_in, shard_said, shards_of
from taskmill.engines.redis.spread import outward, seen
from taskmill.engines.redis.store import HOT, Shards, Store
from taskmill.engines.redis.target import SHARDS
from taskmill.errors import Conflict, InvalidInput, NotFound, StaleTerm, StoreError
from taskmill.task import Attempt, EdgeResult, Gone, NewTask, State, Task, check_id, check_key, check_limit, check_name, sequence_of

__all__ = ["ClusterEngine"]

T = TypeVar("T")


class ClusterEngine:
    """A store on a Redis Cluster."""

    features = Features(name="redis", user_transactions=False, limits_over_queues=False, edges_in_step=False, token_never_repeats=False, filters_by_index=False)

    def __init__(self, shards: Shards, *, lease: int, term: int) -> None:
        self._shards = shards
        self.clock = shards.clock
        self._lease = lease
        self._term = term
        self._open = False
        self._parts: dict[int, RedisEngine] = {}
        self._crossing = Crossing(shards)
        self._joined: dict[str, Joining] = {}
        self._hints: set[ClusterHints] = set()
        self._counts = Shared(self._count, self.clock, COUNTS_AGE)

    # Coming and going

    async def open(self) -> None:
        if not self._open:
            try:
                await guard(self._shards)
                await self._shards.read_settings()
            except BaseException:
                await self._shards.close()
                raise
            self._open = True

    async def close(self) -> None:
        if self._open:
            self._open = False
            await asyncio.gather(*(part.stop() for part in self._parts.values()))
            await self._shards.close()

    def _part(self, shard: int) -> RedisEngine:
        if not self._open:
            raise StoreError("the engine is not open", code="closed", hint="await engine.open() first")
        part = self._parts.get(shard)
        if part is None:
            part = self._parts[shard] = RedisEngine(self._shards[shard], lease=self._lease, term=self._term)
            part.start()
        return part

    async def _all(self) -> list[RedisEngine]:
        self._part(0)
        return [self._part(store.number) for store in await self._shards.in_use()]

    async def migrate(self) -> tuple[str, ...]:
        return ()

    async def check(self) -> tuple[Finding, ...]:
        self._part(0)
        return await check(self._shards)

    def new_id(self, queue: str) -> str:
        return id_in(shards_of(queue, self._shards.settings))

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
        self._part(0)
        opened = [check_id(task, "unseal") for task in unseal]
        answers = await self._crossing.submit(tasks, unseal=opened, reserved=reserved, durability=durability)
        await self._crossing.deliver()
        return tuple(answers)

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        for queue in queues:
            check_name(queue, "queues")
        served = await self._served(worker)
        if not served:
            raise Conflict(f"worker {worker} is not registered (any more)", code="unknown_worker", field="worker", hint="join under a new id")
        groups: dict[int, list[str]] = {}
        for queue in queues:
            for shard in shards_of(queue, self._shards.settings):
                if shard in served:
                    groups.setdefault(shard, []).append(queue)
        found = await spread.claim({shard: (self._part(shard), some) for shard, some in groups.items()}, worker, request, room)
        await self._crossing.deliver()
        if self._shards.stale:
            await self._notice()
        return found

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        check_outcomes(outcomes)
        refused: list[Refusal] = []
        instead: dict[str, State] = {}
        more = False
        for shard, places in by_shard({place: outcome.token % SHARDS for place, outcome in enumerate(outcomes)}).items():
            near = [msgspec.structs.replace(outcomes[place], token=outcomes[place].token // SHARDS) for place in places]
            found = await self._shards.placed(functools.partial(self._finish, shard, near))
            refused += [msgspec.structs.replace(refusal, token=outward(shard, refusal.token)) for refusal in found.refused]
            instead |= found.instead
            more = found.more or more
        await self._crossing.deliver()
        more = await self._crossing.settle() or more
        return Finished(await self._judged(refused), instead, more)

    async def _finish(self, shard: int, outcomes: list[Outcome]) -> Finished:
        near, far = await spread.apart(self._crossing, self._shards, shard, outcomes)
        return await finish.finish(self._store(shard), near, far)

    async def _judged(self, refused: Sequence[Refusal]) -> tuple[Refusal, ...]:
        """A token leads to a shard; a task that is not there may be elsewhere, and then the token was never its."""
        there = await self._crossing.located([refusal.task for refusal in refused if refusal.code == "not_found"])
        return tuple(
            msgspec.structs.replace(refusal, code="stale_lease", message=finish.STALE) if refusal.code == "not_found" and refusal.task in there else refusal
            for refusal in refused
        )

    def _store(self, shard: int) -> Store:
        self._part(shard)
        return self._shards[shard]

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        refused: list[Refusal] = []
        for shard, places in by_shard({place: entry.token % SHARDS for place, entry in enumerate(entries)}).items():
            near = [msgspec.structs.replace(entries[place], token=entries[place].token // SHARDS) for place in places]
            found = await self._part(shard).checkpoint(near)
            refused += [msgspec.structs.replace(refusal, token=outward(shard, refusal.token)) for refusal in found]
        return await self._judged(refused)

    async def signal(self, task: str, name: str, data: bytes, id: str) -> int:
        check_name(name, "name")
        check_key(id, "id")
        number = await self._at(task, lambda part: part.signal(task, name, data, id))
        await self._crossing.deliver()
        return number

    async def _at(self, task: str, ask: Callable[[RedisEngine], Awaitable[T]]) -> T:
        """Ask where the task is; at last where its pointer says."""
        self._part(0)
        homes = await self._crossing.homes([task])
        try:
            return await ask(self._part(homes.get(task, 0)))
        except NotFound:
            moved = await self._crossing.homes([task], again=True) if shard_said(task) is not None else {}
            if moved.get(task, homes.get(task)) == homes.get(task):
                raise
            return await ask(self._part(moved[task]))

    # Workers

    async def join(self, joining: Joining) -> None:
        await self._part(0).join(joining)
        self._joined[joining.worker] = joining
        await self._shards.read_settings()
        await self._copy()
        await self._serve(joining)

    async def _serve(self, joining: Joining) -> None:
        """Every shard of its queues knows the worker, and shard 0 knows which these are."""
        first = self._shards[0]
        groups: dict[int, list[str]] = {}
        for queue in joining.queues:
            for shard in shards_of(queue, self._shards.settings):
                groups.setdefault(shard, []).append(queue)
        for shard, queues in groups.items():
            if shard not in self._shards.listed:
                await self._shards.use(shard)
            if shard:
                await settings.join(self._store(shard), msgspec.structs.replace(joining, queues=tuple(queues)), declares=False)
            self._part(shard).serve(joining.worker, queues)
        await first.ask("HSET", first.key("served"), joining.worker, ",".join(map(str, sorted(groups))))
        for hints in self._hints:
            hints.hear(self._parts.values())

    async def _served(self, worker: str) -> set[int]:
        joining = self._joined.get(worker)
        if joining is not None:
            return {shard for queue in joining.queues for shard in shards_of(queue, self._shards.settings) if worker in self._part(shard).served}
        first = self._shards[0]
        return _numbers((await first.ask("HGET", first.key("served"), worker) or b"").decode())

    async def leave(self, worker: str) -> None:
        for shard in sorted(await self._served(worker) | {0}, reverse=True):
            await self._part(shard).leave(worker)
        self._joined.pop(worker, None)
        await self._crossing.deliver()

    async def heartbeat(self, worker: str, request: int, leases: Iterable[int], *, tasks: bool = False) -> Beat:
        """Shard 0 says who else is to hear it."""
        held = by_shard({token: token % SHARDS for token in leases})
        within = {shard: [token // SHARDS for token in tokens] for shard, tokens in held.items()}
        last = spread.last_request(request)
        beat, served = await self._part(0).beat(worker, last, within.get(0, ()), tasks)
        others = sorted(_numbers(served) - {0}) if beat.known else []
        asked = [self._part(shard).heartbeat(worker, last, within.get(shard, ()), tasks=tasks) for shard in others]
        beats = {0: beat} | dict(zip(others, await asyncio.gather(*asked), strict=True))
        await self._crossing.deliver()
        if not all(one.known for one in beats.values()):
            return Beat(False, tuple(sorted(token for tokens in held.values() for token in tokens)))
        lost = [outward(shard, token) for shard, one in beats.items() for token in one.lost]
        lost = sorted(lost + [token for shard in held.keys() - beats.keys() for token in held[shard]])
        told = {outward(shard, token): task for shard, one in beats.items() for token, task in one.tasks.items()}
        return Beat(True, tuple(lost), tuple(task for one in beats.values() for task in one.cancelled), beat.commands, told)

    async def recover_lost(self, n: int = 500) -> Moved:
        """In the shards of the workers here, or in all where there are none; and what was changed or left behind is brought where it belongs."""
        await self._notice()
        served = {0}.union(self._crossing.unsettled, *[await self._served(worker) for worker in self._joined])
        parts = [self._part(shard) for shard in sorted(served)] if self._joined else await self._all()
        moved, more, lost = 0, False, dict[str, None]()
        for part in parts:
            found = await part.recover_lost(n)
            moved, more, lost = moved + found.moved, more or found.more, lost | dict.fromkeys(found.lost)
            await self._crossing.deliver_of(part.store)
        return Moved(moved, await self._crossing.settle() or more, tuple(lost))

    async def _notice(self) -> None:
        first = self._store(0)
        await first.ask("SADD", first.key("shards"), *sorted(self._shards.listed))  # a failover may have lost it
        if int(await first.ask("GET", first.key("generation")) or 0) != self._shards.generation:
            await self._shards.read_settings()
            await self._copy()
            for joining in list(self._joined.values()):
                await self._serve(joining)

    async def prune(self, n: int, term: Term, retention: Retention = DEFAULT_RETENTION) -> Moved:
        await self._stands(term)
        moved, more = 0, False
        for part in await self._all():
            found, forgotten = await settings.prune(part.store, n - moved, term, retention)
            moved, more = moved + found.moved, more or found.more
            await self._crossing.forget(part.store, [id for id in forgotten if shard_said(id) != part.store.number])
            if moved >= n:
                return Moved(moved, True)
        return Moved(moved, more)

    async def _stands(self, term: Term) -> None:
        """Shard 0 knows whether a term is over; the others know no more than the highest that they have seen."""
        key = self._store(0).key(f"term:{term.role}")
        holder, number = await self._shards[0].ask("HMGET", key, "holder", "number")
        if (holder or b"").decode() != term.holder or int(number or 0) != term.number:
            raise StaleTerm(f"term {term.number} of {term.role} is over", field="term", hint="lead again before you write")

    # Administration

    async def cancel(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await self._change("cancel", which, after, n)

    async def requeue(self, which: Sequence[Target] | Filter, *, from_start: bool = False, after: str | None = None, n: int = 500) -> Changes:
        return await self._change("requeue", which, after, n, from_start=from_start)

    async def delete(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await self._change("delete", which, after, n)

    async def _change(self, verb: str, which: Sequence[Target] | Filter, after: str | None, n: int, *, from_start: bool = False) -> Changes:
        self._part(0)
        cursor = None
        if isinstance(which, Filter):
            page = await self.list(which, after=after, n=n)
            which, cursor = [Target(task.id) for task in page.tasks], page.cursor
        answers: dict[int, Changed] = {}
        for again in (False, True):
            left = {place: target for place, target in enumerate(which) if place not in answers or (again and _may_have_moved(answers[place]))}
            homes = await self._crossing.homes([target.task for target in left.values()], again=again) if left else {}
            for shard, places in by_shard({place: homes.get(target.task, 0) for place, target in left.items()}).items():
                found = await settings.admin(self._store(shard), verb, [left[place] for place in places], from_start=from_start)
                answers |= dict(zip(places, found, strict=True))
        await self._crossing.deliver()
        return Changes(tuple(answers[place] for place in range(len(which))), cursor)

    # Inspection

    async def get(self, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
        self._part(0)
        found = await self._crossing.located(ids)
        shown = {id: seen(shard, task) if isinstance(task, Task) else task for id, (shard, task) in found.items()}
        return tuple(shown.get(id) for id in ids)

    async def records(self, ids: Sequence[str]) -> tuple[Record | None, ...]:
        self._part(0)
        inspect.check_records(ids)
        found = await self._crossing.located(ids)
        records: dict[str, Record] = {}
        for shard, some in by_shard({id: shard for id, (shard, _) in found.items()}).items():
            for one in filter(None, await self._part(shard).records(some)):
                attempts = tuple(msgspec.structs.replace(attempt, token=outward(shard, attempt.token)) for attempt in one.attempts)
                records[one.task.id] = msgspec.structs.replace(one, task=seen(shard, one.task), attempts=attempts)
        return tuple(records.get(id) for id in ids)

    async def edges(self, task: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        self._part(0)
        home = (await self._crossing.located([task])).get(task)
        return () if home is None else await self._part(home[0]).edges(task, after=after, n=n)

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        parts = await self._all()
        if which.queues:
            wanted = {shard for queue in which.queues for shard in shards_of(queue, self._shards.settings)}
            parts = [part for part in parts if part.store.number in wanted]
        return await spread.merged_page({part.store.number: part for part in parts}, which, after, n)

    async def matching(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 1_000) -> Matching:
        page = await self.list(which, after=after, n=n)
        return Matching(tuple(task.id for task in page.tasks), page.cursor)

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        async def ask(part: RedisEngine) -> tuple[Attempt, ...]:
            found = await part.attempts(task)
            return tuple(msgspec.structs.replace(attempt, token=outward(part.store.number, attempt.token)) for attempt in found)

        return await self._at(task, ask)

    async def counts(self) -> tuple[Count, ...]:
        return await self._counts.get()

    async def _count(self) -> tuple[Count, ...]:
        return spread.summed(await asyncio.gather(*(inspect.counts(part.store) for part in await self._all())))

    async def workers(self) -> tuple[WorkerInfo, ...]:
        infos = []
        for info in await self._part(0).workers():
            running = info.running
            for shard in await self._served(info.id) - {0}:
                store = self._shards[shard]
                running += await store.ask("HLEN", store.key(f"run:{info.id}"))
            infos.append(msgspec.structs.replace(info, running=running))
        return tuple(infos)

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        for task in ids:
            check_id(task)
        self._part(0)
        found = await self._crossing.located(ids)
        for task in ids:
            if task not in found:
                raise NotFound(f"there is no task {task}", field="ids")
        groups = by_shard({task: shard for task, (shard, _) in found.items()})
        return await spread.first_ended([(self._part(shard), some) for shard, some in groups.items()], timeout)

    # Settings

    async def put(self, kind: str, name: str, value: bytes, *, version: int | None = None, operator: bool = True) -> Item:
        if kind == "queue":
            self._check_partitions(name, value)
        item = await self._part(0).put(kind, name, value, version=version, operator=operator)
        await self._tell(kind)
        return item

    def _check_partitions(self, name: str, value: bytes) -> None:
        """What lies in a partition must be found there."""
        known = self._shards.settings.queues.get(name)
        asked = msgspec.json.decode(value)
        if known is not None and isinstance(asked, dict) and asked.get("partitions", 1) < known.partitions:
            raise InvalidInput(f"queue {name!r} has {known.partitions} partitions", field="partitions", hint="they may become more, never fewer")

    async def drop(self, kind: str, name: str, *, version: int | None = None) -> bool:
        if kind == "queue":
            self._check_partitions(name, b"{}")
        dropped = await self._part(0).drop(kind, name, version=version)
        await self._tell(kind)
        return dropped

    async def _tell(self, kind: str) -> None:
        if kind in HOT:
            await self._shards.read_settings()
            await self._copy()

    async def _copy(self) -> None:
        """Every shard in use obeys the settings that we have read."""
        for store in await self._shards.in_use():
            if store.number:
                await store.adopt()
                self._shards.listed.add(store.number)

    async def items(self, kind: str, *, tx: Transaction | None = None) -> tuple[Item, ...]:
        return await self._part(0).items(kind)

    # Leadership and what is done under it

    async def lead(self, role: str, holder: str) -> Term | None:
        return await self._part(0).lead(role, holder)

    async def resign(self, term: Term) -> None:
        await self._part(0).resign(term)

    async def leaders(self, roles: Sequence[str]) -> tuple[Term, ...]:
        return await self._part(0).leaders(roles)

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        """Schedules are shard 0's, their tasks are not: these are made first, once each by id, then the schedule is advanced."""
        self._part(0)
        await self._shards[0].renew()
        return await spread.fire(self, self._shards[0], schedule, version, tasks, next_at, term)

    async def take(self, limit: str, n: int, id: str) -> Taken:
        """In the shard of the one queue whose types name the limit; one that many name counts there, and here by itself."""
        named = check_limit(limit)[0]
        queues = {known.queue for known in self._shards.settings.types.values() if named in {check_limit(one)[0] for one in known.limits}}
        shard = shards_of(queues.pop(), self._shards.settings)[0] if len(queues) == 1 else 0
        if shard and shard not in self._shards.listed:
            await self._shards.use(shard)
        return await self._part(shard).take(limit, n, id)

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        await self._stands(term)
        return await spread.outbox([part.store for part in await self._all()], kind, after, n, term)

    async def restore(self, records: Sequence[Record]) -> tuple[bool, ...]:
        self._part(0)
        found = await self._crossing.restore(records)
        await self._crossing.deliver()
        return found

    # Hints

    async def wakeups(self) -> ClusterHints:
        hints = ClusterHints(self._hints)
        if self._joined:
            hints.hear(self._parts.values())
        else:
            hints.look(self._all, await self._all())
        return hints

    async def events(self) -> ClusterEvents:
        self._part(0)
        return await ClusterEvents.opened(self._shards)


def _may_have_moved(answer: Changed) -> bool:
    return answer.code == "not_found" and shard_said(answer.task) is not None


def _numbers(text: str) -> set[int]:
    return {int(number) for number in text.split(",") if number}
