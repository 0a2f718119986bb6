"""Several processes on one store: what two finish beside one, and how long a small write waits among ten."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from bench import raw_redis
from bench.report import Figure, Plan, percentile, rates
from bench.store import BATCHES, PAYLOAD, TYPE, batch_of, fill, opened, plain
from taskmill.task import NewTask

__all__ = ["run"]

SECTION = "processes"
WRITERS = 10
LANES = 1_000
PATIENCE = 120.0
"""Seconds for all processes to come up, and for the slowest to answer."""

Answer = tuple[int, float, float, list[float]]
# tasks done, when it began, when it ended, how long each of its calls took
Part = Callable[[str, int, "Barrier", "Queue[Answer]", float], None]


async def run(plan: Plan) -> list[Figure]:
    return [*await _two(plan), *await _ten(plan)]


async def _two(plan: Plan) -> list[Figure]:
    """On a file a second process must not be a burden; on a server it should be worth something, also with many lanes. On Redis a raw loop of two shows what
    the server itself has to give."""
    tasks = plan.count(50_000)
    server = plan.stores.engine != "sqlite"
    sides = {"two processes": (2, plain), "one": (1, plain), **({"two, 1,000 lanes": (2, _in_a_lane)} if server else {})}
    found: dict[str, list[float]] = {name: [] for name in sides}
    raw: list[float] = []
    for number in range(plan.rounds):
        if plan.stores.engine == "redis":
            raw.append(await asyncio.to_thread(_raw_in_sum, 2, tasks, plan))
        for name, (processes, make) in sides.items():
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {name}, {tasks:,} tasks")
            with plan.stores.fresh() as url:
                found[name].append(await _in_sum(url, processes, tasks, make, plan))
    lanes = found.pop("two, 1,000 lanes", None)
    how = f"tasks/s in sum, claim+finish by {BATCHES[plan.stores.engine]}"
    name = "two processes / one" if server else "two processes on one file / one"
    figures = [rates(SECTION, name, None if server else 1.0, found, how, typical=plan.stores.typical)]
    if lanes is not None:
        beside = {"1,000 lanes": lanes, "common": found["two processes"]}
        target = 0.6 if plan.stores.engine == "postgres" else None
        figures.append(rates(SECTION, "two processes, 1,000 lanes / common lane", target, beside, f"{how}, one limit each", typical=plan.stores.typical))
    if raw:
        beside = {"two processes": found["two processes"], "raw": raw}
        figures.append(rates(SECTION, "two processes / raw loop of two", None, beside, how, typical=plan.stores.typical))
    return figures


def _in_a_lane(number: int) -> NewTask:
    return NewTask(type=TYPE, payload=PAYLOAD, limits=(f"bench:{number % LANES}",))


async def _in_sum(url: str, processes: int, tasks: int, make: Callable[[int], NewTask], plan: Plan) -> float:
    async with opened(url) as loop:
        await loop.engine.put("limit", "bench", b'{"cap": 1000000}')
        await fill(loop.engine, tasks, make)
    plan.stores.settle(url)
    return _rate(await asyncio.to_thread(_together, _drain_part, url, processes, 0.0), tasks)


def _raw_in_sum(processes: int, tasks: int, plan: Plan) -> float:
    plan.say(f"{SECTION}: {processes} raw loops, {tasks:,} tasks")
    with plan.stores.fresh() as url:
        raw_redis.fill(url, tasks, PAYLOAD)
        return _rate(_together(_raw_part, url, processes, 0.0), tasks)


def _rate(answers: list[Answer], tasks: int) -> float:
    done = sum(answer[0] for answer in answers)
    assert done == tasks, f"{done} of {tasks} tasks were finished"
    return done / (max(answer[2] for answer in answers) - min(answer[1] for answer in answers))


async def _ten(plan: Plan) -> list[Figure]:
    waits: list[float] = []
    worst: list[float] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {WRITERS} writers, {plan.seconds:g} s")
        with plan.stores.fresh() as url:
            async with opened(url):
                pass
            answers = await asyncio.to_thread(_together, _write_part, url, WRITERS, plan.seconds)
        took = [one for answer in answers for one in answer[3]]
        waits += took
        worst.append(max(took) * 1e3)
    how = f"of {len(waits):,} single submits, p50 {percentile(waits, 0.5) * 1e3:.1f} ms, p99 {percentile(waits, 0.99) * 1e3:.1f} ms"
    target = 200 if plan.stores.engine == "sqlite" else None
    return [Figure(SECTION, f"longest write among {WRITERS} processes", max(worst), "ms", "<" if target else "", target, how=how, rounds=worst)]


def _together(part: Part, url: str, processes: int, seconds: float) -> list[Answer]:
    """Run a part in so many processes, which begin at the same moment, and gather what they measured."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    answers: Queue[Answer] = context.Queue()
    children = [context.Process(target=part, args=(url, number, barrier, answers, seconds), daemon=True) for number in range(processes)]
    for child in children:
        child.start()
    try:
        return [answers.get(timeout=PATIENCE + seconds) for _ in children]
    finally:
        for child in children:
            child.join(timeout=10)
            if child.is_alive():
                child.terminate()
                child.join()


def _drain_part(url: str, number: int, barrier: Barrier, answers: Queue[Any], _: float) -> None:
    asyncio.run(_drain(url, number, barrier, answers))


async def _drain(url: str, number: int, barrier: Barrier, answers: Queue[Any]) -> None:
    async with opened(url, f"bench-{number}") as loop:
        barrier.wait(PATIENCE)
        began = time.perf_counter()
        done = await loop.drain()
        answers.put((done, began, time.perf_counter(), []))


def _raw_part(url: str, number: int, barrier: Barrier, answers: Queue[Any], _: float) -> None:
    barrier.wait(PATIENCE)
    began = time.perf_counter()
    done = raw_redis.drain(url, batch_of(url), f"bench-{number}")
    answers.put((done, began, time.perf_counter(), []))


def _write_part(url: str, number: int, barrier: Barrier, answers: Queue[Any], seconds: float) -> None:
    asyncio.run(_write(url, number, barrier, answers, seconds))


async def _write(url: str, number: int, barrier: Barrier, answers: Queue[Any], seconds: float) -> None:
    async with opened(url, f"bench-{number}") as loop:
        barrier.wait(PATIENCE)
        began = time.perf_counter()
        took: list[float] = []
        while (now := time.perf_counter()) - began < seconds:
            await loop.engine.submit([plain(len(took))])
            took.append(time.perf_counter() - now)
        answers.put((len(took), began, time.perf_counter(), took))
