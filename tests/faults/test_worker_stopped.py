"""Workers that are told to stop while tasks flow: each ends well, and no attempt is spent on it."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from tests.faults.workers import Load, Place, Verdict, Worker, new, place_at, verdict


def nothing_wasted(judged: Verdict) -> None:
    """Every task took one attempt: what had begun came to its end, what had not gave its attempt back."""
    assert {(read.executions, read.crashes, read.failures) for read in judged.reads.values()} == {(1, 0, 0)}


async def stops(tmp_path: Path, n: int) -> None:
    random = Random(n)
    async with place_at(tmp_path) as place, place.worker() as first, AsyncExitStack() as stack:
        await first.joined()
        async with Load(place, seed=n):
            assert await first.stop() == 0
            for _ in range(n):
                worker = await stack.enter_async_context(place.worker())
                (child,) = await worker.joined()
                await place.effects.count(random.randrange(1, 30), "begin", pids=[child.pid])
                assert await worker.stop() == 0, worker.said()
            last = await stack.enter_async_context(place.worker())
        assert await last.stop() == 0
        nothing_wasted(await verdict(place))


async def test_stopped_under_load(tmp_path: Path) -> None:
    await stops(tmp_path, 3)


@pytest.mark.chaos
async def test_stopped_fifty_times_under_load(tmp_path: Path) -> None:
    await stops(tmp_path, 50)


async def rolling_restart(tmp_path: Path, rounds: int) -> None:
    async with place_at(tmp_path) as place, AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(place.worker()) for _ in range(3)]
        for worker in workers:
            await worker.joined()
        async with Load(place, ahead=100):
            for _ in range(rounds):
                workers = [await replaced(place, worker, stack) for worker in workers]
        for worker in workers:
            assert await worker.stop() == 0
        judged = await verdict(place)
    nothing_wasted(judged)
    assert len({line.parent for line in judged.effects.of("begin")} & {worker.pid for worker in workers}) == 3


async def replaced(place: Place, worker: Worker, stack: AsyncExitStack) -> Worker:
    """Stopped in the midst of its work; its successor has begun to work."""
    await place.effects.count(1, "begin", pids=[child.pid for child in worker.children()])
    assert await worker.stop() == 0, worker.said()
    successor = await stack.enter_async_context(place.worker())
    (child,) = await successor.joined()
    await place.effects.count(1, "begin", pids=[child.pid])
    return successor


async def test_a_rolling_restart(tmp_path: Path) -> None:
    await rolling_restart(tmp_path, 1)


@pytest.mark.chaos
async def test_many_rolling_restarts(tmp_path: Path) -> None:
    await rolling_restart(tmp_path, 6)


async def test_what_runs_ends_within_the_grace_period(tmp_path: Path) -> None:
    async with place_at(tmp_path) as place, place.worker() as worker:
        gate = place.gate("gate")
        await worker.joined()
        tasks = await place.submit(new("hold", gate=gate.path), new("hold_async", gate=gate.path))
        await place.effects.count(2, "begin", tasks=tasks)
        worker.signal(signal.SIGTERM)
        await worker.says("draining")
        gate.let(2)
        assert await worker.ended() == 0
        gate.close()
        nothing_wasted(await verdict(place))


@pytest.mark.parametrize(("how", "code"), [("grace", 0), ("twice", 1)])
async def test_what_does_not_end_is_handed_back(tmp_path: Path, how: str, code: int) -> None:
    """When the grace period is over, or at once when asked a second time: no failure, no crash, and others go on with it."""
    async with place_at(tmp_path) as place:
        gate = place.gate("gate")
        async with place.worker("--grace-period", "1s" if how == "grace" else "10m") as worker:
            await worker.joined()
            tasks = await place.submit(new("hold", gate=gate.path), new("hold_async", gate=gate.path), new("hold_alone", gate=gate.path))
            await place.effects.count(3, "begin", tasks=tasks)
            worker.signal(signal.SIGTERM)
            if how == "twice":
                await worker.says("draining")
                worker.signal(signal.SIGTERM)
            assert await worker.ended() == code
        async with place.worker() as other:
            await place.all_ended(tasks)
            assert await other.stop() == 0
        gate.close()
        judged = await verdict(place)
    for task in tasks:
        assert [attempt.outcome for attempt in judged.attempts[task]] == ["released", "completed"]
        assert (judged.reads[task].failures, judged.reads[task].crashes) == (0, 0)
