"""What a task costs in a server's memory: the difference that so many of them make, in each of its states, with a payload of 60 bytes.

A task that runs is under a lease; one that has ended keeps its record and its attempt. Everything counts that the server says it uses: records, lines, its
own tables of keys, and what an allocator gives away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bench.report import Figure, Plan
from bench.store import TYPE, Loop, fill, opened
from taskmill.clock import DAY
from taskmill.task import NewTask

__all__ = ["run"]

SECTION = "bytes"
TASKS = 100_000
PAYLOAD = b'{"args":[1,2,3],"kwargs":{"user":42},"trace":"0af7651916cd"}'

State = Callable[[Loop, int], Awaitable[None]]


async def run(plan: Plan) -> list[Figure]:
    tasks = plan.count(TASKS)
    return [await _measured(name, state, tasks, plan) for name, state in STATES.items()]


async def _measured(name: str, state: State, tasks: int, plan: Plan) -> Figure:
    plan.say(f"{SECTION}: {tasks:,} tasks, {name}")
    with plan.stores.fresh() as url:
        async with opened(url) as loop:
            await fill(loop.engine, 1, _new)  # what a store has once: names of queues, the type, counts
            before = plan.stores.size(url)
            await state(loop, tasks)
            used = (plan.stores.size(url) - before) * 1e6 / tasks
    return Figure(SECTION, f"a task that {name}", used, "B", how=f"used_memory over {tasks:,} tasks, {len(PAYLOAD)} bytes of payload")


def _new(_: int) -> NewTask:
    return NewTask(type=TYPE, payload=PAYLOAD)


async def _waiting(loop: Loop, n: int) -> None:
    await fill(loop.engine, n, _new)


async def _delayed(loop: Loop, n: int) -> None:
    await fill(loop.engine, n, lambda _: NewTask(type=TYPE, payload=PAYLOAD, delay=DAY))


async def _in_a_lane(loop: Loop, n: int) -> None:
    """All of them in one lane: what the lane itself costs is no part of it."""
    await loop.engine.put("limit", "bench", b'{"cap": 1}')
    await fill(loop.engine, n, lambda _: NewTask(type=TYPE, payload=PAYLOAD, limits=("bench",)))


async def _running(loop: Loop, n: int) -> None:
    await fill(loop.engine, n, _new)
    held = 0
    while tasks := await loop.claim():
        held += len(tasks)
    assert held == n + 1, f"{held} of {n + 1} tasks were claimed"


async def _ended(loop: Loop, n: int) -> None:
    await fill(loop.engine, n, _new)
    done = await loop.drain()
    assert done == n + 1, f"{done} of {n + 1} tasks were finished"


STATES: dict[str, State] = {"waits": _waiting, "waits in a lane": _in_a_lane, "is delayed": _delayed, "runs": _running, "has ended": _ended}
