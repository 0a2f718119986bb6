"""A million delayed tasks that are due in the same second: how long a claim takes while they become ready, and how long the longest script of the server.

They are submitted ahead of their time. From the moment they are due one worker claims and finishes by the hundred and does a worker's upkeep every second,
until its time is over or nothing is left. Twice: all in the common lane, and all in 1,000 lanes, a cap each, whose lines they have to be moved into.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.report import Figure, Plan, percentile
from bench.store import PAYLOAD, TYPE, Loop, fill, opened
from bench.stores import Keyspaces
from taskmill.clock import SECOND
from taskmill.task import NewTask

__all__ = ["run"]

SECTION = "delayed"
TASKS = 1_000_000
LANES = 1_000
TRIAL = 2_000
SPARE = 2.0
"""Times as long as a trial says that submitting takes, until they are due."""
UPKEEP = 1.0
SECONDS = 5
"""Times as long as other measurements of a time."""

Make = Callable[[int, int], NewTask]


class Course(NamedTuple):
    """Seconds of each claim and each step of upkeep, tasks finished, and the longest script in microseconds."""

    claims: list[float]
    upkeep: list[float]
    done: int
    seconds: float
    script: float


async def run(plan: Plan) -> list[Figure]:
    tasks = plan.count(TASKS)
    sides: dict[str, Make] = {"common lane": _common, f"{LANES:,} lanes": _in_a_lane}
    return [figure for name, make in sides.items() for figure in _figures(name, tasks, await _measured(name, make, tasks, plan))]


def _common(_: int, at: int) -> NewTask:
    return NewTask(type=TYPE, payload=PAYLOAD, run_at=at)


def _in_a_lane(number: int, at: int) -> NewTask:
    return NewTask(type=TYPE, payload=PAYLOAD, run_at=at, limits=(f"bench:{number % LANES}",))


async def _measured(name: str, make: Make, tasks: int, plan: Plan) -> Course:
    with plan.stores.fresh() as url:
        async with opened(url) as loop:
            await loop.engine.put("limit", "bench", b'{"cap": 1000000}')
            due = await _submitted(loop, make, tasks, plan, name)
            plan.say(f"{SECTION}: {tasks:,} in the {name} wait for their time")
            while (left := due - time.time()) > 0:
                await asyncio.sleep(min(UPKEEP, left))
                await _upkeep(loop)
            assert isinstance(plan.stores, Keyspaces), plan.stores
            script = plan.stores.server.slowest()
            return await _course(loop, SECONDS * plan.seconds, script)


async def _submitted(loop: Loop, make: Make, tasks: int, plan: Plan, name: str) -> float:
    """When they are due: after the last was submitted."""
    far = int((time.time() + 86_400) * SECOND)
    began = time.time()
    await fill(loop.engine, TRIAL, lambda number: make(number, far))
    seconds = (time.time() - began) / TRIAL * tasks
    due = time.time() + 2 + SPARE * seconds
    plan.say(f"{SECTION}: submitting {tasks:,} in the {name}, due in {due - time.time():.0f} s")
    at = int(due * SECOND)
    await fill(loop.engine, tasks, lambda number: make(number, at + number % SECOND), plan.say)
    assert time.time() < due, f"submitting took {time.time() - due:.0f} s longer than expected; run it again"
    return due


async def _upkeep(loop: Loop) -> None:
    """What a worker does every second, whatever there is to do."""
    await loop.engine.heartbeat(loop.worker, loop.request, ())
    await loop.engine.recover_lost()


async def _course(loop: Loop, seconds: float, script: Callable[[], float]) -> Course:
    claims: list[float] = []
    upkeep: list[float] = []
    done = 0
    began = kept = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        tasks = await loop.claim()
        claims.append(time.perf_counter() - now)
        if tasks:
            await loop.finish(tasks)
            done += len(tasks)
        elif now - began > 1:
            break  # the second in which they are due is over, and nothing is left
        if now - kept > UPKEEP:
            kept = time.perf_counter()
            await _upkeep(loop)
            upkeep.append(time.perf_counter() - kept)
    return Course(claims, upkeep, done, time.perf_counter() - began, script())


def _figures(name: str, tasks: int, course: Course) -> list[Figure]:
    def ms(values: list[float], part: float) -> float:
        return percentile(values, part) * 1e3 if values else 0.0

    longest = f"longest {ms(course.claims, 1):.1f}; longest upkeep {ms(course.upkeep, 1):.1f}"
    claims = f"{len(course.claims):,} claims of 100, p50 {ms(course.claims, 0.5):.1f} ms, {longest}"
    rate = course.done / course.seconds
    return [
        Figure(SECTION, f"{tasks:,} due at once, {name}: claim, p99", ms(course.claims, 0.99), "ms", how=claims),
        Figure(SECTION, f"{tasks:,} due at once, {name}: longest script", course.script, "us", how="as the server's slow log has it"),
        Figure(SECTION, f"{tasks:,} due at once, {name}: claim+finish", rate, "/s", how=f"{course.done:,} tasks in {course.seconds:.1f} s"),
    ]
