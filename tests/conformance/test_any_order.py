"""Verbs in any order: whatever is done to a graph of tasks, limits hold at every moment, nothing is lost, and everything can come to an end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from taskmill.clock import DAY, MINUTE, SECOND, ManualClock
from taskmill.engine import Claimed, Ending, Engine, Filter, Retention, Target
from taskmill.task import TERMINAL, Edge, Gone, NewTask, OnFailure, State, Task, new_id
from tests.conformance.tools import Store, Worker, all_tasks, new, outcome, step, submit, worker
from tests.conformance.tools_b import decoded, led, settle

STEPS = 120
CAP = 2


class Walk:
    """One random history on two engines of the same store."""

    def __init__(self, seed: int, engines: list[Engine], clock: ManualClock) -> None:
        self.chance = random.Random(seed)
        self.engines = engines
        self.clock = clock
        self.ids: list[str] = []
        self.sealed: list[str] = []
        self.workers: list[Worker] = []
        self.ended: Counter[str] = Counter()
        self.read = ""

    @property
    def engine(self) -> Engine:
        return self.chance.choice(self.engines)

    def some(self, most: int = 3) -> list[str]:
        return self.chance.sample(self.ids, min(len(self.ids), self.chance.randint(0, most)))

    def task(self) -> NewTask:
        chance = self.chance
        edges = tuple(Edge(id, chance.choice([OnFailure.CANCEL, OnFailure.IGNORE])) for id in self.some(2)) if chance.random() < 0.4 else ()
        fields: dict[str, object] = {"edges": edges, "max_crashes": chance.randint(0, 3), "idempotency_window": 300 * DAY}
        if chance.random() < 0.3:
            fields["limits"] = ("two",)
        elif chance.random() < 0.2:
            fields["order_key"] = chance.choice("ab")
        if chance.random() < 0.2:
            fields["delay"] = chance.randint(1, 20) * SECOND
        if chance.random() < 0.1:
            fields["expires_at"] = self.clock.now() + chance.randint(1, 60) * SECOND
        return new(chance.randint(0, 9), **fields)

    async def submit(self) -> None:
        tasks = [self.task() for _ in range(self.chance.randint(1, 5))]
        if self.chance.random() < 0.3:
            parent = new(sealed=True)
            tasks = [parent, *tasks, new(parent=Edge(parent.id, OnFailure.IGNORE))]
            self.sealed.append(parent.id)
        self.ids += await submit(self.engine, *tasks)

    async def unseal(self) -> None:
        if self.sealed:
            await self.engine.submit([], unseal=[self.sealed.pop()])

    async def join(self) -> None:
        if len(self.workers) < 4:
            self.workers.append(await worker(self.engine))

    async def claim(self) -> None:
        if self.workers:
            await self.chance.choice(self.workers).claim(self.chance.randint(1, 4))

    async def finish(self) -> None:
        for hand in self.workers:
            for task in self.chance.sample(list(hand.held.values()), self.chance.randint(0, len(hand.held))):
                await self.end(hand, task, self.chance.choice(list(Ending)))

    async def end(self, hand: Worker, task: Claimed, ending: Ending) -> None:
        fields: dict[str, object] = {"after": self.chance.randint(0, 5) * SECOND, "started_after": self.chance.choice([None, 0])}
        if ending is Ending.WAITING:
            fields["signals"] = ("go",)
            fields["deadline"] = MINUTE
        if self.chance.random() < 0.2 and ending in {Ending.COMPLETED, Ending.WAITING}:
            follower = new()
            fields["then"] = (follower,)
            self.ids.append(follower.id)
        answer = await self.engine.finish([outcome(task, ending, **fields)])
        del hand.held[task.token]
        assert answer.refused == ()

    async def checkpoint(self) -> None:
        for hand in self.workers:
            for task in list(hand.held.values())[:1]:
                assert await self.engine.checkpoint([step(task, "one", 1, unwind=self.chance.random() < 0.3 or None)]) == ()

    async def signal(self) -> None:
        for task in await self.engine.get(self.some()):
            if isinstance(task, Task) and task.state not in TERMINAL:
                await self.engine.signal(task.id, "go", b"1", new_id())

    async def cancel(self) -> None:
        await self.engine.cancel([Target(id) for id in self.some(1)])

    async def requeue(self) -> None:
        await self.engine.requeue([Target(id) for id in self.some()], from_start=self.chance.random() < 0.5)

    async def delete(self) -> None:
        await self.deliver()
        await self.deliver()
        chosen = self.some()
        await self.engine.delete([Target(id) for id in chosen])
        for found in await self.engine.get(chosen):
            assert found is not None
            if isinstance(found, Gone):
                assert found.state in TERMINAL
                self.ids.remove(found.id)

    async def pass_second(self) -> None:
        self.clock.advance(1)
        for hand in self.workers:
            beat = await hand.beat()
            assert beat.lost == ()
        await self.engine.recover_lost()

    async def die(self) -> None:
        """A worker falls silent; the others go on beating until it is found."""
        if len(self.workers) > 1 and self.chance.random() < 0.4:
            self.workers.remove(self.chance.choice(self.workers))
            for _ in range(6):
                await self.pass_second()

    async def leave(self) -> None:
        if len(self.workers) > 1 and self.chance.random() < 0.4:
            gone = self.workers.pop()
            await gone.engine.leave(gone.id)

    async def deliver(self) -> None:
        for entry in await self.engines[0].outbox("ended", self.read, 1_000, await led(self.engines[0])):
            self.ended[decoded(entry.data)["id"]] += 1
            self.read = entry.cursor

    async def check(self) -> None:
        """What must hold at every moment."""
        tasks = await all_tasks(self.engines[0])
        running = [task for task in tasks if task.state is State.RUNNING]
        assert sum("two" in task.limits for task in running) <= CAP
        assert max(Counter(task.order_key for task in running if task.order_key).values(), default=0) <= 1
        assert {task.id for task in running} >= {task.id for hand in self.workers for task in hand.held.values()}
        assert {task.id for task in tasks} == set(self.ids)
        for task in tasks:
            if task.open_edges or task.state is State.WAITING:
                edges = await self.engines[0].edges(task.id)
                assert task.open_edges == sum(edge.outcome is None for edge in edges), task

    async def drain(self) -> None:
        """Seals broken, every lease ended, every wait answered: all tasks come to an end."""
        while self.sealed:
            await self.unseal()
        await self.join()
        for _ in range(300):
            for hand in self.workers:
                for task in list(hand.held.values()):
                    await self.end(hand, task, Ending.CANCELLED if task.must_end else Ending.COMPLETED)
                await hand.claim(50)
            await self.pass_second()
            await settle(self.engine)
            if all(task.state in TERMINAL for task in await all_tasks(self.engines[0])):
                return
        left = [task for task in await all_tasks(self.engines[0]) if task.state not in TERMINAL]
        raise AssertionError(f"these never end: {left}")


async def started(seed: int, store: Store, engine: Engine, clock: ManualClock) -> Walk:
    walk = Walk(seed, [engine, await store.engine()], clock)
    await engine.put("limit", "two", b'{"cap": %d}' % CAP)
    await engine.put("outbox", "ended", b"{}")
    await engine.recover_lost()
    await walk.join()
    return walk


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_and_no_limit_is_exceeded(engine: Engine, store: Store, clock: ManualClock, seed: int) -> None:
    walk = await started(seed, store, engine, clock)
    verbs = [walk.submit, walk.claim, walk.claim, walk.finish, walk.finish, walk.checkpoint, walk.signal, walk.cancel, walk.requeue]
    verbs += [walk.pass_second, walk.die, walk.leave, walk.join, walk.unseal, walk.deliver, walk.delete]
    for number in range(STEPS):
        await walk.chance.choice(verbs)()
        if number % 3 == 0:
            await walk.check()
    await walk.drain()
    for _ in range(2):  # the second reads nothing and cuts what the first has read
        await walk.deliver()
    for task in await all_tasks(engine):
        numbers = [attempt.number for attempt in await engine.attempts(task.id)]
        assert numbers == list(range(1, task.executions + 1)), task
        assert walk.ended[task.id] >= 1
    walk.clock.advance("1h")
    while (await engine.prune(200, await led(engine), Retention(completed=0, dead=0, cancelled=0))).more:
        pass
    assert (await engine.list(Filter())).tasks == ()
