"""Real `taskmill worker` programs on a real store, tasks that flow while they are killed, and the verdict in the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self, cast

import apsw
import msgspec

from taskmill import codec
from taskmill.clock import SECOND, Clock
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import Attempt, NewTask
from tests.faults import stepped
from tests.faults.effects import PATIENCE, Effects, Line, until
from tests.faults.judging import judge
from tests.faults.observed import FOLDER
from tests.faults.processes import ROOT
from tests.faults.recorded import Recorded, until_answered
from tests.history import Bounds, Recorder, events
from tests.history.events import Event

__all__ = ["BOUNDS", "BRISK", "NEVER", "Gate", "Load", "Place", "Verdict", "Worker", "gone", "locked", "new", "passed", "place_at", "verdict"]

BOUNDS = Bounds(lease=0, max_crashes=1_000)
"""What supervisors do is not in the history: a lease may end unseen."""
BRISK = {"TASKMILL_LEASE": "2s", "TASKMILL_BEAT": "400ms", "TASKMILL_RECOVERY_INTERVAL": "200ms"}
"""For faults that are not about how long a lease is."""
NEVER = {"TASKMILL_LEASE": "10m", "TASKMILL_REMOTE_LEASE": "10m"}
"""No lease ends by itself while a test runs."""


def new(type: str, *, delay: int | None = None, run_at: int | None = None, **arguments: object) -> NewTask:
    return NewTask(type=type, payload=codec.encode(arguments), delay=delay, run_at=run_at)


class Gate:
    """Where handlers wait until the test lets one through. It is open on our side all the time, so nobody waits in vain for a second reader."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._file = os.open(path, os.O_RDWR)

    def let(self, n: int = 1) -> None:
        os.write(self._file, b"." * n)

    def close(self) -> None:
        """Everybody may pass."""
        os.close(self._file)


class Worker:
    """One `taskmill worker`: the supervisor is the process we started."""

    def __init__(self, process: Process, log: Path, effects: Effects) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log
        self._effects = effects

    async def joined(self, n: int = 1) -> list[Line]:
        """The lines of its children, when so many have joined; the newest is the last."""

        def look() -> list[Line] | None:
            assert self.process.returncode is None or self.children(), f"it did not start: {self.said()}"
            return found if len(found := self.children()) >= n else None

        return await until(look, f"{n} children of {self.pid} that joined")

    def children(self) -> list[Line]:
        return [line for line in self._effects.of("joined") if line.parent == self.pid]

    def family(self) -> set[int]:
        """All processes that it, its children and theirs ever started and that got as far as saying so."""
        found = {self.pid}
        for line in self._effects.of("process"):
            if line.parent in found:
                found.add(line.pid)
        return found - {self.pid}

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    async def says(self, text: str) -> None:
        await until(lambda: True if text in self.said() else None, f"{text!r} in what it says")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()


class Place:
    """A store, the history of all who use it, and what handlers wrote."""

    def __init__(self, folder: Path, store: Path | str, client: Recorded, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.store = store
        self.history = folder / "history"
        self.client = client
        self.engine: Engine = client.engine
        self.effects = Effects(folder / "effects")
        self._env = env
        self._started = 0

    @contextlib.asynccontextmanager
    async def worker(self, *options: object, env: Mapping[str, str] | None = None, module: str = "taskmill") -> AsyncIterator[Worker]:
        """A worker that does not outlive the test; its children go with it."""
        self._started += 1
        log = self.folder / f"worker-{self._started}.log"
        command = [sys.executable, "-m", module, "worker", "tests.faults.handlers:app", *map(str, options)]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env={**os.environ, **self._env, **(env or {})}, stdout=output, stderr=STDOUT)
        worker = Worker(process, log, self.effects)
        try:
            yield worker
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def gate(self, name: str) -> Gate:
        return Gate(self.folder / name)

    async def submit(self, *tasks: NewTask) -> list[str]:
        """Each by its own id, also where the store was asked again."""
        answers = await until_answered(lambda: self.client.submit(tasks))
        assert [answer.id for answer in answers] == [task.id for task in tasks]
        return [answer.id for answer in answers]

    async def all_ended(self, tasks: Iterable[str]) -> None:
        """Wait until the store says so of each."""
        waiting = list(tasks)
        async with asyncio.timeout(PATIENCE):
            while waiting:
                ended = await self.engine.wait(waiting[:500], SECOND)
                waiting = [task for task in waiting if task not in ended]

    def note_death(self, workers: Iterable[str]) -> int:
        """These are dead now, by the tester's hand; when."""
        for worker in workers:
            self.client.recorder.note(events.Died(worker=worker))
        return self.client.recorder.now()

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        return await self.engine.attempts(task)


@contextlib.asynccontextmanager
async def place_at(folder: Path, env: Mapping[str, str] = BRISK, clock: Clock | None = None, url: str | None = None) -> AsyncIterator[Place]:
    """In a file of SQLite in this folder, unless a URL names another store."""
    engine = cast("Engine", SQLiteEngine(folder / "store.db", clock=clock)) if url is None else create(url, clock=clock)
    await engine.open()
    settings = {**env, FOLDER: str(folder), "TASKMILL_URL": url or f"sqlite:///{folder / 'store.db'}"}
    if clock is not None:
        settings[stepped.OFFSET] = str(folder / "clock")
    try:
        with Recorder(folder / "history") as recorder:
            yield Place(folder, url or folder / "store.db", Recorded(engine, recorder), settings)
    finally:
        await engine.close()


class Load:
    """Tasks that flow: always some more than are done, until stopped."""

    def __init__(self, place: Place, *, seed: int = 0, ahead: int = 40, longest: int = 60) -> None:
        self._place = place
        self._random = Random(seed)
        self._ahead = ahead
        self._longest = longest
        self.tasks: list[str] = []

    async def __aenter__(self) -> Self:
        self._group = await asyncio.TaskGroup().__aenter__()
        self._flow = self._group.create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """No more of them; those that were accepted come to their end."""
        self._flow.cancel()
        await self._group.__aexit__(kind, error, trace)
        if error is None:
            await self._place.all_ended(self.tasks)

    async def _run(self) -> None:
        while True:
            batch = [new(self._kind(), ms=self._random.randrange(self._longest)) for _ in range(10)]
            self.tasks += await asyncio.shield(self._place.submit(*batch))
            await self._place.effects.count(len(self.tasks) - self._ahead, "end")

    def _kind(self) -> str:
        return self._random.choices(("work", "grind", "alone"), (30, 9, 1))[0]


class Verdict(msgspec.Struct):
    """All that is known in the end."""

    history: list[Event]
    reads: dict[str, events.Read]
    attempts: dict[str, tuple[Attempt, ...]]
    effects: Effects

    def of(self, token: int, task: str) -> Attempt | None:
        """What the store has of the attempt under this lease."""
        return next((attempt for attempt in self.attempts[task] if attempt.token == token), None)

    def cut_off(self, pids: Collection[int]) -> Counter[str | None]:
        """How the attempts ended, for the store, that began in these processes."""
        found = [self.of(line.token, line.task) for line in self.effects.of("begin", pids=pids)]
        return Counter(attempt.outcome if attempt else None for attempt in found)

    def answers(self, answer: str) -> list[events.Finish]:
        return [event for event in self.history if isinstance(event, events.Finish) and event.answer == answer]


async def verdict(place: Place, bounds: Bounds = BOUNDS, *, dead: Collection[str] = ()) -> Verdict:
    """No promise is broken; every task that was accepted has completed, once, and did what it was for at least once. `dead`: but for these."""
    history, reads = await judge(place.store, place.history, bounds)
    accepted = [event.id or event.task for event in history if isinstance(event, events.Submit) and event.answer in ("created", "duplicate")]
    assert {task: reads[task].state for task in accepted if reads[task].state != "completed"} == dict.fromkeys(dead, "dead")
    attempts = {task: await place.attempts(task) for task in accepted}
    said = {(line.what, line.task, line.token) for line in place.effects.lines()}
    for task in accepted:
        done = [attempt.token for attempt in attempts[task] if attempt.outcome == "completed"]
        assert len(done) == (task not in dead), (task, attempts[task])
        assert all((what, task, token) in said for what in ("begin", "end") for token in done)
    return Verdict(history, reads, attempts, place.effects)


def gone(pid: int) -> bool:
    """No such process, or nothing but its exit code is left of it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


@contextlib.asynccontextmanager
async def locked(store: Path) -> AsyncIterator[None]:
    """Somebody's transaction on the same file, who knows nothing of us."""
    connection = apsw.Connection(str(store))
    connection.set_busy_timeout(30_000)
    await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


async def passed(place: Place, time: int) -> None:
    """Time itself is what the fault is made of."""
    now = place.client.recorder.now
    over = now() + time
    await until(lambda: True if now() > over else None, "time")
