"""A real server on loopback over a store of its own, in this process or in one of its own, and a caller of it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from taskmill.config import Settings
from taskmill.engine import Durability, Ending, Engine, Joining, Outcome, Room
from taskmill.engines import create
from taskmill.server.access import create_key
from taskmill.server.listening import bound
from taskmill.server.running import run
from taskmill.server.service import Service
from taskmill.task import ErrorInfo, NewTask, TypeSettings, new_id

AUDIT = "audit.jsonl"


class Said(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        return str(self.data["code"])


class Api:
    """A server that runs in this process; `service` is its inside."""

    def __init__(self, service: Service, folder: Path, url: str, session: aiohttp.ClientSession) -> None:
        self.service = service
        self.engine: Engine = service.engine
        self.folder = folder
        self.url = url
        self._session = session

    async def __call__(self, method: str, path: str, body: object = None, *, key: str | None = None, headers: Mapping[str, str] | None = None) -> Said:
        sent = {**(headers or {}), **({} if key is None else {"Authorization": f"Bearer {key}"})}
        async with self._session.request(method, self.url + path, json=body, headers=sent) as answer:
            return Said(answer.status, answer.headers.copy(), await answer.text())

    async def ok(self, method: str, path: str, body: object = None, **how: Any) -> Any:
        said = await self(method, path, body, **how)
        assert said.status < 300, said
        return said.data if said.text else None

    async def refused(self, status: int, method: str, path: str, body: object = None, **how: Any) -> Said:
        said = await self(method, path, body, **how)
        assert said.status == status, said
        assert said.headers["content-type"] == "application/problem+json"
        assert said.data["status"] == status
        assert said.data["hint"]
        return said

    async def key(self, *scopes: str, tenant: str | None = None, rate: int | None = None, depth: int | None = None) -> str:
        """A new key, known to the server from now on."""
        token, _ = await create_key(self.engine, name="", scopes=scopes, tenant=tenant, rate=rate, depth=depth)
        self.service.keys.changed()
        return token

    async def submit(self, *types: str, queue: str = "default", tenant: str = "", delay: int | None = None) -> list[str]:
        answers = await self.engine.submit([NewTask(type=name, queue=queue, tenant=tenant, delay=delay, payload=b'{"n":1}') for name in types])
        assert all(answer.error is None for answer in answers)
        return [answer.id for answer in answers]

    async def join(self, worker: str, *types: str, queue: str = "default") -> None:
        await self.engine.join(Joining(worker=worker, queues=(queue,), types={name: TypeSettings(queue=queue) for name in types}))

    async def end(self, ending: Ending, *types: str, queue: str = "default") -> list[str]:
        """Claim all tasks of these types and end them alike."""
        worker = new_id()
        await self.join(worker, *types, queue=queue)
        claimed = (await self.engine.claim(worker, 1, [queue], Room(1_000))).tasks
        error = ErrorInfo("ValueError", "no", "Traceback …") if ending is Ending.DEAD else None
        done = [Outcome(task=one.id, worker=worker, token=one.token, ending=ending, error=error, result=None, started_after=0) for one in claimed]
        assert not (await self.engine.finish(done)).refused
        await self.engine.leave(worker)
        return [one.id for one in claimed]

    def audit(self) -> list[dict[str, Any]]:
        path = self.folder / AUDIT
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@asynccontextmanager
async def served(folder: Path, *, url: str | None = None, keys: bool = False, **given: Any) -> AsyncIterator[Api]:
    """On a port that is free. `keys`: the store has one from the start, so that nobody is let in without; `given` are settings."""
    settings = Settings(audit_log=AUDIT, **given)
    engine = create(url or f"sqlite:///{folder}/store.db", base=folder, durability=Durability.LOCAL)
    stop, began = asyncio.Event(), asyncio.get_running_loop().create_future()
    with bound("127.0.0.1", 0) as sock:
        running = asyncio.create_task(run(engine, settings, sock, stop, base=folder, began=began.set_result))
        await asyncio.wait({running, began}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        async with aiohttp.ClientSession() as session:
            api = Api(began.result(), folder, f"http://127.0.0.1:{sock.getsockname()[1]}", session)
            if keys:
                await api.key("admin")
            yield api
        stop.set()
        await running


class Process(NamedTuple):
    """`taskmill api` as a process of its own."""

    url: str
    log: Path


@contextmanager
def process(folder: Path, *arguments: str, store: str | None = None) -> Iterator[Process]:
    """Until the block ends; then it must end well. What it writes is in `log`."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "taskmill", "api", "--port", "0", "--no-grpc", "--url", store or f"sqlite:///{folder}/store.db", *arguments]
    with log.open("wb") as written:
        running = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert running.stderr is not None
        first = running.stderr.readline()
        copying = subprocess.Popen(["tee"], stdin=running.stderr, stdout=written)
        running.stderr.close()
        try:
            found = re.search(rb"http://127\.0\.0\.1:\d+", first)
            assert found is not None, first
            yield Process(found[0].decode(), log)
        finally:
            running.send_signal(signal.SIGTERM)
            code = running.wait(30)
            copying.wait(30)
        assert code == 0
