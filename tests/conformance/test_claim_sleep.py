"""claim's `next_at` and `more`: a worker that sleeps exactly as long as it is told to misses nothing, and is not woken in vain for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from taskmill.clock import HOUR, MINUTE, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Room
from taskmill.task import Edge, NewTask, Priority, State
from tests.conformance.tools import QUEUE, Worker, encode, new, outcome, states, submit, worker

DELAYS = (0, 1, 1_000, SECOND, 90 * SECOND, HOUR)


class Sleeper:
    """A worker without a poll: it asks, works, and sleeps until `next_at`; where it is told nothing, it stops. What a slow one begins does not end."""

    def __init__(self, one: Worker, clock: ManualClock, slots: int = 3, *, slow: bool = False) -> None:
        self.one = one
        self.slots = slots
        self.slow = slow
        self.clock = clock
        self.starts: list[tuple[str, int]] = []
        self.woken_in_vain = 0

    async def run(self, endings: Sequence[Ending] = (), **fields: Any) -> None:
        """The first attempts end in these ways, all others in success."""
        left = list(endings)
        while True:
            self.one.request += 1
            answer = await self.one.engine.claim(self.one.id, self.one.request, self.one.queues, Room(self.slots))
            for task in answer.tasks:
                self.starts.append((task.id, task.claimed_at))
                if self.slow:
                    continue
                ending = left.pop(0) if left else Ending.COMPLETED
                assert (await self.one.engine.finish([outcome(task, ending, **fields)])).refused == ()
            if answer.tasks or answer.more:
                continue
            self.woken_in_vain += 1
            if answer.next_at is None:
                return
            assert answer.next_at > self.clock.now()
            self.clock.advance((answer.next_at - self.clock.now()) / SECOND)


async def test_delayed_tasks_of_every_lane(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "some", b'{"cap": 2}')
    kinds: list[dict[str, Any]] = [{}, {"limits": ("some",)}, {"order_key": "k"}, {"fair_key": "s"}, {"priority": Priority.LOW}]
    tasks = [new(n, delay=delay, **kind) for n, (delay, kind) in enumerate((delay, kind) for delay in DELAYS for kind in kinds)]
    begun = clock.now()
    await submit(engine, *tasks)
    sleeper = Sleeper(await worker(engine), clock)
    await sleeper.run()
    due = {task.id: begun + (task.delay or 0) for task in tasks}
    assert {id for id, _ in sleeper.starts} == set(due)
    assert all(at == due[id] for id, at in sleeper.starts)
    assert sleeper.woken_in_vain <= 2 * len(DELAYS)


@pytest.mark.parametrize("slots", [1, 3, 100])
async def test_rates_of_several_windows(engine: Engine, clock: ManualClock, slots: int) -> None:
    await engine.put("limit", "fast", encode({"rate": 2, "window": SECOND}))
    await engine.put("limit", "slow", encode({"rate": 1, "window": MINUTE}))
    kinds = [("fast",), ("slow",), ("fast", "slow"), ("fast:a",), ("slow:b", "fast:a")]
    tasks = [new(n, limits=kinds[n % 5]) for n in range(40)]
    begun = clock.now()
    await submit(engine, *tasks)
    sleeper = Sleeper(await worker(engine), clock, slots)
    await sleeper.run()
    assert {id for id, _ in sleeper.starts} == {task.id for task in tasks}
    assert clock.now() - begun <= 16 * MINUTE + SECOND
    assert sleeper.woken_in_vain <= 80


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_lane_behind_another_at_the_same_rate(engine: Engine, clock: ManualClock, slots: int, slow: bool) -> None:
    """Each window has room for one lane only; those that must go on waiting are called by the next window."""
    await engine.put("limit", "rate", encode({"rate": 1, "window": MINUTE}))
    await engine.put("limit", "per-user", b'{"cap": 9}')
    tasks = [new(n, limits=("rate", f"per-user:{n}")) for n in range(6)]
    await submit(engine, *tasks)
    sleeper = Sleeper(await worker(engine), clock, slots, slow=slow)
    await sleeper.run()
    assert [id for id, _ in sleeper.starts] == [task.id for task in tasks]


@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.SNOOZED])
async def test_what_sleeps_between_attempts(engine: Engine, clock: ManualClock, ending: Ending) -> None:
    await engine.put("limit", "one", b'{"cap": 1}')
    tasks = [new(n, limits=("one",) if n % 2 else (), order_key="k" if n % 3 == 0 else None) for n in range(12)]
    await submit(engine, *tasks)
    sleeper = Sleeper(await worker(engine), clock)
    await sleeper.run([ending] * 12, after=7 * SECOND)
    assert len(sleeper.starts) == 24
    assert set(await states(engine, [task.id for task in tasks])) == {State.COMPLETED}


async def test_a_deadline_of_a_wait(engine: Engine, clock: ManualClock) -> None:
    tasks = [new(n, fair_key="s" if n % 2 else None) for n in range(4)]
    await submit(engine, *tasks)
    begun = clock.now()
    sleeper = Sleeper(await worker(engine), clock)
    await sleeper.run([Ending.WAITING] * 4, signals=("never",), deadline=MINUTE)
    assert [at - begun for _, at in sleeper.starts] == [0] * 4 + [MINUTE] * 4


async def test_a_delayed_task_that_also_waits_for_others(engine: Engine, clock: ManualClock) -> None:
    begun = clock.now()
    child = new("child", delay=5 * SECOND)
    tasks: list[NewTask] = [child, new("late", delay=HOUR, edges=(Edge(child.id),)), new("early", delay=SECOND, edges=(Edge(child.id),))]
    await submit(engine, *tasks)
    sleeper = Sleeper(await worker(engine), clock)
    await sleeper.run()
    assert [(id, at - begun) for id, at in sleeper.starts] == [(child.id, 5 * SECOND), (tasks[2].id, 5 * SECOND), (tasks[1].id, HOUR)]


async def test_what_is_not_for_this_worker_wakes_nobody(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "one", b'{"cap": 1}')
    await submit(engine, new(type="foreign"), new(limits=("one",), type="foreign"), new(queue="other", delay=SECOND))
    sleeper = Sleeper(await worker(engine), clock)
    await sleeper.run()
    assert sleeper.starts == []
    assert sleeper.woken_in_vain <= 3


async def test_more_work_than_slots_is_no_reason_to_sleep(engine: Engine, clock: ManualClock) -> None:
    begun = clock.now()
    await submit(engine, *(new(n) for n in range(100)), new("later", delay=HOUR))
    one = await worker(engine)
    sleeper = Sleeper(one, clock)
    await sleeper.run()
    assert [at - begun for _, at in sleeper.starts] == [0] * 100 + [HOUR]
    assert await one.claim(queues=[QUEUE]) == []
