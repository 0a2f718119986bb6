"""Workers whose store is locked, or whose wall clock is set: they keep what they hold, and go on by themselves."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from taskmill.clock import HOUR, MINUTE, SECOND
from taskmill.task import State, Task
from tests.faults import stepped
from tests.faults.workers import BRISK, Load, Place, Worker, locked, new, place_at, verdict


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


async def held(place: Place, worker: Worker, gate: str, n: int = 3) -> list[str]:
    await worker.joined()
    tasks = await place.submit(*(new("hold", gate=gate) for _ in range(n)))
    await place.effects.count(n, "begin", tasks=tasks, pids=[worker.children()[0].pid])
    return tasks


@pytest.mark.parametrize("by", [HOUR, -HOUR], ids=["forward", "back"])
async def test_the_wall_clock_is_set(tmp_path: Path, by: int) -> None:
    """No task before its time by the clock that was set, whatever that is; leases and beats do not look at it: who lives keeps his, who dies loses them."""
    clock = tmp_path / "clock"
    stepped.step(clock, 0)
    async with place_at(tmp_path, clock=stepped.SteppedClock(clock)) as place, place.worker("--concurrency", 3, module=stepped.__name__) as victim:
        gate = place.gate("gate")
        lost = await held(place, victim, gate.path)
        async with place.worker(module=stepped.__name__) as worker:
            kept = await held(place, worker, gate.path)
            half = await place.submit(*(new("work", ms=1, delay=30 * MINUTE) for _ in range(3)))
            later = await place.submit(*(new("work", ms=1, delay=2 * HOUR) for _ in range(3)))
            victim.signal(signal.SIGSTOP)  # its last beat is from before
            stepped.step(clock, by)
            victim.signal(signal.SIGKILL)
            await place.all_ended(await place.submit(*(new("work", ms=1) for _ in range(5)), *(new("work", ms=1, delay=SECOND // 2) for _ in range(5))))
            await worker.says("no longer heard of")
            assert {task.crashes for task in await place.engine.get(lost) if isinstance(task, Task)} == {1}
            assert await states(place, kept) == {State.RUNNING}
            await place.all_ended([*lost, *half] if by > 0 else lost)
            assert await states(place, later if by > 0 else half + later) == {State.SCHEDULED}
            gate.let(3)
            await place.all_ended(kept)
            stepped.step(clock, 0)
            await place.all_ended(await place.submit(*(new("work", ms=1, delay=SECOND // 10) for _ in range(5))))
            stepped.step(clock, 3 * HOUR)
            await place.all_ended([*lost, *half, *later])
            assert len(worker.children()) == 1
            assert await worker.stop() == 0
        gate.close()
        judged = await verdict(place)
    assert {(read.executions, read.crashes) for task, read in judged.reads.items() if task not in lost} == {(1, 0)}
    assert {(judged.reads[task].executions, judged.reads[task].crashes) for task in lost} == {(2, 1)}
