"""Where checks take place: a store, a server over it that can be killed, and processes of the worker under test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.engine import Engine, Target
from taskmill.engines import create
from taskmill.errors import StoreError, TaskmillError
from taskmill.retry import Retry
from taskmill.server.access import create_key, revoke_key
from taskmill.task import Attempt, NewTask, Task
from taskmill.testing.workers.proxy import Exchange, Proxy
from taskmill.testing.workers.report import Broken

__all__ = ["Process", "Scene", "Stage", "stage"]

Found = TypeVar("Found")

KEPT_LINES = 40


class Process:
    """A worker under test, in a session of its own, so that whatever it starts is reached too."""

    def __init__(self, process: asyncio.subprocess.Process, lines: deque[str]) -> None:
        self.process = process
        self._reading = asyncio.create_task(_kept(process, lines))

    def signal(self, number: signal.Signals) -> None:
        """SIGTERM is for the worker; the others, which it cannot see, are for all that it started."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGTERM:
                self.process.terminate()
            else:
                os.killpg(self.process.pid, number)

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ended(self) -> int:
        return await self.process.wait()

    async def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            self.signal(number)
        await self.process.wait()
        await self._reading


async def _kept(process: asyncio.subprocess.Process, lines: deque[str]) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        lines.append(line.decode("utf-8", "replace").rstrip()[:500])


def _environment() -> dict[str, str]:
    """What is around, without what would set up Taskmill in another way."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}


class Server:
    """`taskmill api`, each time on another port."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.url = "http://127.0.0.1:9"

    async def start(self) -> None:
        env = _environment()
        if "PYTHONPATH" in env:  # it runs in another folder
            here = Path.cwd()
            env["PYTHONPATH"] = os.pathsep.join(str(here / folder) for folder in env["PYTHONPATH"].split(os.pathsep))
        arguments = (sys.executable, "-m", "taskmill", "api", "--port", "0", "--no-grpc", "--log-level", "error", "--url", self._store)
        self._process = await asyncio.create_subprocess_exec(*arguments, env=env, cwd=self._folder, stderr=asyncio.subprocess.PIPE)
        assert self._process.stderr is not None
        said = ""
        while line := await self._process.stderr.readline():
            said += line.decode("utf-8", "replace")
            if found := re.search(r" at (http://[^\s;,]+)", said):
                self.url = found[1]
                self._reading = asyncio.create_task(self._process.stderr.read())
                return
        raise TaskmillError(f"the server of the kit did not start: {said[-500:]}", code="no_server", hint="run it by itself: taskmill api --port 0")

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
            await self._reading


class Stage:
    """What all checks share."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], store: str, engine: Engine, server: Server, lease: int, patience: float) -> None:
        self.command = command
        self.env = env
        self.store = store
        self.engine = engine
        self.server = server
        self.lease = lease
        self.patience = patience
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.keys: dict[str, str] = {}
        """By queue, the id of the key."""
        self.tokens: dict[str, str] = {}

    @asynccontextmanager
    async def scene(self, name: str) -> AsyncIterator[Scene]:
        async with Proxy(lambda: self.server.url) as proxy:
            scene = Scene(self, f"kit-{name}", proxy)
            try:
                yield scene
            finally:
                for process in scene.processes:
                    await process.end()


class Scene:
    """What one check has in its hands."""

    def __init__(self, stage: Stage, queue: str, proxy: Proxy) -> None:
        self.stage = stage
        self.queue = queue
        self.proxy = proxy
        self.engine = stage.engine
        self.lease = stage.lease / SECOND
        self.patience = stage.patience
        self.processes: list[Process] = []
        self.disturbed = False
        """The check itself keeps the worker from beating in time."""

    async def start(self) -> Process:
        """A process of the worker, and its first claim."""
        before = len(self.proxy.exchanges)
        env = {
            **_environment(),
            **self.stage.env,
            "TASKMILL_SERVER_URL": self.proxy.url,
            "TASKMILL_API_KEY": self.stage.tokens[self.queue],
            "TASKMILL_QUEUES": self.queue,
            "TASKMILL_LEASE": f"{self.stage.lease // 1_000}ms",
            "TASKMILL_SLOTS": "4",
        }
        pipe, together = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        started = await asyncio.create_subprocess_exec(*self.stage.command, env=env, stdout=pipe, stderr=together, start_new_session=True)
        process = Process(started, self.stage.lines)
        self.processes.append(process)
        await self.within(self._joined(process, before), "the worker does not join")
        return process

    async def _joined(self, process: Process, before: int) -> None:
        joined = asyncio.create_task(self.proxy.until(lambda one: one.verb == "join" and one.good, before))
        ended = asyncio.create_task(process.ended())
        try:
            await asyncio.wait({joined, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not joined.done():
                raise Broken(f"the worker ended with the code {ended.result()} before it joined")
        finally:
            joined.cancel()
            ended.cancel()

    @property
    def worker(self) -> str:
        """The id of the worker that joined last."""
        found = [one.worker for one in self.proxy.exchanges if one.verb == "join" and one.good and one.worker is not None]
        return found[-1]

    # Tasks

    async def submit(self, type: str, payload: object = None, retries: int = 0, **fields: Any) -> str:
        retry = Retry.fixed("10ms", max_retries=retries)
        new = NewTask(type=type, payload=codec.encode(payload), queue=self.queue, id=self.engine.new_id(self.queue), retry=retry, **fields)
        [answer] = await self.engine.submit([new])
        if answer.error is not None:
            raise answer.error
        return answer.id

    async def task(self, id: str) -> Task:
        [found] = await self.engine.get([id])
        assert isinstance(found, Task)
        return found

    async def attempts(self, id: str) -> tuple[Attempt, ...]:
        return await self.engine.attempts(id)

    async def ended(self, *ids: str, more: float = 0.0) -> list[Task]:
        """The records, once all have ended; `more` seconds than usual are allowed for it."""
        patience = self.patience + more
        until = time.monotonic() + patience
        while missing := [task for task in [await self.task(id) for id in ids] if task.finished_at is None]:
            left = until - time.monotonic()
            first = missing[0]
            if not any(process.alive for process in self.processes):
                codes = ", ".join(str(process.process.returncode) for process in self.processes)
                raise Broken(f"the worker ended with the code {codes}, and a task of type {first.type} is {first.state}")
            if left <= 0:
                raise Broken(f"a task of type {first.type} has not ended after {patience:.0f} s: it is {first.state}, in attempt {first.executions}")
            await self.engine.wait([task.id for task in missing], min(1, int(left) + 1) * SECOND)
        return [await self.task(id) for id in ids]

    async def running(self, id: str) -> Exchange:
        """Once the worker was given the task; the claim that brought it."""
        return await self.within(self.proxy.until(lambda one: any(task["id"] == id for task in one.tasks) and one.heard), "the worker does not claim the task")

    async def cancel(self, id: str) -> None:
        await self.engine.cancel([Target(id)])

    async def revoke(self) -> None:
        await revoke_key(self.engine, self.stage.keys[self.queue])

    # Time

    async def within(self, what: Awaitable[Found], else_: str, patience: float | None = None) -> Found:
        """What is waited for, or a broken promise."""
        patience = patience or self.patience
        try:
            async with asyncio.timeout(patience):
                return await what
        except TimeoutError:
            raise Broken(f"{else_} within {patience:.0f} s") from None

    async def pass_leases(self, n: float) -> None:
        """Time passes, as the worker sees it."""
        await asyncio.sleep(n * self.lease)


@asynccontextmanager
async def stage(
    command: Sequence[str], env: Mapping[str, str], folder: Path, lease: int, patience: float, checks: Sequence[str], store: str | None = None
) -> AsyncIterator[Stage]:
    """A new store unless one is named, a server over it, and somebody who looks after lost leases."""
    url = store or f"sqlite:///{folder / 'kit.db'}"
    engine = create(url, base=folder)
    await engine.open()
    server = Server(url, folder)
    made = Stage(command, env, url, engine, server, lease, patience)
    recovering = asyncio.create_task(_recover(engine))
    try:
        await create_key(engine, name="kit", scopes=["admin"])  # there is a key also when that of the worker is revoked: without any, everybody is let in
        for name in checks:
            queue = f"kit-{name}"
            made.tokens[queue], key = await create_key(engine, name=queue, scopes=["worker"])
            made.keys[queue] = key.id
        await server.start()
        yield made
    finally:
        recovering.cancel()
        await server.kill()
        await engine.close()


async def _recover(engine: Engine) -> None:
    while True:
        with contextlib.suppress(StoreError):
            await engine.recover_lost()
        await asyncio.sleep(0.25)
