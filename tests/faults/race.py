"""A race: claimers that end, hang, die and come back late, submitters, operators and leaders, all at once on engines of their own.

What each of them asks and is told goes into a history, what the store says that happened is heard from `engine.events()`; the judges are in test_redis_race.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Awaitable, Callable
from random import Random

from taskmill import codec
from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Checkpoint, Claimed, Ending, Joining, Outcome, Record, Room
from taskmill.engines import create
from taskmill.errors import Conflict
from taskmill.events import Event
from taskmill.task import Edge, ErrorInfo, NewTask, OnFailure, OnLimit, State, Task, TypeSettings, Unique, new_id
from tests.faults.race_model import Limit, Planned
from tests.faults.recorded import Recorded
from tests.history import Recorder

__all__ = ["KEYED", "LEASE", "LIMITS", "TERM", "TYPES", "Claimer", "Race", "Submitter"]

LEASE = 400 * MILLISECOND
TERM = 300 * MILLISECOND
LIMITS = {
    "one": Limit(cap=1),
    "three": Limit(cap=3),
    "six": Limit(cap=6),
    "pace": Limit(rate=20, window=400 * MILLISECOND),
    "both": Limit(cap=5, rate=50, window=500 * MILLISECOND),
    "each": Limit(cap=2, rate=30, window=200 * MILLISECOND),
}
KEYED = ("each:a", "each:b")
TYPES = {name: TypeSettings(max_crashes=1_000) for name in ("plain", "other", "moved")}
LANES: list[tuple[str, ...]] = [
    *((), (), ("one",), ("three",), ("pace",), ("both",), ("each:a",)),
    *(("six", "pace"), ("each:b", "three"), ("six", "both", "each:a"), ("each:b", "pace", "one")),
]
SOON = 10 * MILLISECOND
PLAIN = "lines"
"""A queue of tasks that nothing sets apart."""


class Race:
    """What all of them share."""

    def __init__(self, url: str, recorder: Recorder, seed: int) -> None:
        self.url = url
        self.recorder = recorder
        self.seed = seed
        self.planned: dict[str, Planned] = {}
        self.puts: dict[str, list[Limit]] = {name: [] for name in LIMITS}
        self.ids: list[str] = []
        self.requeued: set[str] = set()
        self.late: list[Claimed] = []
        self.lost_workers: set[str] = set()
        self.lost_tokens: set[int] = set()
        self.refused_late = 0
        self.over = asyncio.Event()
        self.told: list[Event] = []
        self._engines: list[Recorded] = []

    async def client(self) -> Recorded:
        engine = create(self.url, lease=LEASE, term=TERM)
        await engine.open()
        self._engines.append(Recorded(engine, self.recorder))
        return self._engines[-1]

    async def close(self) -> None:
        for client in self._engines:
            await client.engine.close()

    async def put(self, client: Recorded, name: str, limit: Limit) -> None:
        """One operator puts them, one after the other, never the same twice: the events that tell of it are in the same order."""
        self.puts[name].append(limit)
        keys = [each.partition(":")[2] for each in KEYED] if name == "each" else ()
        await client.put_limit(name, cap=limit.cap, rate=limit.rate, window=limit.window or SECOND, keys=keys)

    def plan(self, new: NewTask) -> NewTask:
        children = tuple((0, edge.task) for edge in new.edges)
        limits = tuple(name for name in new.limits or () if new.on_limit is not OnLimit.REJECT or LIMITS[name].rate is None)  # a rate counts at the submit
        self.planned[new.id] = Planned(limits, children, new.order_key)
        if new.parent is not None:
            self.planned[new.parent.task].children += ((0, new.id),)
        if not new.sealed:  # what an operator cancels takes no more children
            self.ids.append(new.id)
        return new

    async def until_over(self, act: Callable[[], Awaitable[object]], pause: float = 0.0) -> None:
        while not self.over.is_set():
            await act()
            await asyncio.sleep(pause)


class Submitter:
    """Tasks of every kind, some of them twice, from several at once."""

    def __init__(self, race: Race, client: Recorded, number: int) -> None:
        self.race = race
        self.client = client
        self.chance = Random(race.seed * 100 + number)

    async def batch(self) -> None:
        race, chance = self.race, self.chance
        tasks = [self._new(limits=chance.choice(LANES), fair_key=chance.choice(("", "", "x", "y")) or None) for _ in range(8)]
        tasks += [self._new(order_key=chance.choice(("left", "right"))), self._new(delay=chance.randrange(50) * MILLISECOND), self._new(type="moved")]
        tasks += [self._new(limits=limits, on_limit=OnLimit.REJECT) for limits in (("pace",), ("three",))]
        tasks.append(self._new(expires_at=self.client.engine.clock.now() + chance.randrange(100) * MILLISECOND))
        tasks += [self._new(type="plain", queue=PLAIN) for _ in range(6)]
        children = chance.sample([task.id for task in tasks[:8]], chance.randint(1, 5))
        tasks += [self._new(edges=tuple(Edge(child, OnFailure.IGNORE) for child in children)) for _ in range(2)]
        for task in tasks:
            race.plan(task)
        await self.client.submit(tasks)
        await self.client.submit(tasks[:3])
        await chance.choice((self._keyed, self._sealed, self._reserved, self._restored))()

    def _new(self, **fields: object) -> NewTask:
        given = {"type": self.chance.choice(("plain", "other")), "queue": "default", "priority": self.chance.randrange(4), "max_crashes": 1_000, **fields}
        return NewTask(payload=codec.encode(self.chance.randrange(1_000)), **given)  # type: ignore[arg-type]

    async def _keyed(self) -> None:
        """Others submit under the same keys, so these have no limits of their own: whose task it will be is not known before."""
        n = self.chance.randrange(40)
        unique = Unique(f"unique-{n % 5}", self.chance.choice(("started", "ended")), self.chance.choice(("keep", "replace")))
        keyed = NewTask(type="plain", queue="default", payload=codec.encode(n), idempotency_key=f"{self.race.seed}-{n}", max_crashes=1_000)
        tasks = [keyed, NewTask(type="other", queue="default", unique=unique, max_crashes=1_000)]
        for answer in await self.client.submit(tasks):
            self.race.ids.append(answer.id)

    async def _sealed(self) -> None:
        parent = self.race.plan(self._new(sealed=True))
        first = [self.race.plan(self._new(parent=Edge(parent.id, OnFailure.IGNORE))) for _ in range(3)]
        await self.client.submit([parent, *first])
        last = self.race.plan(self._new(parent=Edge(parent.id, OnFailure.IGNORE)))
        await self.client.submit([last], unseal=[parent.id])

    async def _reserved(self) -> None:
        task = self.race.plan(self._new())
        await self.client.engine.submit([task], reserved=True)
        await self.client.submit([task])

    async def _restored(self) -> None:
        """Two bring the same record: one of them it is."""
        now = self.client.engine.clock.now()
        task = Task(
            id=new_id(), type="plain", queue="default", payload=b"1", priority=2, state=State.PENDING, version=5, limits=("six",), max_crashes=1_000,
            run_at=now - SECOND, created_at=now - SECOND, updated_at=now - SECOND,
        )  # fmt: skip
        self.race.planned[task.id] = Planned(limits=("six",))
        self.race.ids.append(task.id)
        answers = await asyncio.gather(*(self.client.engine.restore([Record(task=task)]) for _ in range(2)))
        assert sorted(answers) == [(False,), (True,)]


class Claimer:
    """Claims, ends in every way, and now and then hangs: its worker beats no more, and its ends come late."""

    _names = itertools.count(1)

    def __init__(self, race: Race, client: Recorded, number: int) -> None:
        self.race = race
        self.client = client
        self.chance = Random(race.seed * 1_000 + number)
        self.calm = False
        """Nothing but completions."""

    async def join(self) -> None:
        self.name = f"racer-{next(self._names)}"
        self.request = 0
        self.held: dict[int, Claimed] = {}
        types = TYPES if self.calm or self.chance.random() < 0.8 else {"plain": TYPES["plain"]}
        await self.client.join(Joining(worker=self.name, queues=("default", PLAIN), types=types, lease=LEASE))
        self.beat_at = self.client.recorder.now()

    async def turn(self) -> int:
        if self.client.recorder.now() - self.beat_at > LEASE // 4:
            await self.beat()
        self.request += 1
        try:
            queue = "default" if self.request % 3 else PLAIN
            claim = await self.client.claim(self.name, self.request, (queue,), Room(self.chance.randint(1, 12)))
        except Conflict:
            await self.join()
            return 1
        for task in claim.tasks:
            self.held[task.token] = task
            check_results(task)
        if not self.calm and self.chance.random() < 0.06:
            await self.chance.choice((self.hang, self.leave, self.forget))()
            return 1
        await self.work(list(claim.tasks))
        return len(claim.tasks) + claim.more

    async def beat(self) -> None:
        began = self.client.recorder.now()
        beat = await self.client.heartbeat(self.name, self.request, list(self.held))
        self.beat_at = began
        for token in beat.lost:
            self.held.pop(token, None)
        if not beat.known:
            await self.join()

    async def hang(self) -> None:
        """Nobody beats for what it holds. Half of it is never heard of again, of the rest the end comes late."""
        self.race.late += [task for task in self.held.values() if self.chance.random() < 0.5]
        await self.join()

    async def leave(self) -> None:
        """What it still holds is given back."""
        await self.client.leave(self.name)
        self.race.lost_tokens |= self.held.keys()
        self.race.late += self.held.values()
        await self.join()

    async def forget(self) -> None:
        """A beat that does not name them gives leases back; it claims again, perhaps the same tasks, and under the old tokens nothing is taken."""
        dropped, self.held = list(self.held.values()), {}
        await self.beat()
        self.race.lost_tokens |= {task.token for task in dropped}
        self.request += 1
        claim = await self.client.claim(self.name, self.request, ("default",), Room(12))
        self.held = {task.token: task for task in claim.tasks}
        for task in dropped:
            await self.end_late(task)

    async def work(self, tasks: list[Claimed]) -> None:
        saved = [task for task in tasks if self.chance.random() < 0.2]
        if saved:
            await self.client.checkpoint([Checkpoint(task=task.id, worker=task.worker, token=task.token, name="step", value=b"1") for task in saved])
        for part in (tasks[::2], tasks[1::2]):
            if part:
                outcomes = [self._outcome(task) for task in part]
                refused = {refusal.token for refusal in (await self.client.finish(outcomes)).refused}
                for task, outcome in zip(part, outcomes, strict=True):
                    self.held.pop(task.token, None)
                    if outcome.ending is Ending.WAITING and task.token not in refused:  # its children from now on
                        self.race.planned.setdefault(task.id, Planned()).children += tuple((task.attempt, new.id) for new in outcome.then)
        await self.come_late()

    async def come_late(self) -> None:
        """What a lost worker held is no longer current, whatever came of it: refused, each of them."""
        if not self.race.late or self.chance.random() > 0.2:
            return
        await self.end_late(self.race.late.pop(self.chance.randrange(len(self.race.late))))

    async def end_late(self, task: Claimed) -> None:
        lost = task.worker in self.race.lost_workers or task.token in self.race.lost_tokens
        saved = await self.client.checkpoint([Checkpoint(task=task.id, worker=task.worker, token=task.token, name="late", value=b"1")])
        outcome = Outcome(task=task.id, worker=task.worker, token=task.token, ending=Ending.COMPLETED, started_after=0)
        refused = (await self.client.finish([outcome])).refused
        assert (saved and refused) or not lost, f"{task.id} was written under token {task.token} of {task.worker}, which was lost"
        self.race.refused_late += len(refused)

    async def too_late(self) -> None:
        """With nobody else at work: a task is claimed, given back, and ended nevertheless. That is refused."""
        await self.client.submit([self.race.plan(NewTask(type="plain", queue=PLAIN, max_crashes=1_000))])
        while not self.held:
            self.request += 1
            with contextlib.suppress(Conflict):
                claim = await self.client.claim(self.name, self.request, (PLAIN,), Room(1))
                self.held = {task.token: task for task in claim.tasks}
                continue
            await self.join()
        [task, *_] = self.held.values()
        await self.leave()
        self.race.late.remove(task)
        await self.end_late(task)

    def _outcome(self, task: Claimed) -> Outcome:
        given = {"task": task.id, "worker": task.worker, "token": task.token, "started_after": 0}
        choices = ["completed"] * 8 + ["retry", "snoozed", "released", "crashed", "dead", "then", "wait", "listen"]
        how = "completed" if self.calm or task.attempt > 3 else self.chance.choice(choices)
        more: dict[str, object] = {}
        if how in ("retry", "dead"):
            more["error"] = ErrorInfo("failed", "on purpose")
        if how in ("retry", "snoozed"):
            more["after"] = self.chance.randrange(5) * SOON
        if how in ("then", "wait"):
            more["then"] = tuple(self._follow(task, n) for n in range(2))
            more["on_failure"] = "ignore"
        if how == "listen":
            more |= {"signals": ("go",), "deadline": 10 * SOON}
        ending = {"then": Ending.COMPLETED, "wait": Ending.WAITING, "listen": Ending.WAITING}.get(how) or Ending(how)
        return Outcome(ending=ending, **given, **more)  # type: ignore[arg-type]

    def _follow(self, task: Claimed, number: int) -> NewTask:
        id = str(uuid.uuid5(uuid.UUID(task.id), f"{task.token} {number}"))
        new = NewTask(type="plain", queue="default", id=id, limits=("six",) if number else (), max_crashes=1_000)
        self.race.planned[id] = Planned(limits=new.limits or ())
        return new


def check_results(task: Claimed) -> None:
    """Each edge once, with what became of it."""
    found = [edge.task for edge in task.results]
    assert len(set(found)) == len(found), f"{task.id} is told twice of one edge"
