"""Workers that stand still for a while: who comes back too late has empty hands and begins anew, and nobody else waits for him."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from taskmill.clock import SECOND
from taskmill.worker.offspring import DEAF
from tests.faults.workers import Place, Worker, new, passed, place_at, verdict
from tests.history import events

HELD = ("hold", "hold", "hold_async")


async def held(place: Place, worker: Worker, gate: str) -> list[str]:
    """Tasks that have begun in this worker and wait at the gate."""
    await worker.joined()
    tasks = await place.submit(*(new(kind, gate=gate) for kind in HELD))
    await place.effects.count(len(HELD), "begin", tasks=tasks)
    return tasks


@pytest.mark.parametrize("who", ["both", "supervisor"])
async def test_paused_past_the_lease(tmp_path: Path, who: str) -> None:
    """Without its supervisor's beats a child that goes on has lost its leases as well as one that stands still."""
    async with place_at(tmp_path) as place, place.worker() as paused:
        gate = place.gate("gate")
        tasks = await held(place, paused, gate.path)
        (child,) = paused.children()
        paused.signal(signal.SIGSTOP)
        if who == "both":
            os.kill(child.pid, signal.SIGSTOP)
        async with place.worker() as other:
            (elsewhere,) = await other.joined()
            await place.all_ended(tasks)
            gate.let(len(HELD))
            for pid in (child.pid, paused.pid):
                os.kill(pid, signal.SIGCONT)
            (_, successor) = await paused.joined(2)
            assert await other.stop() == 0
        after = await place.submit(*(new("work", ms=1) for _ in range(5)))
        await place.all_ended(after)
        assert await paused.stop() == 0
        gate.close()
        judged = await verdict(place)
    assert {finish.task for finish in judged.answers("stale")} == set(tasks)
    for task in tasks:
        assert [(attempt.outcome, attempt.worker) for attempt in judged.attempts[task]] == [("crashed", child.worker), ("completed", elsewhere.worker)]
    assert {line.pid for line in judged.effects.of("begin", tasks=after)} == {successor.pid}


async def test_a_child_that_stands_still(tmp_path: Path) -> None:
    """What it had not begun goes to others; what it had begun is still its own, since its supervisor beats on, and completes when it goes on."""
    async with place_at(tmp_path) as place, place.worker("--concurrency", 1) as worker:
        (child,) = await worker.joined()
        before, after = ([new("work", ms=0) for _ in range(200)] for _ in range(2))
        frozen = new("freeze")
        tasks = await place.submit(*before, frozen, *after)
        await place.effects.count(1, "begin", tasks=[frozen.id])
        async with place.worker() as other:
            await place.all_ended(task for task in tasks if task != frozen.id)
            assert (await place.engine.wait([frozen.id], 0)) == {}
            os.kill(child.pid, signal.SIGCONT)
            await place.all_ended([frozen.id])
            assert await other.stop() == 0
        assert await worker.stop() == 0
        judged = await verdict(place)
    assert [(attempt.outcome, attempt.worker) for attempt in judged.attempts[frozen.id]] == [("completed", child.worker)]
    in_hand = claimed(judged.history, child.worker) - {line.task for line in judged.effects.of("begin", pids=[child.pid])}
    assert in_hand
    assert {(judged.reads[task].executions, judged.reads[task].crashes) for task in tasks} == {(1, 0)}
    assert worker.children() == [child]


def claimed(history: list[events.Event], worker: str) -> set[str]:
    return {given.task for event in history if isinstance(event, events.Claim) and event.worker == worker for given in event.given}


@pytest.mark.parametrize("how", ["stopped", "blocked"])
async def test_a_child_that_is_deaf_keeps_what_it_has_begun(tmp_path: Path, how: str) -> None:
    """For longer than a lease, and so long that its supervisor gives away the rest: stopped from outside, or by a handler that keeps the loop to itself."""
    async with place_at(tmp_path) as place, place.worker() as worker:
        gate = place.gate("gate")
        tasks = await held(place, worker, gate.path)
        (child,) = worker.children()
        if how == "blocked":
            tasks += await place.submit(new("block", gate=gate.path))
            await place.effects.count(len(tasks), "begin", tasks=tasks)
        else:
            os.kill(child.pid, signal.SIGSTOP)
        await passed(place, DEAF + 3 * SECOND // 2)
        os.kill(child.pid, signal.SIGCONT)
        gate.close()
        await place.all_ended(tasks)
        assert await worker.stop() == 0
        judged = await verdict(place)
    assert {(judged.reads[task].executions, judged.reads[task].crashes) for task in tasks} == {(1, 0)}
    assert worker.children() == [child]
