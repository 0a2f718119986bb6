"""Tasks that reject beside tasks that wait, of several tenants, against a model: who is accepted, and who may run, at every moment of a random life."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Claimed, Ending, Engine, Room, Status, Target
from taskmill.task import TERMINAL, NewTask, OnLimit, Task
from tests.conformance.tools import QUEUE, Worker, encode, new, record, worker

LIMITS: list[tuple[str, ...]] = [(), ("cap",), ("rate",), ("both",), ("key:1",), ("key:2",), ("cap", "rate"), ("both", "key:1")]
TENANTS = ("", "acme", "beta")
WINDOW = 3 * SECOND
GRAIN = 20_000
"""A store may round the times of a rate up; by this much it may be late, and never early."""
OPERATIONS = 160


@dataclass(eq=False)
class Modelled:
    id: str
    number: int
    priority: int
    ready_at: int
    limits: tuple[str, ...]
    """Each with its tenant where it has a key."""
    rejects: bool
    lease: Claimed | None = None
    ended: bool = False


@dataclass
class Model:
    clock: ManualClock
    caps: dict[str, int] = field(default_factory=lambda: {"cap": 2, "key": 1, "both": 2})
    rates: dict[str, int] = field(default_factory=lambda: {"rate": 2, "both": 3})
    tasks: list[Modelled] = field(default_factory=list)
    starts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def running(self) -> list[Modelled]:
        return [task for task in self.tasks if task.lease]

    def waiting(self) -> list[Modelled]:
        return [task for task in self.tasks if not task.lease and not task.ended]

    def below_cap(self, limit: str) -> bool:
        cap = self.caps.get(limit.partition(":")[0])
        return cap is None or sum(limit in task.limits for task in self.running()) < cap

    def below_rate(self, limit: str, late: int) -> bool:
        rate = self.rates.get(limit)
        return rate is None or sum(at > self.clock.now() - WINDOW - late for at in self.starts[limit]) < rate

    def claimable(self, late: int = 0) -> list[Modelled]:
        """A task that was accepted waits for caps alone."""
        return [
            task
            for task in self.waiting()
            if task.ready_at <= self.clock.now() and all(self.below_cap(limit) and (task.rejects or self.below_rate(limit, late)) for limit in task.limits)
        ]

    def accepts(self, limits: tuple[str, ...], late: int = 0) -> bool:
        return all(self.below_cap(limit) and self.below_rate(limit, late) for limit in limits)


class Play:
    """A store and its model through the same random life."""

    def __init__(self, engine: Engine, clock: ManualClock, seed: int) -> None:
        self.engine = engine
        self.clock = clock
        self.chance = random.Random(seed)
        self.model = Model(clock)
        self.rejected = 0

    async def begin(self) -> None:
        for name in ("cap", "key", "rate", "both"):
            await self.define(name)
        self.workers = [await worker(self.engine) for _ in range(2)]

    async def define(self, name: str) -> None:
        numbers = {"cap": self.model.caps[name]} if name in self.model.caps else {}
        if name in self.model.rates:
            numbers |= {"rate": self.model.rates[name], "window": WINDOW}
        await self.engine.put("limit", name, encode(numbers))

    async def run(self) -> None:
        moves = [self.submit, self.submit, self.submit, self.claim, self.claim, self.claim, self.finish, self.finish, self.cancel, self.change]
        for _ in range(OPERATIONS):
            await self.chance.choice(moves)()
            self.clock.advance(self.chance.choice(["1ms", "10ms", "300ms", "1s"]))

    async def submit(self) -> None:
        """One to three in a batch: each is judged after those before it."""
        batch = [self.one() for _ in range(self.chance.randint(1, 3))]
        answers = await self.engine.submit([task for task, _ in batch])
        for (task, limits), answer in zip(batch, answers, strict=True):
            rejects = task.on_limit is OnLimit.REJECT
            rejected = answer.status is Status.REJECTED
            if rejects:
                assert not rejected or not self.model.accepts(limits, late=GRAIN), "it was rejected, and there was room"
                assert rejected or self.model.accepts(limits), "it was accepted, and a limit was full"
            else:
                assert not rejected
            self.rejected += rejected
            if rejected:
                assert (await record(self.engine, task.id)).state in TERMINAL
                continue
            made = Modelled(task.id, len(self.model.tasks), task.priority or 0, self.clock.now() + (task.delay or 0), limits, rejects)
            self.model.tasks.append(made)
            if rejects:
                for limit in limits:
                    self.model.starts[limit].append(self.clock.now())

    def one(self) -> tuple[NewTask, tuple[str, ...]]:
        chance = self.chance
        tenant, limits = chance.choice(TENANTS), chance.choice(LIMITS)
        on_limit = chance.choice([OnLimit.DELAY, OnLimit.REJECT])
        task = new(limits=limits, tenant=tenant, priority=chance.randrange(4), delay=chance.choice([0, 0, SECOND]), on_limit=on_limit)
        return task, tuple(f"{limit}@{tenant}" if ":" in limit else limit for limit in limits)

    async def claim(self) -> None:
        one = self.chance.choice(self.workers)
        slots = self.chance.choice([1, 1, 2, 5])
        taken = await self.take(one, slots)
        for place, lease in enumerate(taken):
            task = next(task for task in self.model.tasks if task.id == lease.id)
            claimable = self.model.claimable()
            assert task in claimable, "a limit was full, or it was not its time"
            if place == 0 and slots == 1:
                rivals = [rival for rival in self.model.claimable(late=GRAIN) if rival.priority >= task.priority]
                assert task is min([task, *rivals], key=lambda rival: (-rival.priority, rival.ready_at, rival.number))
            task.lease = lease
            if not task.rejects:
                for limit in task.limits:
                    self.model.starts[limit].append(lease.claimed_at)
        if len(taken) < slots:
            assert self.model.claimable(late=GRAIN) == [], "tasks were left, and the answer did not say that there is more"

    async def take(self, one: Worker, slots: int) -> list[Claimed]:
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
        one = next(one for one in self.workers if one.id == task.lease.worker)
        ending = self.chance.choice([Ending.COMPLETED, Ending.COMPLETED, Ending.DEAD, Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED])
        after = self.chance.choice([0, SECOND])
        await one.done(task.lease, ending=ending, after=after)
        task.lease = None
        stored = await record(self.engine, task.id)
        task.ended = stored.state in TERMINAL
        if ending in {Ending.RETRY, Ending.SNOOZED}:
            task.ready_at = self.clock.now() + after

    async def cancel(self) -> None:
        if self.model.waiting():
            task = self.chance.choice(self.model.waiting())
            await self.engine.cancel([Target(task.id, (await record(self.engine, task.id)).version)])
            task.ended = True

    async def change(self) -> None:
        numbers = self.chance.choice([self.model.caps, self.model.rates])
        name = self.chance.choice(list(numbers))
        numbers[name] = self.chance.randint(1, 3)
        await self.define(name)

    async def end(self) -> None:
        for one in self.workers:
            await one.done(*(task.lease for task in self.model.running() if task.lease and task.lease.worker == one.id))
        one = self.workers[0]
        for _ in range(len(self.model.tasks) + 10):
            self.clock.advance(4)
            await one.done(*await self.take(one, 50))
        left = [task for task in await self.engine.get([task.id for task in self.model.tasks]) if isinstance(task, Task) and task.state not in TERMINAL]
        assert left == []
        assert self.rejected


@pytest.mark.parametrize("seed", range(6))
async def test_a_life_with_rejections(engine: Engine, clock: ManualClock, seed: int) -> None:
    play = Play(engine, clock, seed)
    await play.begin()
    await play.run()
    await play.end()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(600, 660))
async def test_many_lives_with_rejections(engine: Engine, clock: ManualClock, seed: int) -> None:
    play = Play(engine, clock, seed)
    await play.begin()
    await play.run()
    await play.end()
