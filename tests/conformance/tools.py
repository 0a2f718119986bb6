"""What the conformance tests share: a store with several engines, a worker that numbers its requests, and short ways to ask."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from taskmill import codec
from taskmill.clock import SECOND, Clock, ManualClock
from taskmill.engine import Beat, Checkpoint, Claimed, Ending, Engine, Filter, Finished, Joining, Outcome, Room, Status, Submitted, Transaction
from taskmill.engines import create
from taskmill.errors import TaskmillError
from taskmill.task import Attempt, ErrorInfo, NewTask, State, Task, TypeSettings

TYPE = "work"
QUEUE = "default"
LEASE = 4 * SECOND

ASKED_ONCE = frozenset({"open", "close", "wakeups", "events"})
ASKED_AGAIN = frozenset(name for name, verb in vars(Engine).items() if inspect.iscoroutinefunction(verb)) - ASKED_ONCE


class LostAnswers:
    """An engine whose first answers never arrive: each verb is performed, and performed again with the same arguments."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        return again(value) if name in ASKED_AGAIN else value


def again(verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A refusal is an answer too, so it is lost like any other."""

    async def asked_twice(*args: Any, **named: Any) -> Any:
        given = [list(arg) if isinstance(arg, Iterator) else arg for arg in args]
        with suppress(TaskmillError):
            await verb(*given, **named)
        return await verb(*given, **named)

    return asked_twice


class Store:
    """One store and all engines that were opened on it."""

    def __init__(self, url: str, clock: Clock, *, lost: bool) -> None:
        self.url = url
        self.clock = clock
        self.lost = lost
        self._engines: list[Engine] = []

    async def engine(self) -> Engine:
        engine = create(self.url, clock=self.clock)
        await engine.open()
        self._engines.append(engine)
        return cast("Engine", LostAnswers(engine)) if self.lost else engine

    async def engines(self, number: int) -> list[Engine]:
        return [await self.engine() for _ in range(number)]

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()


def needs(engine: Engine, feature: str) -> None:
    """The only reason to skip: the engine says that it cannot."""
    if not getattr(engine.features, feature):
        pytest.skip(f"{engine.features.name} has not {feature}")


def encode(value: object) -> bytes:
    return codec.encode(value)


def new(payload: object = None, **fields: Any) -> NewTask:
    """A task of type `work` in the queue `default`, unless told otherwise; it needs no worker that has joined. Bytes are a payload as they are."""
    return NewTask(**{"type": TYPE, "queue": QUEUE, "payload": payload if isinstance(payload, bytes) else encode(payload), **fields})


def accepted(answer: Submitted) -> str:
    """The id of a task that was stored, now or by the submit whose answer was lost."""
    assert answer.status in {Status.CREATED, Status.DUPLICATE}, answer
    assert answer.error is None
    return answer.id


def refusal(answer: Submitted) -> str:
    """The code of a task that was not stored."""
    assert answer.status is Status.REFUSED, answer
    assert answer.error is not None
    assert answer.error.message
    return answer.error.code


async def submit(engine: Engine, *tasks: NewTask, tx: Transaction | None = None) -> list[str]:
    """Submit them all in one step; their ids in the same order."""
    answers = await engine.submit(tasks, tx=tx)
    ids = [accepted(answer) for answer in answers]
    assert ids == [task.id for task in tasks]
    return ids


async def submit_one(engine: Engine, payload: object = None, **fields: Any) -> str:
    [id] = await submit(engine, new(payload, **fields))
    return id


async def submit_many(engine: Engine, number: int, **fields: Any) -> list[str]:
    return await submit(engine, *(new(n, **fields) for n in range(number)))


async def record(engine: Engine, id: str) -> Task:
    """The whole record of a task that exists."""
    [task] = await engine.get([id])
    assert isinstance(task, Task), task
    return task


async def state(engine: Engine, id: str) -> State:
    return (await record(engine, id)).state


async def states(engine: Engine, ids: Sequence[str]) -> list[State]:
    tasks = await engine.get(ids)
    assert all(isinstance(task, Task) for task in tasks)
    return [task.state for task in tasks if isinstance(task, Task)]


async def all_tasks(engine: Engine, which: Filter | None = None) -> list[Task]:
    """Every task of the store, over all pages."""
    return [task async for task in _pages(engine, which or Filter())]


async def _pages(engine: Engine, which: Filter) -> AsyncIterator[Task]:
    cursor = None
    while True:
        page = await engine.list(which, after=cursor, n=500)
        for task in page.tasks:
            yield task
        if page.cursor is None:
            return
        cursor = page.cursor


async def last_attempt(engine: Engine, id: str) -> Attempt:
    return (await engine.attempts(id))[-1]


async def execute(tx: Transaction, statement: str) -> list[Any]:
    """A statement of the user's own; some drivers answer at once, some want to be awaited."""
    rows = tx.execute(statement)
    if inspect.isawaitable(rows):
        rows = await rows
    return list(rows or ())


def ids_of(claimed: Iterable[Claimed]) -> list[str]:
    return [task.id for task in claimed]


class Worker:
    """A worker as the product has them: joined, its requests numbered, and knowing what it holds."""

    _made = 0

    def __init__(self, engine: Engine, *, id: str | None = None, queues: Sequence[str] = (QUEUE,)) -> None:
        Worker._made += 1
        self.engine = engine
        self.id = id or f"worker-{Worker._made}"
        self.queues = tuple(queues)
        self.request = 0
        self.held: dict[int, Claimed] = {}

    async def join(self, *types: str, lease: int = LEASE, **fields: Any) -> Worker:
        """Register; types without settings of their own get the defaults."""
        settings = fields.pop("settings", {name: TypeSettings() for name in types or (TYPE,)})
        await self.engine.join(Joining(worker=self.id, queues=self.queues, types=settings, lease=lease, **fields))
        return self

    async def claim(self, slots: int = 1, *, queues: Sequence[str] | None = None, **room: Any) -> list[Claimed]:
        """Ask under a new request number."""
        self.request += 1
        return await self.claim_again(slots, queues=queues, **room)

    async def claim_again(self, slots: int = 1, *, queues: Sequence[str] | None = None, **room: Any) -> list[Claimed]:
        """Ask under the last request number."""
        answer = await self.engine.claim(self.id, self.request, queues or self.queues, Room(slots, **room))
        self.held |= {task.token: task for task in answer.tasks}
        return list(answer.tasks)

    async def claim_one(self) -> Claimed:
        [task] = await self.claim(1)
        return task

    async def claim_all(self, **room: Any) -> list[Claimed]:
        """Claim until nothing more comes."""
        taken: list[Claimed] = []
        while batch := await self.claim(100, **room):
            taken += batch
        return taken

    async def finish(self, *claimed: Claimed, ending: Ending = Ending.COMPLETED, **fields: Any) -> Finished:
        """End them under their leases, whatever the store will say to it."""
        outcomes = [outcome(task, ending, **fields) for task in claimed]
        answer = await self.engine.finish(outcomes)
        for task in claimed:
            self.held.pop(task.token, None)
        return answer

    async def done(self, *claimed: Claimed, ending: Ending = Ending.COMPLETED, **fields: Any) -> None:
        """End them; the store must take it."""
        assert (await self.finish(*claimed, ending=ending, **fields)).refused == ()

    async def beat(self) -> Beat:
        """Live, and hold what it holds."""
        return await self.engine.heartbeat(self.id, self.request, list(self.held))


async def worker(engine: Engine, *types: str, queues: Sequence[str] = (QUEUE,), **fields: Any) -> Worker:
    """A worker that has joined."""
    return await Worker(engine, queues=queues).join(*types, **fields)


def outcome(task: Claimed, ending: Ending = Ending.COMPLETED, **fields: Any) -> Outcome:
    """The end of this attempt, started at once unless told otherwise; endings in an error have one."""
    given = {"task": task.id, "worker": task.worker, "token": task.token, "ending": ending, "started_after": 0, **fields}
    if ending in {Ending.RETRY, Ending.DEAD} and "error" not in given:
        given["error"] = ErrorInfo("oops", "it did not work")
    return Outcome(**given)


def step(task: Claimed, name: str | None = None, value: object = None, **fields: Any) -> Checkpoint:
    """A checkpoint of a running task."""
    return Checkpoint(**{"task": task.id, "worker": task.worker, "token": task.token, "name": name, "value": encode(value), **fields})


async def pass_time(engine: Engine, clock: ManualClock, seconds: int, *alive: Worker) -> None:
    """Time as it goes by while the store is well: every second the living beat and somebody looks for the lost."""
    await engine.recover_lost()
    for _ in range(seconds):
        clock.advance(1)
        for each in alive:
            await each.beat()
        await engine.recover_lost()


async def lose(engine: Engine, clock: ManualClock, *alive: Worker) -> None:
    """Every worker but the living ones is found dead."""
    await pass_time(engine, clock, 6, *alive)
