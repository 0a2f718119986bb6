"""Tasks that took their process down, or had to be killed with it: they run alone from then on, whichever worker has them, and no storm follows."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from taskmill.task import Task
from tests.faults.effects import Line
from tests.faults.workers import BOUNDS, NEVER, Place, Worker, new, place_at, verdict

CROWD = 60


def most_at_once(lines: list[Line]) -> int:
    """The most attempts, among these begins and ends, that were under way at one time."""
    under_way, most = 0, 0
    for line in sorted(lines, key=lambda line: line.at):
        under_way += 1 if line.what == "begin" else -1
        most = max(most, under_way)
    return most


def runners(worker: Worker, place: Place) -> set[int]:
    """Processes of its isolated tasks and suspects."""
    return {line.pid for line in place.effects.of("process")} & worker.family() - {child.pid for child in worker.children()}


async def test_no_storm_of_processes_after_a_crash(tmp_path: Path) -> None:
    """Sixty tasks are in flight and their process is killed: the sixty go through few processes, and other work goes on beside them."""
    async with place_at(tmp_path, NEVER) as place, place.worker("--concurrency", "100") as worker:
        gate = place.gate("gate")
        (child,) = await worker.joined()
        crowd = await place.submit(*(new("meet", gate=gate.path) for _ in range(CROWD)))
        await place.effects.count(CROWD, "begin", tasks=crowd)
        os.kill(child.pid, signal.SIGKILL)
        place.note_death([child.worker])
        beside = await place.submit(*(new("work", ms=1) for _ in range(40)))
        await place.all_ended([*beside, *crowd])
        gate.close()
        assert await worker.stop() == 0
        judged = await verdict(place)
    assert {tuple(attempt.outcome for attempt in judged.attempts[task]) for task in crowd} == {("crashed", "completed")}
    assert {(judged.reads[task].executions, judged.reads[task].crashes) for task in beside} == {(1, 0)}
    assert judged.answers("stale") == []
    alone = runners(worker, place)
    again = [line for line in judged.effects.lines() if line.what in ("begin", "end") and line.attempt == 2 and line.task in crowd]
    assert {line.pid for line in again} <= alone
    assert most_at_once(again) <= (os.cpu_count() or 1)
    assert len(alone) <= (os.cpu_count() or 1)
    assert "is blocked" not in worker.said()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest) -> str | None:
    """None: a file of SQLite in the test's own folder."""
    return None if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")


async def test_what_one_supervisor_suspects_another_one_runs_alone(tmp_path: Path, store: str | None) -> None:
    """It takes its process down under one supervisor, which is told to end meanwhile. Beside its later attempts others run, and do not notice them."""
    async with place_at(tmp_path, NEVER, url=store) as place:
        gate, later = place.gate("gate"), place.gate("later")
        async with place.worker() as first:
            await first.joined()
            (killer,) = await place.submit(new("fatal", gate=gate.path))
            await place.effects.count(1, "begin", tasks=[killer])
            first.signal(signal.SIGTERM)
            await first.says("draining")
            gate.let(1)
            assert await first.ended() == 0
        assert [task.suspect for task in await place.engine.get([killer]) if isinstance(task, Task)] == [True]
        await place.engine.put("pause", "type:fatal", b"{}")
        async with place.worker() as second:
            (child,) = await second.joined()
            bystanders = await place.submit(*(new("hold", gate=later.path) for _ in range(8)))
            await place.effects.count(8, "begin", tasks=bystanders)
            await place.engine.drop("pause", "type:fatal")
            await place.all_ended([killer])
            later.let(8)
            await place.all_ended(bystanders)
            assert second.children() == [child]
            assert await second.stop() == 0
        gate.close()
        later.close()
        judged = await verdict(place, replace(BOUNDS, max_crashes=2), dead=[killer])
    assert [attempt.outcome for attempt in judged.attempts[killer]] == ["crashed"] * 3
    assert {(judged.reads[task].executions, judged.reads[task].crashes) for task in bystanders} == {(1, 0)}


async def test_a_plain_function_that_was_killed_for_its_timeout_runs_alone(tmp_path: Path, store: str | None) -> None:
    async with place_at(tmp_path, {**NEVER, "TASKMILL_KILL_AFTER": "1s"}, url=store) as place, place.worker() as worker:
        gate = place.gate("gate")
        (child,) = await worker.joined()
        tasks = await place.submit(new("deaf", gate=gate.path))
        await place.all_ended(tasks)
        gate.close()
        assert await worker.stop() == 0
        judged = await verdict(place)
        (task,) = await place.engine.get(tasks)
    first, second = judged.effects.of("begin", tasks=tasks)
    assert first.pid == child.pid
    assert second.pid in runners(worker, place)
    assert [attempt.outcome for attempt in judged.attempts[tasks[0]]] == ["failed", "completed"]
    assert isinstance(task, Task)
    assert not task.suspect  # it has completed
