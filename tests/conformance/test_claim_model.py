"""claim against a model: whatever happened before, a claim takes what is next, only what may start, and as much as there is.

The model is a plain list of tasks and one rule of a few lines; the store has lines, lanes, shares and limits that must come to the same.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Claimed, Ending, Engine, Room, Target
from taskmill.task import State
from tests.conformance.tools import QUEUE, Worker, encode, new, record, submit, worker

TYPES = ("a", "b", "c")
LIMITS: list[tuple[str, ...]] = [
    (),
    (),
    (),
    ("cap",),
    ("key:1",),
    ("key:2",),
    ("cap", "key:1"),
    ("cap", "key:2"),
    ("rate",),
    ("cap", "rate"),
    ("rate:1",),
    ("key:1", "rate:1"),
]
OPERATIONS = 150
WINDOW = 3 * SECOND
GRAIN = 10_000
"""A store may round the times of a rate up; by this much it may be late, and never early."""


@dataclass
class Modelled:
    """A task as the model knows it."""

    id: str
    number: int
    type: str
    priority: int
    ready_at: int
    limits: tuple[str, ...]
    order_key: str | None
    share: str
    lease: Claimed | None = None
    ended: bool = False


@dataclass
class Model:
    clock: ManualClock
    caps: dict[str, int]
    rate: int = 2
    tasks: list[Modelled] = field(default_factory=list)
    starts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    paused: set[str] = field(default_factory=set)

    def alive(self) -> list[Modelled]:
        return [task for task in self.tasks if not task.ended]

    def running(self) -> list[Modelled]:
        return [task for task in self.alive() if task.lease]

    def waiting(self) -> list[Modelled]:
        return [task for task in self.alive() if not task.lease]

    def find(self, lease: Claimed) -> Modelled:
        return next(task for task in self.tasks if task.id == lease.id)

    def has_room(self, limit: str, late: int) -> bool:
        name = limit.partition(":")[0]
        if name in self.caps:
            return sum(limit in task.limits for task in self.running()) < self.caps[name]
        return sum(at > self.clock.now() - WINDOW - late for at in self.starts[limit]) < self.rate

    def claimable(self, types: frozenset[str], late: int = 0) -> list[Modelled]:
        """Ready, of a type that is known and not paused, with room in every limit, and first of its order key."""
        heads: dict[tuple[str, str, tuple[str, ...]], Modelled] = {}
        for task in self.alive():
            if task.order_key:
                heads.setdefault((task.order_key, task.share, task.limits), task)
        return [
            task
            for task in self.waiting()
            if task.type in types - self.paused
            and task.ready_at <= self.clock.now()
            and all(self.has_room(limit, late) for limit in task.limits)
            and (not task.order_key or heads[task.order_key, task.share, task.limits] is task)
        ]


class Play:
    """A store and its model through the same random life."""

    def __init__(self, engine: Engine, clock: ManualClock, seed: int, shares: int) -> None:
        self.engine = engine
        self.clock = clock
        self.chance = random.Random(seed)
        self.shares = ["", "x", "y"][:shares]
        self.model = Model(clock, {"cap": 2, "key": 1})
        self.workers: list[tuple[Worker, frozenset[str]]] = []

    async def begin(self) -> None:
        for name, cap in self.model.caps.items():
            await self.engine.put("limit", name, encode({"cap": cap}))
        await self.engine.put("limit", "rate", encode({"rate": self.model.rate, "window": WINDOW}))
        for types in (TYPES, TYPES[:1], TYPES[1:]):
            self.workers.append((await worker(self.engine, *types), frozenset(types)))

    async def run(self) -> None:
        moves: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.submit, 6),
            (self.claim, 8),
            (self.finish, 4),
            (self.cancel, 1),
            (self.change_cap, 1),
            (self.change_rate, 1),
            (self.pause, 1),
        ]
        for _ in range(OPERATIONS):
            [move] = self.chance.choices([move for move, _ in moves], [weight for _, weight in moves])
            await move()
            self.clock.advance(self.chance.choice(["1ms", "10ms", "1s"]))

    async def submit(self) -> None:
        chance = self.chance
        order_key = chance.choice(["o1", "o2"]) if chance.random() < 0.2 else None
        limits = () if order_key else chance.choice(LIMITS)
        delay = chance.choice([0, 0, 0, SECOND, 3 * SECOND])
        number = len(self.model.tasks)
        task = Modelled("", number, chance.choice(TYPES), chance.randrange(4), self.clock.now() + delay, limits, order_key, chance.choice(self.shares))
        [task.id] = await submit(
            self.engine,
            new(number, type=task.type, priority=task.priority, delay=delay, limits=limits, order_key=order_key, fair_key=task.share),
        )
        self.model.tasks.append(task)

    async def claim(self) -> None:
        one, types = self.chance.choice(self.workers)
        slots = self.chance.choice([1, 1, 1, 3, 6])
        taken = await self.take(one, slots)
        if slots == 1 and taken:
            self.check_next(taken[0], types)
        for lease in taken:
            self.start(lease, types)
        left = self.model.claimable(types, late=GRAIN)
        if len(taken) < slots:
            assert left == [], f"{len(left)} tasks were left, and nobody said that there is more"
        lowest = min((lease.priority for lease in taken), default=0)
        assert all(task.priority <= lowest for task in left)

    def check_next(self, lease: Claimed, types: frozenset[str]) -> None:
        """One slot: no task of a higher priority could be had, and no older one of this priority and share."""
        task = self.model.find(lease)
        rivals = [
            rival
            for rival in self.model.claimable(types, late=GRAIN)
            if rival.priority > task.priority or (rival.priority, rival.share) == (task.priority, task.share)
        ]
        assert task is min([task, *rivals], key=lambda rival: (-rival.priority, rival.ready_at, rival.number))

    def start(self, lease: Claimed, types: frozenset[str]) -> None:
        task = self.model.find(lease)
        assert task in self.model.claimable(types)
        for limit in task.limits:
            self.model.starts[limit].append(lease.claimed_at)
        task.lease = lease

    async def take(self, one: Worker, slots: int = 1) -> list[Claimed]:
        taken: list[Claimed] = []
        for _ in range(20):
            one.request += 1
            answer = await self.engine.claim(one.id, one.request, [QUEUE], Room(slots - len(taken)))
            taken += answer.tasks
            if len(taken) == slots or not answer.more:
                return taken
        raise AssertionError("there is more and more, and nothing ever comes")

    async def finish(self) -> None:
        if not self.model.running():
            return
        task = self.chance.choice(self.model.running())
        assert task.lease
        one = next(one for one, _ in self.workers if one.id == task.lease.worker)
        ending = self.chance.choice([Ending.COMPLETED, Ending.COMPLETED, Ending.DEAD, Ending.RETRY, Ending.SNOOZED, Ending.RELEASED])
        after = self.chance.choice([0, SECOND])
        await one.done(task.lease, ending=ending, after=after)
        task.lease = None
        task.ended = ending in {Ending.COMPLETED, Ending.DEAD}
        if ending in {Ending.RETRY, Ending.SNOOZED}:
            task.ready_at = self.clock.now() + after

    async def cancel(self) -> None:
        if self.model.waiting():
            task = self.chance.choice(self.model.waiting())
            await self.engine.cancel([Target(task.id, (await record(self.engine, task.id)).version)])
            task.ended = True

    async def change_cap(self) -> None:
        name = self.chance.choice(list(self.model.caps))
        self.model.caps[name] = self.chance.randint(0, 3)
        await self.engine.put("limit", name, encode({"cap": self.model.caps[name]}))

    async def change_rate(self) -> None:
        self.model.rate = self.chance.randint(1, 3)
        await self.engine.put("limit", "rate", encode({"rate": self.model.rate, "window": WINDOW}))

    async def pause(self) -> None:
        if self.model.paused:
            await self.engine.drop("pause", f"type:{self.model.paused.pop()}")
        else:
            name = self.chance.choice(TYPES)
            self.model.paused.add(name)
            await self.engine.put("pause", f"type:{name}", b"{}")

    async def end(self) -> None:
        """Everything comes to an end once nothing holds it up."""
        for name in [*self.model.caps, "rate"]:
            await self.engine.put("limit", name, b'{"cap": 9}')
        for name in self.model.paused:
            await self.engine.drop("pause", f"type:{name}")
        for one, _ in self.workers:
            held = [task.lease for task in self.model.running() if task.lease and task.lease.worker == one.id]
            await one.done(*held)
        self.clock.advance(60)
        one, _ = self.workers[0]
        while taken := await self.take(one, 5):
            await one.done(*taken)
        alive = [task.number for task in self.model.tasks if (await record(self.engine, task.id)).state not in {State.COMPLETED, State.DEAD, State.CANCELLED}]
        assert alive == []


async def live(engine: Engine, clock: ManualClock, seed: int, shares: int) -> None:
    play = Play(engine, clock, seed, shares)
    await play.begin()
    await play.run()
    await play.end()


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("seed", range(6))
async def test_a_claim_takes_what_is_next(engine: Engine, clock: ManualClock, seed: int, shares: int) -> None:
    await live(engine, clock, seed, shares)


@pytest.mark.soak
@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("seed", range(600, 700))
async def test_many_lives(engine: Engine, clock: ManualClock, seed: int, shares: int) -> None:
    await live(engine, clock, seed, shares)
