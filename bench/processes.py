"""Several processes on one file: what two finish beside one, and how long a small write waits among ten."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from bench.report import Figure, Plan, percentile, rates
from bench.store import fill, folder, opened, plain

__all__ = ["run"]

SECTION = "processes"
WRITERS = 10
PATIENCE = 120.0
"""Seconds for all processes to come up, and for the slowest to answer."""

Answer = tuple[int, float, float, list[float]]
# tasks done, when it began, when it ended, how long each of its calls took
Part = Callable[[Path, int, "Barrier", "Queue[Answer]", float], None]


async def run(plan: Plan) -> list[Figure]:
    return [await _two(plan), *await _ten(plan)]


async def _two(plan: Plan) -> Figure:
    tasks = plan.count(50_000)
    found: dict[str, list[float]] = {"two processes": [], "one": []}
    for number in range(plan.rounds):
        for name, processes in zip(found, (2, 1), strict=True):
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {name}, {tasks:,} tasks")
            with folder(plan.directory) as path:
                found[name].append(await _in_sum(path / "bench.db", processes, tasks))
    return rates(SECTION, "two processes on one file / one", 1.0, found, "tasks/s in sum, claim+finish by 500")


async def _in_sum(path: Path, processes: int, tasks: int) -> float:
    async with opened(path) as loop:
        await fill(loop.engine, tasks)
    answers = await asyncio.to_thread(_together, _drain_part, path, processes, 0.0)
    done = sum(answer[0] for answer in answers)
    assert done == tasks, f"{done} of {tasks} tasks were finished"
    return done / (max(answer[2] for answer in answers) - min(answer[1] for answer in answers))


async def _ten(plan: Plan) -> list[Figure]:
    waits: list[float] = []
    worst: list[float] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {WRITERS} writers, {plan.seconds:g} s")
        with folder(plan.directory) as path:
            async with opened(path / "bench.db"):
                pass
            answers = await asyncio.to_thread(_together, _write_part, path / "bench.db", WRITERS, plan.seconds)
        took = [one for answer in answers for one in answer[3]]
        waits += took
        worst.append(max(took) * 1e3)
    how = f"of {len(waits):,} single submits, p50 {percentile(waits, 0.5) * 1e3:.1f} ms, p99 {percentile(waits, 0.99) * 1e3:.1f} ms"
    return [Figure(SECTION, f"longest write among {WRITERS} processes", max(worst), "ms", "<", 200, how=how, rounds=worst)]


def _together(part: Part, path: Path, processes: int, seconds: float) -> list[Answer]:
    """Run a part in so many processes, which begin at the same moment, and gather what they measured."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    answers: Queue[Answer] = context.Queue()
    children = [context.Process(target=part, args=(path, number, barrier, answers, seconds), daemon=True) for number in range(processes)]
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


def _drain_part(path: Path, number: int, barrier: Barrier, answers: Queue[Any], _: float) -> None:
    asyncio.run(_drain(path, number, barrier, answers))


async def _drain(path: Path, number: int, barrier: Barrier, answers: Queue[Any]) -> None:
    async with opened(path, f"bench-{number}") as loop:
        barrier.wait(PATIENCE)
        began = time.perf_counter()
        done = await loop.drain()
        answers.put((done, began, time.perf_counter(), []))


def _write_part(path: Path, number: int, barrier: Barrier, answers: Queue[Any], seconds: float) -> None:
    asyncio.run(_write(path, number, barrier, answers, seconds))


async def _write(path: Path, number: int, barrier: Barrier, answers: Queue[Any], seconds: float) -> None:
    async with opened(path, f"bench-{number}") as loop:
        barrier.wait(PATIENCE)
        began = time.perf_counter()
        took: list[float] = []
        while (now := time.perf_counter()) - began < seconds:
            await loop.engine.submit([plain(len(took))])
            took.append(time.perf_counter() - now)
        answers.put((len(took), began, time.perf_counter(), took))
