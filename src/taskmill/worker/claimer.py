"""Asks the store for work: as much as there are free slots, and a little ahead.

How far ahead is measured: as many tasks as this process ran in the last 50 ms. So a store's round trip is hidden where tasks are short,
and where they are long nothing waits here that others could run. The next claim is sent when half of that is used up.

With nothing to do it sleeps until the store's own `next_at`, or a hint that there may be work, or the next poll; polls are jittered so
that workers that started together do not ask together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Claim, Engine, Room
from taskmill.errors import StoreError
from taskmill.worker.board import Board
from taskmill.worker.executor import Executor

__all__ = ["Claimer"]

log = logging.getLogger("taskmill")

AHEAD = 50 * MILLISECOND
MOST_AHEAD = 2_000
POLL = SECOND
"""At the latest after this long it looks: nobody announces what a user's transaction has brought."""
LONGEST_PAUSE = 1.0


class Claimer:
    """The way of tasks into one process; `types` are those of which it runs only so many at once."""

    def __init__(self, engine: Engine, worker: str, queues: Sequence[str], board: Board, executor: Executor, types: Mapping[str, int]) -> None:
        self._engine = engine
        self._worker = worker
        self._queues = queues
        self._board = board
        self._executor = executor
        self._types = types
        self._request = 0
        self._prefetch = 0
        self._measured = (engine.clock.monotonic(), 0)
        self._room = asyncio.Event()
        self._hint = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._stopped = False

    def make_room(self) -> None:
        """The executor's word whenever it looked for work: is it time for the next claim?"""
        if not self._room.is_set() and self._enough():
            self._room.set()

    def _enough(self) -> bool:
        executor = self._executor
        waiting = executor.waiting
        spare = executor.free > waiting or self._prefetch > 0
        return spare and waiting <= self._prefetch // 2 and not executor.crowded and self._board.free > self._prefetch

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()
        self._hint.set()

    def stop(self) -> None:
        """No claim is sent again; tasks of one under way go back."""
        self._stopped = True

    async def run(self) -> None:
        """Until cancelled. A claim under way is always waited for: its tasks are ours."""
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen())
            try:
                while True:
                    await self._open.wait()
                    await self._wait_for_room()
                    if self._open.is_set():
                        await self._claim_once()
            finally:
                listening.cancel()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        if not self._enough():
            await self._room.wait()

    async def _claim_once(self) -> None:
        self._hint.clear()
        self._request += 1
        room = self._measure()
        claim = await _whole(self._claim(room))
        if claim.tasks:
            return
        self._prefetch = 0
        if room.slots:  # without a slot there is nothing to wait for but one
            await self._sleep(claim)

    async def _claim(self, room: Room) -> Claim:
        """Asked again under the same number until it is answered, so no task is taken twice or forgotten."""
        pause = 0.02
        while True:
            try:
                claim = await self._engine.claim(self._worker, self._request, self._queues, room)
            except StoreError as error:
                if self._stopped:
                    return Claim(())
                log.warning("the store gives no tasks, trying again: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._board.hold(claim.tasks, self._request)
            self._executor.offer(claim.tasks)
            if self._stopped:
                self._executor.release_waiting()
            return claim

    def _measure(self) -> Room:
        """The room there is, and how much the process got through lately."""
        executor = self._executor
        before, ran = self._measured
        now = self._engine.clock.monotonic()
        if now - before >= AHEAD // 10:
            self._prefetch = min(MOST_AHEAD, (executor.ran - ran) * AHEAD // (now - before))
            self._measured = (now, executor.ran)
        waiting = executor.waiting
        prefetch = min(self._prefetch, self._board.free - executor.concurrency)
        return Room(max(0, min(executor.free - waiting, self._board.free)), self._left(), max(0, prefetch - max(0, waiting - executor.free)))

    def _left(self) -> Mapping[str, int]:
        """How many more of the types that are bounded here."""
        if not self._types:
            return self._types
        held = Counter(running.claimed.type for running in self._executor.held.values())
        return {name: max(0, most - held[name]) for name, most in self._types.items()}

    async def _sleep(self, claim: Claim) -> None:
        """Until there may be work."""
        if claim.more:
            await asyncio.sleep(random.uniform(0.001, 0.01))
            return
        wait = POLL * random.uniform(0.85, 0.98)
        if claim.next_at is not None:
            wait = min(wait, max(0, claim.next_at - self._engine.clock.now()))
        with contextlib.suppress(TimeoutError):
            # Not wait_for: in Python 3.11 it forgets a cancel that comes together with the hint, and a drain would wait for ever.
            async with asyncio.timeout(wait / SECOND):
                await self._hint.wait()

    async def _listen(self) -> None:
        """Hints, for as long as the store gives any; without them the polls remain."""
        while True:
            try:
                async with contextlib.aclosing(await self._engine.wakeups()) as hints:
                    async for _ in hints:
                        self._hint.set()
            except StoreError as error:
                log.debug("no hints from the store: %s", error)
            await asyncio.sleep(random.uniform(0.5, 1.5))


async def _whole(claiming: Coroutine[Any, Any, Claim]) -> Claim:
    """Wait for it to its end, also when told to stop meanwhile."""
    task = asyncio.create_task(claiming)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
