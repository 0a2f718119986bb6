"""Engines at work on several queues of a Cluster in one process: tasks that wait for tasks of other queues, and tasks that are followed by some, all
completed by whoever claims them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from taskmill.clock import SECOND
from taskmill.engine import Checkpoint, Claimed, Ending, Filter, Joining, Outcome, Room
from taskmill.errors import Conflict, StoreError
from taskmill.task import LIVE, Edge, NewTask, State, TypeSettings
from tests.faults.effects import until
from tests.faults.processes import GENEROUS
from tests.faults.recorded import Recorded, until_answered
from tests.faults.workload import client_of

__all__ = ["LEASE", "QUEUES", "Flow", "flowing"]

QUEUES = ("left", "right")
LEASE = 2 * SECOND
TYPES = {"step": TypeSettings(max_crashes=1_000)}
SLOTS = 6


def some(n: int) -> list[NewTask]:
    """One of each queue, one that waits for both of them and says nothing of where it is, and one that waits for that."""
    left, right = (NewTask(type="step", queue=queue) for queue in QUEUES)
    both = NewTask(type="step", queue=QUEUES[n % 2], edges=(Edge(left.id), Edge(right.id)))
    return [left, right, both, NewTask(type="step", queue=QUEUES[(n + 1) % 2], edges=(Edge(both.id),))]


class Hand:
    """One engine: it submits, claims, makes checkpoints, finishes and beats until told to stop."""

    def __init__(self, flow: Flow, client: Recorded, number: int) -> None:
        self.flow = flow
        self.client = client
        self.completed = self.taken = 0
        self._names = (f"hand-{number}-{n}" for n in itertools.count(1))
        self._batches = itertools.count()

    async def join(self) -> None:
        self.name = next(self._names)
        self.request, self.beaten = 0, self.client.recorder.now()
        await until_answered(lambda: self.client.join(Joining(worker=self.name, queues=QUEUES, types=TYPES, lease=LEASE)))

    async def run(self) -> None:
        while not self.flow.over.is_set():
            await self.turn()

    async def turn(self) -> int:
        """How many tasks it brought to their end."""
        if self.client.recorder.now() - self.beaten > LEASE // 8:
            self.beaten = self.client.recorder.now()
            await until_answered(self.client.recover_lost)
            if not (await until_answered(lambda: self.client.heartbeat(self.name, self.request, ()))).known:
                await self.join()
        if not self.flow.over.is_set() and self.taken < SLOTS:
            await self.submit()
        try:
            self.request += 1
            claim = await until_answered(lambda: self.client.claim(self.name, self.request, QUEUES, Room(SLOTS)))
        except Conflict as error:
            assert error.code == "unknown_worker"
            await self.join()
            return 1
        self.taken = len(claim.tasks)
        if claim.tasks:
            await self.complete(claim.tasks)
        else:
            await asyncio.sleep(0.005)
        return self.taken

    async def submit(self) -> None:
        tasks = some(next(self._batches))
        self.flow.asked |= {task.id for task in tasks}
        answers = await until_answered(lambda: self.client.submit(tasks))
        self.flow.accepted |= {answer.id for answer in answers if answer.error is None}

    async def complete(self, tasks: Sequence[Claimed]) -> None:
        entries = [Checkpoint(task=task.id, worker=task.worker, token=task.token, name="first", value=b"1") for task in tasks[:2]]
        await until_answered(lambda: self.client.checkpoint(entries))
        outcomes = [Outcome(task=task.id, worker=task.worker, token=task.token, ending=Ending.COMPLETED, started_after=0) for task in tasks]
        found = await until_answered(lambda: self.client.finish(outcomes))
        self.completed += len(tasks) - len(found.refused)
        self.flow.refused += [refusal.code for refusal in found.refused]


class Flow:
    """All of them, and what they were told."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.asked: set[str] = set()
        self.accepted: set[str] = set()
        self.refused: list[str] = []
        self.hands: list[Hand] = []

    async def goes_on(self, n: int = 5) -> None:
        """Every one of them completes so many more."""
        before = [hand.completed for hand in self.hands]
        for hand, was in zip(self.hands, before, strict=True):
            await until(lambda hand=hand, was=was: True if hand.completed >= was + n else None, "somebody who goes on", GENEROUS)  # type: ignore[misc]

    async def drain(self, *, whole: bool) -> None:
        """Until nothing lives any more; or, where something may have been lost for which others wait, until nothing else lives."""
        left = Filter(states=LIVE if whole else LIVE - {State.WAITING})
        async with asyncio.timeout(GENEROUS):
            while True:
                found = await asyncio.gather(*(hand.turn() for hand in self.hands))
                if not any(found) and not (await until_answered(lambda: self.hands[0].client.engine.list(left, n=1))).tasks:
                    return


@contextlib.asynccontextmanager
async def flowing(url: str, history: Path, n: int = 3, *, drained: bool = True) -> AsyncIterator[Flow]:
    """In the end all of it is done. An engine that fails ends the test."""
    flow = Flow()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(n):
            flow.hands.append(Hand(flow, await stack.enter_async_context(client_of(url, history, lease=LEASE)), number))
            await flow.hands[-1].join()
        async with asyncio.TaskGroup() as group:
            for hand in flow.hands:
                group.create_task(hand.run())
            yield flow
            flow.over.set()
        await flow.drain(whole=drained)
        for hand in flow.hands:
            with contextlib.suppress(StoreError):
                await hand.client.leave(hand.name)
