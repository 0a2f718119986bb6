"""Everything at once: workers are killed, paused, stopped and locked out as chance wants it, while tasks flow; in the end all is as promised."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from taskmill.clock import MILLISECOND, SECOND
from tests.faults.workers import Load, Place, Worker, gone, locked, passed, place_at, verdict


class Mischief:
    """Three workers, and what can be done to them."""

    def __init__(self, place: Place, random: Random, stack: AsyncExitStack) -> None:
        self._place = place
        self._random = random
        self._stack = stack
        self.workers: list[Worker] = []
        self.done: Counter[str] = Counter()

    async def begin(self) -> None:
        self.workers = [await self._new() for _ in range(3)]

    async def _new(self) -> Worker:
        worker = await self._stack.enter_async_context(self._place.worker())
        await worker.joined()
        return worker

    async def step(self) -> None:
        deeds: tuple[tuple[int, Callable[[int], Awaitable[None]]], ...] = (
            (3, self._kill), (4, self._kill_child), (2, self._kill_runner), (3, self._stop), (1, self._pause), (2, self._pause_child), (1, self._lock),
        )  # fmt: skip
        deed = self._random.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]
        self.done[deed.__name__] += 1
        await deed(self._random.randrange(3))
        await passed(self._place, self._random.randrange(300) * MILLISECOND)

    async def _kill(self, n: int) -> None:
        self.workers[n].signal(signal.SIGKILL)
        await self.workers[n].ended()
        self.workers[n] = await self._new()

    async def _kill_child(self, n: int) -> None:
        _signal(self.workers[n].children()[-1].pid, signal.SIGKILL)

    async def _kill_runner(self, n: int) -> None:
        worker = self.workers[n]
        for pid in worker.family() - {child.pid for child in worker.children()}:
            _signal(pid, signal.SIGKILL)

    async def _stop(self, n: int) -> None:
        assert await self.workers[n].stop() == 0, self.workers[n].said()
        self.workers[n] = await self._new()

    async def _pause(self, n: int) -> None:
        """Past the lease."""
        pids = (self.workers[n].pid, self.workers[n].children()[-1].pid)
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        await passed(self._place, 3 * SECOND)
        for pid in pids:
            _signal(pid, signal.SIGCONT)

    async def _pause_child(self, n: int) -> None:
        pid = self.workers[n].children()[-1].pid
        _signal(pid, signal.SIGSTOP)
        await passed(self._place, self._random.randrange(4_000) * MILLISECOND)
        _signal(pid, signal.SIGCONT)

    async def _lock(self, _: int) -> None:
        assert isinstance(self._place.store, Path)
        async with locked(self._place.store):
            await passed(self._place, 3 * SECOND)


def _signal(pid: int, number: int) -> None:
    if not gone(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def mischief(tmp_path: Path, steps: int, seed: int) -> str:
    async with place_at(tmp_path) as place, AsyncExitStack() as stack:
        doer = Mischief(place, Random(seed), stack)
        await doer.begin()
        async with Load(place, seed=seed, ahead=80):
            for _ in range(steps):
                await doer.step()
        codes = [await worker.stop() for worker in doer.workers]
        assert codes == [0, 0, 0]
        judged = await verdict(place)
    outcomes = Counter(attempt.outcome for attempts in judged.attempts.values() for attempt in attempts)
    assert set(outcomes) <= {"completed", "crashed", "released"}
    return f"{len(judged.reads)} tasks; {dict(doer.done)}; attempts {dict(outcomes)}"


async def test_mischief(tmp_path: Path) -> None:
    await mischief(tmp_path, 3, 7)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
async def test_much_mischief(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    told = await mischief(tmp_path, 40, seed)
    with capsys.disabled():
        print(f"\n{told}")
