"""Edges: many children under one parent beside as many tasks without, and one task that many wait for.

When that one has ended its edges fall in slices, carried by whoever calls next. Here finish, claim and recover_lost take turns until all have fallen, and the
longest of these calls counts; in between, a commit of one raw row (on Redis: one key) shows how long the store alone makes a writer wait.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TypeVar

from bench.raw import Commits, commits
from bench.report import Figure, Plan, percentile, rates
from bench.store import BATCHES, PAYLOAD, TYPE, Loop, fill, opened, plain
from taskmill.task import Edge, NewTask

__all__ = ["run"]

SECTION = "edges"
STEP = 100
CHILDREN = {"sqlite": 0.75, "postgres": 0.85, "redis": None}
LONGEST = {"sqlite": 50.0, "postgres": None, "redis": None}
Answer = TypeVar("Answer")


async def run(plan: Plan) -> list[Figure]:
    return [await _children(plan), *await _waiters(plan)]


async def _children(plan: Plan) -> Figure:
    tasks = plan.count(100_000)
    found: dict[str, list[float]] = {"with edges": [], "without": []}
    for number in range(plan.rounds):
        for name, with_edges in zip(found, (True, False), strict=True):
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {tasks:,} children, {name}")
            with plan.stores.fresh() as url:
                found[name].append(await _drained(url, tasks, with_edges, plan))
    target = CHILDREN[plan.stores.engine]
    how = f"tasks/s, claim+finish by {BATCHES[plan.stores.engine]}"
    return rates(SECTION, f"{tasks:,} children of one parent / without edges", target, found, how, typical=plan.stores.typical)


async def _drained(url: str, tasks: int, with_edges: bool, plan: Plan) -> float:
    async with opened(url) as loop:
        if not with_edges:
            await fill(loop.engine, tasks)
            plan.stores.settle(url)
            return await loop.timed_drain(tasks)
        parent = NewTask(type=TYPE, payload=PAYLOAD, sealed=True)
        await loop.engine.submit([parent])
        await fill(loop.engine, tasks, lambda _: NewTask(type=TYPE, payload=PAYLOAD, parent=Edge(parent.id)))
        await loop.engine.submit([], unseal=[parent.id])
        plan.stores.settle(url)
        return await loop.timed_drain(tasks + 1)


async def _waiters(plan: Plan) -> list[Figure]:
    tasks = plan.count(100_000)
    steps: list[tuple[str, float]] = []
    worst: list[float] = []
    disk: list[float] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, one task that {tasks:,} wait for")
        with plan.stores.fresh() as url:
            fall = await _fallen(url, tasks)
        steps += fall.steps
        worst.append(max(seconds for _, seconds in fall.steps) * 1e3)
        disk += fall.disk
    longest = ", ".join(f"{name} {max(seconds for call, seconds in steps if call == name) * 1e3:.1f}" for name in dict.fromkeys(call for call, _ in steps))
    how = f"{len(steps):,} calls, p99 {percentile([seconds for _, seconds in steps], 0.99) * 1e3:.1f} ms; longest {longest}"
    longest_step = LONGEST[plan.stores.engine]
    beside = f"p99 {percentile(disk, 0.99) * 1e3:.1f} ms; one raw row or key, in between"
    return [
        Figure(SECTION, f"{tasks:,} wait for one: longest step", max(worst), "ms", "<=" if longest_step else "", longest_step, how=how, rounds=worst),
        Figure(SECTION, "longest raw commit meanwhile", max(disk) * 1e3, "ms", how=beside),
    ]


class _Falling:
    """The calls made while edges fall, and how long each took."""

    def __init__(self, commits: Commits) -> None:
        self.steps: list[tuple[str, float]] = []
        self.disk = commits.seconds
        self._commits = commits

    async def step(self, name: str, call: Awaitable[Answer]) -> Answer:
        began = time.perf_counter()
        answer = await call
        self.steps.append((name, time.perf_counter() - began))
        await self._commits.measure()
        return answer


async def _fallen(url: str, tasks: int) -> _Falling:
    async with opened(url) as loop:
        first = plain(0)
        await loop.engine.submit([first])
        await fill(loop.engine, tasks, lambda _: NewTask(type=TYPE, payload=PAYLOAD, edges=(Edge(first.id),)))
        probe = commits(url)
        try:
            falling = _Falling(probe)
            done = await _fall(loop, falling)
        finally:
            await probe.close()
        done += await loop.drain()
        assert done == tasks + 1, f"{done} of {tasks + 1} tasks were finished"
        return falling


async def _fall(loop: Loop, falling: _Falling) -> int:
    """Finish the one they wait for, then go on as a worker and its maintenance would."""
    held = await loop.claim(1)
    done = len(held)
    more = await falling.step("first finish", loop.finish(held))
    while more:
        await loop.engine.heartbeat(loop.worker, loop.request, ())
        held = await falling.step("claim", loop.claim(STEP))
        await falling.step("finish", loop.finish(held))
        more = (await falling.step("recover_lost", loop.engine.recover_lost())).more
        done += len(held)
    return done
