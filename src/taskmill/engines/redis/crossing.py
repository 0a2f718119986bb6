"""Between the shards of a Cluster: where a task is, tasks that wait for tasks of other shards, and what a step in one shard leaves to be done in another.

A step that owes something to another shard writes it down in the same script (`posts`). It is done right after the step, by whoever took it, and if that one
died, by whoever comes next: at least once, in order, and each of it may be done twice. Three things travel:
  watch   tasks of mine wait for one of yours
  fell    it has ended
  start   what follows an ended task, in another queue
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from taskmill.clock import HOUR, SECOND
from taskmill.engine import Durability, Record, Status, Submitted
from taskmill.engines.redis import inspect, submit
from taskmill.engines.redis.placement import shard_for, shard_said, shards_of
from taskmill.engines.redis.settings import restore
from taskmill.engines.redis.store import Shards, Store
from taskmill.engines.rows import ON_FAILURE_NUMBERS
from taskmill.errors import StoreError
from taskmill.task import Edge, NewTask, State, Task

__all__ = ["Crossing"]

ROUNDS = 20
POSTS = 100
UNUSED = 3_600
"""Seconds that a pointer to a forgotten task is kept: somebody may just be giving its id to a new one."""

_decode = msgspec.msgpack.Decoder().decode
_news = msgspec.json.Decoder(list[NewTask]).decode
KEEP = "local home = redis.call('GET', KEYS[1]) if home then redis.call('SET', KEYS[1], home) end return home"
"""It stays, and is written even if it was there."""
MOVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0"


class Crossing:
    """All that knows more than one shard of the tasks themselves."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.unsettled: set[int] = set()
        """Shards in which edges onto tasks of others are still to fall."""

    # Where a task is

    def _pointer(self, id: str) -> str:
        return f"{self._shards.target.prefix}:at:{{{id}}}"

    async def _pointers(self, ids: Iterable[str]) -> dict[str, int]:
        wanted = list(ids)
        found = await asyncio.gather(*(self._shards.ask(self._pointer(id), "GET", self._pointer(id)) for id in wanted))
        return {id: int(value) for id, value in zip(wanted, found, strict=True) if value is not None}

    async def homes(self, ids: Iterable[str], *, again: bool = False) -> dict[str, int]:
        """Where each is to be looked for: where its id says, and `again`, or if it says nothing, where its pointer does. Without either it is nowhere."""
        said = {} if again else {id: shard for id in ids if (shard := shard_said(id)) is not None}
        return said | await self._pointers(id for id in ids if id not in said)

    async def located(self, ids: Sequence[str]) -> dict[str, tuple[int, Any]]:
        """The shard of each task that exists, or whose end is remembered, and what is known of it there."""
        found: dict[str, tuple[int, Any]] = {}
        for again in (False, True):
            missing = [id for id in dict.fromkeys(ids) if id not in found and (not again or shard_said(id) is not None)]
            homes = await self.homes(missing, again=again) if missing else {}
            for shard, some in by_shard(homes).items():
                tasks = await inspect.get(self._shards[shard], some)
                found |= {id: (shard, task) for id, task in zip(some, tasks, strict=True) if task is not None}
        return found

    async def forget(self, store: Store, ids: Sequence[str]) -> None:
        """Their pointers go after a while, unless one of the ids was given to a new task just now."""
        for id in ids:
            await self._shards.ask(self._pointer(id), "EXPIRE", self._pointer(id), UNUSED)
        for id, found in zip(ids, (await inspect.look(store, ids))[1], strict=True):
            if found is not None:
                await self._shards.ask(self._pointer(id), "PERSIST", self._pointer(id))

    async def settle_homes(self, tasks: Sequence[NewTask], shard: int) -> set[str]:
        """Pointers to this shard for all of them; the ids of those that live elsewhere already."""
        own = [new for new in tasks if shard_said(new.id) != shard]
        found = await asyncio.gather(*(self._settle_home(new, shard) for new in own))
        return {new.id for new, answer in zip(own, found, strict=True) if answer is not None}

    async def _settle_home(self, new: NewTask, shard: int, durability: Durability | None = None) -> Submitted | None:
        """A pointer to this shard, before the task is there. An answer, if a task with this id lives elsewhere."""
        pointer = self._pointer(new.id)
        level = durability or self._shards.target.durability
        said = shard_said(new.id)
        for _ in range(ROUNDS):
            await self._shards.ask(pointer, "SET", pointer, shard if said is None else said, "NX")
            home = int(await self._shards.keep(pointer, level, "EVAL", KEEP, 1, pointer) or shard)
            if home == shard:
                return None
            other = self._shards[home]
            until = await inspect.now_of(other) + (new.idempotency_window or self._shards.settings.rules.dedupe_window)
            if not await other.run("yield", [new.id, until, shard]):
                return await submit.known_elsewhere(other, new)
            await self._shards.ask(pointer, "EVAL", MOVE, 1, pointer, home, shard)
        raise StoreError("a task with this id moves all the time", code="store_busy", hint="nothing was written, ask again")

    # Into the store

    async def submit(self, tasks: Sequence[NewTask], *, unseal: Sequence[str], reserved: bool, durability: Durability | None) -> list[Submitted]:
        return await self._shards.placed(lambda: self._submit(tasks, unseal, durability, reserved=reserved))

    async def _submit(self, tasks: Sequence[NewTask], unseal: Sequence[str], durability: Durability | None, *, reserved: bool) -> list[Submitted]:
        settings = self._shards.settings
        shards = [shard_for(new, settings) for new in tasks]
        answers: dict[int, Submitted] = {}
        own = [place for place, new in enumerate(tasks) if shard_said(new.id) != shards[place]]
        valid = [place for place in own if submit.is_valid(tasks[place], settings)]
        homes = await asyncio.gather(*(self._settle_home(tasks[place], shards[place], durability) for place in valid))
        answers |= {place: answer for place, answer in zip(valid, homes, strict=True) if answer is not None}
        await self._use(set(shards))
        self._shards.check_places(settings)
        rest = [place for place in range(len(tasks)) if place not in answers]
        if unseal or any(tasks[place].edges or tasks[place].parent for place in rest):
            answers |= await Links(self, tasks, shards, rest, durability).submit(unseal)
            return [answers[place] for place in range(len(tasks))]
        groups = by_shard({place: shards[place] for place in rest})
        found = await asyncio.gather(
            *(submit.submit(self._shards[shard], [tasks[place] for place in some], reserved=reserved, durability=durability) for shard, some in groups.items())
        )
        for some, given in zip(groups.values(), found, strict=True):
            answers |= dict(zip(some, given, strict=True))
        return [answers[place] for place in range(len(tasks))]

    async def restore(self, records: Sequence[Record]) -> tuple[bool, ...]:
        settings = self._shards.settings
        at = {place: shards_of(record.task.queue, settings)[0] for place, record in enumerate(records)}
        named = await self.located([edge.task for record in records for edge in record.edges])
        homes = {id: shard for id, (shard, _) in named.items()} | {records[place].task.id: shard for place, shard in at.items()}
        homes |= await self._expected({edge.task: at[place] for place, record in enumerate(records) for edge in record.edges if edge.task not in homes})
        there = await self.located([record.task.id for record in records])
        answers = {place: False for place, record in enumerate(records) if record.task.id in there}
        await self._use(set(at.values()))
        for shard, places in by_shard({place: shard for place, shard in at.items() if place not in answers}).items():
            for place in places:
                await self._bring(records[place].task.id, shard)
            elsewhere = {id: home for id, home in homes.items() if home != shard}
            found = await restore(self._shards[shard], [_before(records[place]) for place in places], elsewhere)
            answers |= dict(zip(places, found, strict=True))
        return tuple(answers[place] for place in range(len(records)))

    async def _expected(self, waited: Mapping[str, int]) -> dict[str, int]:
        """Where tasks that are not there yet are waited for: where their ids say that they will be, else in the shard of the first that waits."""
        said = {id: shard for id in waited if (shard := shard_said(id)) is not None}
        others = [id for id in waited if id not in said]
        for id in others:
            await self._shards.ask(self._pointer(id), "SET", self._pointer(id), waited[id], "NX")
        return said | await self._pointers(others)

    async def _bring(self, id: str, shard: int) -> None:
        """A pointer to this shard, before the task is there; those who wait for it elsewhere wait for it here."""
        pointer = self._pointer(id)
        home = (await self.homes([id])).get(id, shard)
        if home != shard:
            other = self._shards[home]
            await other.run("yield", [id, await inspect.now_of(other) + self._shards.settings.rules.dedupe_window, shard])
        await self._shards.ask(pointer, "SET", pointer, shard)

    async def _use(self, numbers: set[int]) -> None:
        """Shards are listed, and know the settings, before anything lies in them."""
        for number in numbers - self._shards.listed:
            await self._shards.use(number)

    # What steps left for others

    async def deliver(self) -> None:
        """All that our own steps have left; what cannot be done now stays for whoever comes next."""
        while self._shards.posting:
            store = self._shards.posting.pop()
            with contextlib.suppress(StoreError):
                await self.deliver_of(store)

    async def settle(self) -> bool:
        """One slice more where there is one; whether there are others."""
        for shard in list(self.unsettled):
            with contextlib.suppress(StoreError):
                await self._fell(shard, [])
        await self.deliver()
        return bool(self.unsettled)

    async def _fell(self, shard: int, data: list[Any]) -> None:
        if await self._shards[shard].run("fell", data):
            self.unsettled.add(shard)
        else:
            self.unsettled.discard(shard)

    async def deliver_of(self, store: Store) -> bool:
        """What has been left in this shard; whether there was something."""
        key = store.key("posts")
        done = False
        while rows := [_decode(row) for row in await store.ask("ZRANGE", key, 0, POSTS - 1)]:
            done = True
            for _, shard, verb, data in rows:
                await self._do(store, shard, verb, data)
            await store.ask("ZREMRANGEBYSCORE", key, "-inf", rows[-1][0])
        return done

    async def _do(self, store: Store, shard: int, verb: str, data: Sequence[Any]) -> None:
        if verb == "start":
            tasks = _news(data[0])
            for new, answer in zip(tasks, await self.submit(tasks, unseal=(), reserved=False, durability=None), strict=True):
                if answer.id != new.id and answer.status is not Status.REFUSED:
                    home = self._shards[shard_for(new, self._shards.settings)]
                    await home.ask("SET", home.key(f"alias:{new.id}"), answer.id, "EX", 72 * HOUR // SECOND)
            return
        await self._use({shard})
        if verb == "fell":
            await self._fell(shard, list(data))
        else:
            id, *rest = data
            comes, watcher = rest or (False, store.number)
            await self._shards[shard].run("watch", [watcher, id, comes])


class Links:
    """A batch whose tasks wait for each other, or for others, over several shards. What is waited for is there before those who wait; parents wait sealed until
    all their children are there."""

    def __init__(self, crossing: Crossing, tasks: Sequence[NewTask], shards: Sequence[int], places: Sequence[int], durability: Durability | None) -> None:
        self._crossing = crossing
        self._shards = crossing._shards
        self._tasks = tasks
        self._at = shards
        self._durability = durability
        self._answers: dict[int, Submitted] = submit.refused(self._shards.settings, [tasks[place] for place in places], places, durability)
        self._left = [place for place in places if place not in self._answers]
        self._places = {tasks[place].id: place for place in reversed(self._left)}
        self._sealed: list[str] = []
        self._elsewhere: dict[str, int] = {}
        self._parents: dict[str, Task | None] = {}

    async def submit(self, unseal: Sequence[str]) -> dict[int, Submitted]:
        await self._look(unseal)
        while self._left:
            ready = self._ready() or list(self._left)
            for shard, some in by_shard({place: self._at[place] for place in ready}).items():
                await self._store(shard, some)
            self._left = [place for place in self._left if place not in ready]
        await self._attach()
        await self._unseal([*self._sealed, *unseal])
        return self._answers

    async def _look(self, unseal: Sequence[str]) -> None:
        """What the batch names and does not bring."""
        named = {edge.task for place in self._left for edge in self._tasks[place].edges} | {
            parent.task for place in self._left if (parent := self._tasks[place].parent) is not None
        }
        found = await self._crossing.located([*(named - self._places.keys()), *(id for id in unseal if id not in self._places)])
        self._elsewhere = {id: shard for id, (shard, _) in found.items()} | {id: self._at[place] for id, place in self._places.items()}
        self._parents = {id: task for id, (_, task) in found.items() if isinstance(task, Task)}

    def _parent_shard(self, place: int) -> int | None:
        parent = self._tasks[place].parent
        return None if parent is None else self._elsewhere.get(parent.task, self._at[place])

    def _ready(self) -> list[int]:
        """Those all of whose fellows in this batch are in the store, or will be with the same step."""
        ready = set(self._left)
        while True:
            blocked = {place for place in ready if not self._can_go(place, ready)}
            if not blocked:
                return sorted(ready)
            ready -= blocked

    def _can_go(self, place: int, ready: set[int]) -> bool:
        new = self._tasks[place]
        named = [edge.task for edge in new.edges] + ([new.parent.task] if new.parent else [])
        for id in named:
            other = self._places.get(id)
            if other is not None and other in self._left and not (other in ready and self._at[other] == self._at[place]):
                return False
        return True

    async def _store(self, shard: int, places: Sequence[int]) -> None:
        news, sent = [], []
        for place in places:
            new = self._prepared(place)
            if isinstance(new, Submitted):
                self._answers[place] = new
            else:
                news.append(new)
                sent.append(place)
        elsewhere = {edge.task: home for new in news for edge in new.edges if (home := self._elsewhere.get(edge.task)) is not None and home != shard}
        found = await submit.submit(self._shards[shard], news, durability=self._durability, elsewhere=elsewhere) if news else []
        for place, answer in zip(sent, found, strict=True):
            self._answers[place] = answer
            id = self._tasks[place].id
            if answer.status is Status.REFUSED:
                self._elsewhere.pop(id, None)
            elif answer.status is not Status.CONFLICT:
                self._elsewhere[answer.id] = shard

    def _prepared(self, place: int) -> NewTask | Submitted:
        """As its shard is given it: edges onto whoever was there first, no parent that lives elsewhere, sealed while children of other shards are to come."""
        new = self._tasks[place]
        if new.edges:
            new = msgspec.structs.replace(new, edges=tuple(Edge(self._first(edge.task), edge.on_failure) for edge in new.edges))
        if new.parent is not None and self._parent_shard(place) != self._at[place]:
            wrong = self._wrong_parent(new)
            if wrong is not None:
                return Submitted(Status.REFUSED, new.id, self._durability or self._shards.target.durability, False, wrong)
            new = msgspec.structs.replace(new, parent=None)
        if not new.sealed and any(self._is_far_child(other, new.id, place) for other in self._places.values()):
            new = msgspec.structs.replace(new, sealed=True)
            self._sealed.append(new.id)
        return new

    def _is_far_child(self, place: int, parent: str, home: int) -> bool:
        its = self._tasks[place].parent
        return its is not None and its.task == parent and self._at[place] != self._at[home]

    def _first(self, id: str) -> str:
        """The id under which it exists."""
        place = self._places.get(id)
        answer = None if place is None else self._answers.get(place)
        return id if answer is None or answer.status is Status.CONFLICT else answer.id

    def _wrong_parent(self, new: NewTask) -> Any:
        assert new.parent is not None
        id = new.parent.task
        if id in self._places:
            answer = self._answers.get(self._places[id])
            return submit.refusal("unknown_edge", id) if answer is not None and answer.status is Status.REFUSED else None
        task = self._parents.get(id)
        if task is None:
            return submit.refusal("unknown_edge", id)
        return None if task.state is State.WAITING and task.sealed else submit.refusal("no_seal", id)

    async def _attach(self) -> None:
        edges: dict[int, list[tuple[str, str, int]]] = {}
        for place, answer in self._answers.items():
            parent = self._tasks[place].parent
            home = self._parent_shard(place)
            if parent is not None and home is not None and home != self._at[place] and answer.status not in (Status.REFUSED, Status.CONFLICT):
                edges.setdefault(home, []).append((self._first(parent.task), answer.id, ON_FAILURE_NUMBERS[parent.on_failure]))
        for home, some in edges.items():
            elsewhere = {child: self._elsewhere.get(child, self._shards[home].number) for _, child, _ in some}
            await self._shards[home].run("attach", [some, elsewhere])

    async def _unseal(self, ids: Sequence[str]) -> None:
        groups: dict[int, list[str]] = {}
        for id in dict.fromkeys(map(self._first, ids)):
            groups.setdefault(self._elsewhere.get(id, 0), []).append(id)
        for shard, some in groups.items():
            await submit.submit(self._shards[shard], (), unseal=some, durability=self._durability)


def _before(record: Record) -> Record:
    """Tokens that were given in another store are kept as they are, and told from ours by their sign."""
    task, attempts = record.task, record.attempts
    return msgspec.structs.replace(
        record,
        task=task if task.token is None else msgspec.structs.replace(task, token=-task.token),
        attempts=tuple(msgspec.structs.replace(attempt, token=-attempt.token) for attempt in attempts),
    )


def by_shard(homes: Mapping[Any, int]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for one, shard in homes.items():
        groups.setdefault(shard, []).append(one)
    return groups
