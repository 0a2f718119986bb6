"""Workers that are killed: what they held runs elsewhere, soon, and nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from taskmill.clock import SECOND
from tests.faults.effects import Line, percentile, until
from tests.faults.observed import MARK, MOMENTS, trap
from tests.faults.workers import BOUNDS, BRISK, NEVER, Load, Place, gone, new, place_at, verdict

SOON = replace(BOUNDS, rerun=15 * SECOND)
"""Promised are 5 s; the rest is for a machine that is busy with other tests."""


async def kills(tmp_path: Path, n: int, seed: int, env: dict[str, str], latest: int = 40) -> list[int]:
    """So many workers killed, each when it has begun as many tasks as chance picks, beside one that lives; how soon their tasks began again."""
    random = Random(seed)
    deaths: list[tuple[set[int], int]] = []
    async with place_at(tmp_path, env) as place, place.worker() as survivor:
        await survivor.joined()
        async with Load(place, seed=seed):
            for _ in range(n):
                async with place.worker() as victim:
                    (child,) = await victim.joined()
                    await place.effects.count(random.randrange(1, latest), "begin", pids=[child.pid])
                    victim.signal(signal.SIGKILL)
                    at = place.note_death([child.worker])
                    await victim.ended()
                    deaths.append((victim.family(), at))
        assert await survivor.stop() == 0
        judged = await verdict(place, SOON)
    pids = {pid for family, _ in deaths for pid in family}
    assert set(judged.cut_off(pids)) <= {"completed", "crashed"}
    return [delay for family, at in deaths for delay in judged.effects.reruns(family, at)]


async def test_a_worker_is_killed_under_load(tmp_path: Path) -> None:
    assert await kills(tmp_path, 4, 1, BRISK)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
async def test_many_workers_are_killed_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    delays = await kills(tmp_path, 20, seed, {}, 600)
    with capsys.disabled():
        figures = ", ".join(f"{name} {percentile(delays, part):.2f} s" for name, part in (("p50", 0.5), ("p99", 0.99), ("longest", 1)))
        print(f"\n20 kills of a worker, {len(delays)} tasks began again elsewhere: {figures}")


async def dies(place: Place, child: Line, of: Path) -> None:
    await asyncio.to_thread(of.touch)
    await until(lambda: True if not of.exists() and gone(child.pid) else None, f"a death at {of.name}")
    place.note_death([child.worker])


async def test_a_child_is_killed_between_claim_and_finish(tmp_path: Path) -> None:
    """At the moments when the store and the worker know different things. The supervisor reports what it knows, and the store what it gave."""
    async with place_at(tmp_path, NEVER) as place, place.worker() as worker:
        (child,) = await worker.joined()
        async with Load(place, longest=20):
            for n, moment in enumerate(MOMENTS, start=2):
                await place.effects.count(1, "begin", pids=[child.pid])
                await dies(place, child, trap(tmp_path, moment, "child"))
                child = (await worker.joined(n))[-1]
        assert await worker.stop() == 0
        judged = await verdict(place, SOON)
    children = {line.pid for line in worker.children()}
    assert len(children) == 1 + len(MOMENTS)
    assert judged.cut_off(children).keys() == {"completed", "crashed"}
    assert judged.cut_off(worker.family() - children).keys() <= {"completed", "crashed", "released"}  # alone they cannot be the one who did it


async def test_a_supervisor_is_killed_between_claim_and_finish(tmp_path: Path) -> None:
    """Nobody is left to report anything."""
    async with place_at(tmp_path) as place, place.worker() as survivor:
        await survivor.joined()
        async with Load(place, longest=20):
            for moment in MOMENTS:
                async with place.worker(env={MARK: "1"}) as worker:
                    (child,) = await worker.joined()
                    await dies(place, child, trap(tmp_path, moment, "supervisor"))
                    assert await worker.ended() == -signal.SIGKILL
        assert await survivor.stop() == 0
        judged = await verdict(place, SOON)
    assert {attempt.outcome for attempts in judged.attempts.values() for attempt in attempts} == {"completed", "crashed"}


async def test_nobody_outlives_a_supervisor(tmp_path: Path) -> None:
    """Children, and the processes of their isolated tasks, however busy."""
    async with place_at(tmp_path) as place, place.worker("--processes", 2) as worker:
        gate = place.gate("gate")
        await worker.joined(2)
        alone = await place.submit(new("alone", ms=60_000), new("alone", ms=60_000))
        await place.effects.count(2, "begin", tasks=alone)
        blocking = await place.submit(new("block", gate=gate.path))
        await place.effects.count(1, "begin", tasks=blocking)
        family = worker.family()
        assert len(family) >= 4
        assert not any(map(gone, family))
        worker.signal(signal.SIGKILL)
        await until(lambda: True if all(map(gone, family)) else None, f"the end of {family}", patience=10)
        gate.close()


async def test_a_child_is_killed_alone(tmp_path: Path) -> None:
    """As the system does when memory runs out: reported at once, long before any lease could end; what ran in it runs from then on by itself."""
    async with place_at(tmp_path, NEVER) as place, place.worker() as worker:
        gate = place.gate("gate")
        (child,) = await worker.joined()
        tasks = await place.submit(*(new(kind, gate=gate.path) for kind in ("hold", "hold_async", "hold")))
        await place.effects.count(3, "begin", tasks=tasks)
        os.kill(child.pid, signal.SIGKILL)
        place.note_death([child.worker])
        await place.all_ended(tasks)
        after = await place.submit(new("work", ms=0))
        await place.all_ended(after)
        gate.close()
        assert await worker.stop() == 0
        judged = await verdict(place)
    children = {line.pid for line in worker.children()}
    for task in tasks:
        first, second = judged.attempts[task]
        assert (first.outcome, second.outcome, judged.reads[task].crashes) == ("crashed", "completed", 1)
        assert first.error is not None
        assert "SIGKILL" in first.error.message
    assert not {line.pid for line in judged.effects.of("begin", tasks=tasks) if line.attempt == 2} & children
    assert {line.pid for line in judged.effects.of("begin", tasks=after)} <= children


async def test_a_task_that_kills_its_process_is_poison(tmp_path: Path) -> None:
    """Once in the child, with all that ran beside it; then alone, and it harms nobody else."""
    async with place_at(tmp_path, NEVER) as place, place.worker() as worker:
        gate = place.gate("gate")
        await worker.joined()
        (neighbour,) = await place.submit(new("hold", gate=gate.path))
        await place.effects.count(1, "begin", tasks=[neighbour])
        (poison,) = await place.submit(new("fatal"))
        await place.all_ended([neighbour, poison])
        others = await place.submit(*(new("work", ms=1) for _ in range(20)))
        await place.all_ended(others)
        gate.close()
        assert await worker.stop() == 0
        judged = await verdict(place, replace(BOUNDS, max_crashes=2), dead=[poison])
        (task,) = await place.engine.get([poison])
    assert [attempt.outcome for attempt in judged.attempts[poison]] == ["crashed"] * 3
    assert all(attempt.error and "SIGKILL" in attempt.error.message for attempt in judged.attempts[poison])
    assert [attempt.outcome for attempt in judged.attempts[neighbour]] == ["crashed", "completed"]
    assert {judged.reads[other].executions for other in others} == {1}
    assert len(worker.children()) == 2
    error = getattr(task, "error", None)
    assert error is not None
    assert error.code == "poison"
