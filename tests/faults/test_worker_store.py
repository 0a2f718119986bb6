"""Workers whose store is locked, or whose wall clock is set: they keep what they hold, and go on by themselves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from taskmill.clock import HOUR, MINUTE, SECOND
from taskmill.task import State, Task
from tests.faults import stepped
from tests.faults.workers import BRISK, Load, Place, locked, new, passed, place_at, verdict


async def everybody_lives(place: Place, workers: int, seconds: float) -> None:
    """For so long, and at every look."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        found = await place.engine.workers()
        assert [worker.alive for worker in found] == [True] * workers
        await asyncio.sleep(0.1)


async def lock_out(tmp_path: Path, seconds: float, env: dict[str, str]) -> None:
    async with place_at(tmp_path, env) as place, place.worker() as first, place.worker() as second:
        gate = place.gate("gate")
        children = [*await first.joined(), *await second.joined()]
        tasks = await place.submit(*(new("hold", gate=gate.path) for _ in range(6)))
        await place.effects.count(6, "begin", tasks=tasks)
        async with Load(place):
            async with locked(tmp_path / "store.db"):
                gate.let(3)  # these end while nobody can be told
                await place.effects.count(3, "end", tasks=tasks)
                await everybody_lives(place, 2, seconds)
            gate.let(3)
            ends = len(place.effects.of("end"))
            await place.effects.count(ends + 50, "end")
        await place.all_ended(tasks)
        assert [*first.children(), *second.children()] == children
        assert [await first.stop(), await second.stop()] == [0, 0]
        gate.close()
        judged = await verdict(place)
    assert {(read.executions, read.crashes, read.failures) for read in judged.reads.values()} == {(1, 0, 0)}
    assert judged.answers("stale") == []


async def test_the_store_is_locked(tmp_path: Path) -> None:
    """For more than two leases."""
    await lock_out(tmp_path, 5.0, BRISK)


@pytest.mark.chaos
async def test_the_store_is_locked_for_ten_seconds(tmp_path: Path) -> None:
    await lock_out(tmp_path, 10.0, {})


async def states(place: Place, tasks: list[str]) -> set[State]:
    return {task.state for task in await place.engine.get(tasks) if isinstance(task, Task)}


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
async def test_the_wall_clock_is_set(tmp_path: Path, by: int) -> None:
    """No task before its time by the clock that was set, whatever that is; leases and beats do not look at it."""
    stepped.step(tmp_path / "clock", 0)
    async with place_at(tmp_path, clock=stepped.SteppedClock(tmp_path / "clock")) as place, place.worker(module="tests.faults.stepped") as worker:
        gate = place.gate("gate")
        (child,) = await worker.joined()
        held = await place.submit(*(new("hold", gate=gate.path) for _ in range(3)))
        await place.effects.count(3, "begin", tasks=held)
        half = await place.submit(*(new("work", ms=1, delay=30 * MINUTE) for _ in range(3)))
        later = await place.submit(*(new("work", ms=1, delay=2 * HOUR) for _ in range(3)))
        stepped.step(tmp_path / "clock", by)
        now = await place.submit(*(new("work", ms=1) for _ in range(5)), *(new("work", ms=1, delay=SECOND // 2) for _ in range(5)))
        await place.all_ended(now)
        if by > 0:
            await place.all_ended(half)
        await passed(place, 3 * SECOND)
        assert await states(place, held) == {State.RUNNING}
        assert await states(place, later if by > 0 else half + later) == {State.SCHEDULED}
        gate.let(3)
        await place.all_ended(held)
        stepped.step(tmp_path / "clock", 0)
        await place.all_ended(await place.submit(*(new("work", ms=1, delay=SECOND // 10) for _ in range(5))))
        stepped.step(tmp_path / "clock", 3 * HOUR)
        await place.all_ended([*half, *later])
        assert worker.children() == [child]
        assert await worker.stop() == 0
        gate.close()
        judged = await verdict(place)
    assert {(read.executions, read.crashes) for read in judged.reads.values()} == {(1, 0)}
