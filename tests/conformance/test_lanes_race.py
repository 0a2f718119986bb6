"""Lanes under eight racing claimers with crashes and late finishers: no limit is exceeded by one at any moment, checked from a history.

The clock moves a microsecond each time anybody looks at it, so every step of the store has a time of its own. A lease surely stands from when its claim was
answered until its worker begins to finish it, or until the store says that it crashed. (`claimed_at` is the store's own time; a server is told the test's time
with the question, so it may be older than the locks that the step waited for.)
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from taskmill.clock import SECOND, DurationLike, ManualClock
from taskmill.engine import Claimed, Ending, Engine
from taskmill.task import State
from tests.conformance.tools import Store, Worker, all_tasks, encode, new, record, submit, worker

CAPS = {"three": 3, "both": 2, "per-user": 1}
RATES = {"often": (5, SECOND // 10), "both": (4, SECOND // 20)}
CLAIMERS = 8


class TickingClock(ManualClock):
    """Time goes on by itself, a microsecond a look; threads of several engines look at it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()

    def now(self) -> int:
        with self._lock:
            self.advance(1e-6)
            return super().now()

    def advance(self, by: DurationLike) -> None:
        with self._lock:
            super().advance(by)


@pytest.fixture
def clock() -> TickingClock:
    return TickingClock()


@dataclass
class Lease:
    """What its worker knows of it: when it began, and a moment until which it surely stood."""

    task: Claimed
    since: int
    until: int


@dataclass
class History:
    clock: TickingClock
    leases: dict[int, Lease] = field(default_factory=dict)
    applied: dict[str, list[Ending]] = field(default_factory=lambda: defaultdict(list))
    late: list[Claimed] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)
    too_late: int = 0
    lost: int = 0

    def claimed(self, task: Claimed) -> None:
        assert task.token not in self.leases, "a token was given twice"
        now = self.clock.now()
        self.leases[task.token] = Lease(task, now, now)

    async def crashes(self, engine: Engine) -> None:
        """Leases of dead workers stood until the store says."""
        for id in {lease.task.id for lease in self.leases.values()}:
            for attempt in await engine.attempts(id):
                if attempt.outcome == "crashed" and attempt.ended_at is not None:
                    self.leases[attempt.token].until = attempt.ended_at
                    self.lost += attempt.token in self.dead

    def over_caps(self) -> list[str]:
        """Every moment at which more leases stood at a limit than its cap."""
        found = []
        for name, leases in self._by_limit().items():
            cap = CAPS.get(name.partition(":")[0])
            moments = sorted([(lease.since, 1) for lease in leases] + [(lease.until, -1) for lease in leases])
            running = 0
            for at, change in moments:
                running += change
                if cap is not None and running > cap:
                    found.append(f"{name}: {running} at {at}")
        return found

    def over_rates(self) -> list[str]:
        """Every window with more starts than its rate."""
        found = []
        for name, leases in self._by_limit().items():
            if name not in RATES:
                continue
            rate, window = RATES[name]
            starts = sorted(lease.task.claimed_at for lease in leases)
            found += [f"{name}: {rate + 1} starts within {after - at} at {at}" for at, after in zip(starts, starts[rate:], strict=False) if after - at < window]
        return found

    def _by_limit(self) -> dict[str, list[Lease]]:
        found: dict[str, list[Lease]] = defaultdict(list)
        for lease in self.leases.values():
            for name in lease.task.limits:
                found[name].append(lease)
        return found


class Claimer:
    """One of the racing: it claims, ends what it has in every way, dies and comes back under a new id, and finishes too late."""

    def __init__(self, engine: Engine, history: History, seed: int) -> None:
        self.engine = engine
        self.history = history
        self.chance = random.Random(seed)
        self.one = Worker(engine)

    async def round(self) -> None:
        claimed = await self.one.claim(self.chance.randint(1, 6))
        for task in claimed:
            self.history.claimed(task)
        await asyncio.sleep(0)
        if self.chance.random() < 0.1:
            await self.die()
            return
        for task in list(self.one.held.values()):
            await self.end(task)
        if self.history.late and self.chance.random() < 0.04:
            await self.end_late()

    async def end(self, task: Claimed) -> None:
        ending = self.chance.choice([Ending.COMPLETED] * 5 + [Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED])
        self.history.leases[task.token].until = self.history.clock.now()
        await self.one.done(task, ending=ending, after=self.chance.randint(0, 1000))
        self.history.applied[task.id].append(ending)

    async def die(self) -> None:
        """Nobody beats for what it held; a new worker starts in its place."""
        for task in self.one.held.values():
            self.history.leases[task.token].until = self.history.clock.now()
            self.history.late.append(task)
            self.history.dead.add(task.token)
        self.one = await worker(self.engine)

    async def end_late(self) -> None:
        """A dead worker's answer arrives at last: it counts if the lease still stands, and changes nothing if it does not."""
        task = self.history.late.pop(self.chance.randrange(len(self.history.late)))
        now = self.history.clock.now()
        answer = await self.one.finish(task)
        self.history.too_late += len(answer.refused)
        if not answer.refused:
            self.history.leases[task.token].until = now
            self.history.applied[task.id].append(Ending.COMPLETED)


async def submit_mixed(engine: Engine) -> dict[str, str | None]:
    """Tasks under every kind of limit, and each one's order key."""
    for name in {*CAPS, *RATES}:
        numbers = {"cap": CAPS[name]} if name in CAPS else {}
        if name in RATES:
            numbers |= {"rate": RATES[name][0], "window": RATES[name][1]}
        await engine.put("limit", name, encode(numbers))
    kinds = [("three",), ("often",), ("both",), ("per-user:1",), ("per-user:2", "three"), ("often", "three"), ()]
    tasks = [new(n, limits=kinds[n % 7], fair_key="ab"[n % 2], max_crashes=1000) for n in range(280)]
    line = [new(n, limits=("three",), order_key="line", max_crashes=1000) for n in range(20)]
    await submit(engine, *line, *tasks)
    return {task.id: task.order_key for task in [*line, *tasks]}


async def test_no_limit_is_exceeded_under_racing_claimers(store: Store, engine: Engine, clock: TickingClock) -> None:
    order_keys = await submit_mixed(engine)
    history = History(clock)
    claimers = [Claimer(each, history, seed) for seed, each in enumerate(await store.engines(CLAIMERS))]
    for claimer in claimers:
        await claimer.one.join()
    for _ in range(400):
        await asyncio.gather(*(claimer.round() for claimer in claimers))
        clock.advance("20ms")
        await asyncio.gather(*(claimer.one.beat() for claimer in claimers), engine.recover_lost(), claimers[0].engine.recover_lost())
        if len([ids for ids in history.applied.values() if Ending.COMPLETED in ids]) == len(order_keys):
            break
        if history.late:
            clock.advance("500ms")
    assert {task.state for task in await all_tasks(engine)} == {State.COMPLETED}
    await history.crashes(engine)
    assert history.lost > 0
    assert history.too_late > 0
    assert history.over_caps() == []
    assert history.over_rates() == []
    assert all(endings.count(Ending.COMPLETED) == 1 for endings in history.applied.values())
    await check_order(engine, history, [id for id, key in order_keys.items() if key])


async def check_order(engine: Engine, history: History, line: list[str]) -> None:
    """The tasks of one order key: each one's first start came after the end of the one before it."""
    for before, after in itertools.pairwise(line):
        ended = (await record(engine, before)).finished_at
        started = min(lease.since for lease in history.leases.values() if lease.task.id == after)
        assert ended is not None
        assert ended < started


async def test_every_slot_is_free_in_the_end(store: Store, engine: Engine) -> None:
    """After a storm of claims, releases and lost answers a cap admits exactly as many as it did before."""
    await engine.put("limit", "three", b'{"cap": 3}')
    await submit(engine, *(new(n, limits=("three",)) for n in range(200)))
    claimers = [await worker(each) for each in await store.engines(CLAIMERS)]

    async def storm(one: Worker) -> None:
        for n in range(12):
            held = await one.claim(2)
            answer = await one.finish(*held, ending=Ending.RELEASED if n % 2 else Ending.COMPLETED, started_after=None)
            # A claim that never started leaves no record, so a repeated release is stale once another has the task.
            assert not answer.refused or (store.lost and n % 2)

    await asyncio.gather(*map(storm, claimers))
    assert {task.state for task in await all_tasks(engine)} == {State.COMPLETED, State.PENDING}
    assert len(await claimers[0].claim(10)) == 3
