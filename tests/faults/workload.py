"""What fault tests let an engine do: tasks of every kind, and a worker that ends them in every way.

A task's payload says how its first attempt ends; later attempts complete it. Ids of follow-up tasks are derived from the task's own, so a second attempt
makes no second follow-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import cast

import msgspec

from taskmill import codec
from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Checkpoint, Claimed, Ending, Engine, Filter, Joining, Outcome, Room
from taskmill.engines import create
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.errors import Conflict
from taskmill.task import LIVE, Edge, ErrorInfo, NewTask, OnFailure, TypeSettings, Unique
from tests.faults.recorded import LosingAnswers, Recorded, until_answered
from tests.history import Recorder

__all__ = ["TYPES", "USERS", "Worker", "batch", "client_of", "prepare"]

USERS = ("ann", "ben", "eve")
TYPES = {
    "plain": TypeSettings(max_crashes=1_000),
    "capped": TypeSettings(limits=("few",), max_crashes=1_000),
    "personal": TypeSettings(limits=("each:{user}", "many"), max_crashes=1_000),
    "paced": TypeSettings(limits=("pace",), max_crashes=1_000),
    "lined": TypeSettings(ordered="{user}", max_crashes=1_000),
    "fair": TypeSettings(fair="{user}", max_crashes=1_000),
}
FIRST = ("complete", "complete", "complete", "retry", "snooze", "release", "crash", "dead", "then", "wait", "listen", "steps")
"""How first attempts end; completion most of all."""
SOON = 5 * MILLISECOND


@contextlib.asynccontextmanager
async def client_of(
    store: Path | str, history: Path, *, lease: int = 4 * SECOND, term: int = 4 * SECOND, lose: float = 0.0, seed: int = 0, vfs: str | None = None
) -> AsyncIterator[Recorded]:
    """An engine on the store (a file of SQLite, or a URL), opened, with all its calls written down. `lose`: the part of all answers that gets lost."""
    engine = _engine(store, lease, term, vfs)
    await engine.open()
    try:
        with Recorder(history) as recorder:
            yield Recorded(LosingAnswers(engine, lose, Random(seed)) if lose else engine, recorder)
    finally:
        await engine.close()


def _engine(store: Path | str, lease: int, term: int, vfs: str | None) -> Engine:
    if isinstance(store, Path):
        return cast("Engine", SQLiteEngine(store, lease=lease, term=term, vfs=vfs))
    return create(store, lease=lease, term=term)


async def prepare(client: Recorded) -> None:
    """Limits, types and an outbox subscription, before anybody works."""
    await client.put_limit("few", cap=2)
    await client.put_limit("each", cap=1, keys=USERS)
    await client.put_limit("many", cap=3)
    await client.put_limit("pace", rate=20, window=SECOND // 10)
    for name, settings in TYPES.items():
        await client.engine.put("type", name, msgspec.json.encode(settings))
    await client.engine.put("outbox", "ended", b"{}")


def batch(random: Random) -> list[NewTask]:
    """Some tasks of every kind: under caps, rates, order and shares, with keys, and one that waits for two of the others."""
    tasks = [_task(random, kind) for kind in TYPES]
    tasks += [_task(random, "plain", priority=random.randrange(4)), _task(random, "plain", delay=random.randrange(20) * MILLISECOND)]
    tasks.append(_task(random, "plain", unique=Unique(f"one-{random.randrange(5)}", random.choice(("started", "ended")), random.choice(("keep", "replace")))))
    key = random.randrange(10_000)
    tasks.append(NewTask(type="plain", payload=codec.encode({"do": "complete", "key": key}), idempotency_key=f"key-{key}"))
    tasks.append(NewTask(type="plain", payload=codec.encode({"do": "complete", "key": key}), idempotency_key=f"key-{key}"))
    first, second = random.sample([task.id for task in tasks[:6]], 2)
    edges = (Edge(first, random.choice(list(OnFailure)[:2])), Edge(second, OnFailure.IGNORE))
    tasks.append(_task(random, random.choice(("plain", "capped", "fair")), edges=edges))
    random.shuffle(tasks)
    return tasks


def _task(random: Random, kind: str, **fields: object) -> NewTask:
    payload = {"do": random.choice(FIRST), "user": random.choice(USERS)}
    return msgspec.structs.replace(NewTask(type=kind, payload=codec.encode(payload)), **fields)


def _follow_up(task: Claimed) -> tuple[NewTask, ...]:
    payload = codec.encode({"do": "complete", "user": USERS[0]})
    return tuple(NewTask(type=kind, payload=payload, id=str(uuid.uuid5(uuid.UUID(task.id), kind))) for kind in ("plain", "capped"))


class Worker:
    """Claims, handles, finishes and beats, as a worker process does; takes a new id when the store no longer knows the old one."""

    def __init__(self, client: Recorded, lease: int) -> None:
        self.client = client
        self.lease = lease
        self.held: dict[int, str] = {}
        self._names = (f"worker-{os.getpid()}-{n}" for n in itertools.count(1))
        self._released: set[str] = set()
        self._beating = asyncio.Lock()
        self._recovered_at = 0

    async def join(self) -> None:
        self.name = next(self._names)
        self.request = self.answered = 0
        self.held = {}
        joining = Joining(worker=self.name, queues=("default",), types=TYPES, lease=self.lease)
        self.beat_at = self.client.recorder.now()
        await until_answered(lambda: self.client.join(joining))

    async def beat(self) -> bool:
        """False: this worker is no longer registered."""
        async with self._beating:
            name, began = self.name, self.client.recorder.now()
            answered, held = self.answered, tuple(self.held)
            beat = await until_answered(lambda: self.client.heartbeat(name, answered, held))
            if name == self.name:
                self.beat_at = began
            return beat.known

    async def beat_on(self) -> None:
        """Four beats a lease, until cancelled."""
        while True:
            await asyncio.sleep(self.lease / 4 / SECOND)
            await self.beat()

    async def end_beats(self, beats: asyncio.Task[None]) -> None:
        """Between two of them: one that is cut off would look as if its answer had been lost."""
        async with self._beating:
            beats.cancel()

    async def turn(self, slots: int = 6) -> int:
        """One claim with all that follows from it; how many tasks it brought. A claim never lies further than a quarter lease behind a beat."""
        now = self.client.recorder.now()
        if now - self._recovered_at > self.lease / 8:
            self._recovered_at = now
            await until_answered(self.client.recover_lost)
        if self.client.recorder.now() - self.beat_at > self.lease / 4 and not await self.beat():
            await self.join()
        self.request += 1
        try:
            claim = await until_answered(lambda: self.client.claim(self.name, self.request, ("default",), Room(slots)))
        except Conflict as error:
            if error.code != "unknown_worker":
                raise
            await self.join()
            return 1
        self.held |= {task.token: task.id for task in claim.tasks}
        self.answered = self.request
        if claim.tasks:
            await self.handle(claim.tasks)
        return len(claim.tasks) + claim.more

    async def handle(self, tasks: tuple[Claimed, ...]) -> None:
        steps = [task for task in tasks if _do(task) == "steps"]
        if steps:
            entries = [Checkpoint(task=task.id, worker=task.worker, token=task.token, name="first", value=b"1") for task in steps]
            await until_answered(lambda: self.client.checkpoint(entries))
        outcomes = [self._outcome(task) for task in tasks]
        await until_answered(lambda: self.client.finish(outcomes))
        for task in tasks:
            self.held.pop(task.token, None)

    def _outcome(self, task: Claimed) -> Outcome:
        ending, do = Ending.COMPLETED, _do(task)
        fields: dict[str, object] = {"result": b'"done"', "started_after": 0}
        if do == "release" and task.id not in self._released:
            self._released.add(task.id)
            ending, fields = Ending.RELEASED, {}
        elif do == "then":
            fields["then"] = _follow_up(task)
        elif task.attempt == 1:
            ending, fields = _first_ending(do, task) or (ending, fields)
        return msgspec.structs.replace(Outcome(task=task.id, worker=task.worker, token=task.token, ending=ending), **fields)

    async def drain(self) -> None:
        """Until nothing lives any more."""
        while True:
            if not await self.turn():
                page = await until_answered(lambda: self.client.engine.list(Filter(states=LIVE), n=1))
                if not page.tasks:
                    return
                await asyncio.sleep(0.01)


def _do(task: Claimed) -> str:
    payload = codec.decode(task.payload)
    assert isinstance(payload, dict)
    return str(payload["do"])


def _first_ending(do: str, task: Claimed) -> tuple[Ending, dict[str, object]] | None:
    error = ErrorInfo("failed", "on purpose")
    match do:
        case "retry":
            return Ending.RETRY, {"after": SOON, "error": error, "started_after": 0}
        case "snooze":
            return Ending.SNOOZED, {"after": SOON, "started_after": 0}
        case "crash":
            return Ending.CRASHED, {"started_after": 0}
        case "dead":
            return Ending.DEAD, {"error": error, "started_after": 0}
        case "wait":
            return Ending.WAITING, {"then": _follow_up(task), "on_failure": "ignore", "started_after": 0}
        case "listen":
            return Ending.WAITING, {"signals": ("go",), "deadline": SOON, "started_after": 0}
    return None
