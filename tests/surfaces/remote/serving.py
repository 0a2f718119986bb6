"""A real server on a socket over a real store, and a caller that speaks the worker protocol to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

import aiohttp
import msgspec

from taskmill.clock import Clock
from taskmill.config import Settings
from taskmill.engine import Call, Engine, observed
from taskmill.engines import create
from taskmill.server.access import create_key
from taskmill.server.listening import bound
from taskmill.server.running import run
from taskmill.server.service import Service
from tests.faults.effects import until

__all__ = ["Answered", "Caller", "Remote", "Server", "Verbs", "serving"]

HANGS = 60.0


class Answered(msgspec.Struct):
    """What a server said."""

    status: int
    data: dict[str, Any]
    headers: dict[str, str]

    @property
    def code(self) -> str | None:
        return cast("str | None", self.data.get("code"))


class Caller:
    """Whoever has this key."""

    def __init__(self, session: aiohttp.ClientSession, key: str | None = None) -> None:
        self.session = session
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answered:
        data = None if body is None else msgspec.json.encode(body)
        told = {**self.headers, **({} if data is None else {"Content-Type": "application/json"}), **headers}
        async with self.session.request(method, path, data=data, headers=told) as answer:
            return Answered(answer.status, await answer.json(content_type=None), dict(answer.headers))

    async def post(self, path: str, body: object) -> dict[str, Any]:
        answer = await self.ask("POST", path, body)
        assert answer.status in {200, 202}, answer
        return answer.data

    async def submit(self, type: str, payload: object = None, **options: object) -> str:
        answer = await self.post("/api/v1/tasks", {"type": type, "payload": payload, **options})
        return cast("str", answer["id"])

    async def task(self, id: str, wait: str | None = None) -> dict[str, Any]:
        answer = await self.ask("GET", f"/api/v1/tasks/{id}" + ("" if wait is None else f"?wait={wait}"))
        assert answer.status == 200, answer
        return answer.data

    async def attempts(self, id: str) -> list[dict[str, Any]]:
        answer = await self.ask("GET", f"/api/v1/tasks/{id}/attempts")
        return cast("list[dict[str, Any]]", answer.data["attempts"])


class Remote:
    """A worker that does exactly what a test tells it to."""

    def __init__(self, caller: Caller, joined: dict[str, Any]) -> None:
        self.caller = caller
        self.id = cast("str", joined["worker"])
        self.joined = joined
        self.request = 0

    @classmethod
    async def join(cls, caller: Caller, *types: str, queues: Sequence[str] = ("jobs",), **more: object) -> Self:
        return cls(caller, await caller.post("/api/v1/worker/join", {"types": list(types), "queues": queues, **more}))

    async def ask(self, verb: str, **body: object) -> Answered:
        return await self.caller.ask("POST", f"/api/v1/worker/{verb}", {"worker": self.id, **body})

    async def claim(self, slots: int = 1, wait: str = "0s", **more: object) -> list[dict[str, Any]]:
        self.request += 1
        return await self.repeat(slots, wait, **more)

    async def repeat(self, slots: int = 1, wait: str = "0s", **more: object) -> list[dict[str, Any]]:
        answer = await self.ask("claim", request=self.request, slots=slots, wait=wait, **more)
        assert answer.status == 200, answer
        return cast("list[dict[str, Any]]", answer.data["tasks"])

    async def one(self, wait: str = "30s") -> dict[str, Any]:
        [task] = await self.claim(wait=wait)
        return task

    async def finish(self, task: dict[str, Any], ending: str, **more: object) -> Answered:
        return await self.ask("finish", outcomes=[{"task": task["id"], "token": task["token"], "ending": ending, **more}])

    async def beat(self, *tasks: dict[str, Any]) -> dict[str, Any]:
        answer = await self.ask("beat", request=self.request, leases=[task["token"] for task in tasks])
        assert answer.status == 200, answer
        return answer.data


class Verbs:
    """What a server asks its store, as it does so."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Event] = {}

    def tell(self, call: Call) -> None:
        if call.verb in self._awaited:
            self._awaited.pop(call.verb).set()

    def next(self, verb: str) -> asyncio.Event:
        """Set when it has asked this the next time."""
        return self._awaited.setdefault(verb, asyncio.Event())


class Server:
    """One that listens, its store beside it."""

    def __init__(self, url: str, service: Service, engine: Engine, session: aiohttp.ClientSession, stop: asyncio.Event, verbs: Verbs) -> None:
        self.url = url
        self.service = service
        self.engine = engine
        self.session = session
        self.stop = stop
        self.verbs = verbs
        self.anybody = Caller(session)

    async def waits(self, claims: int) -> None:
        """Until so many claims wait."""
        await until(lambda: True if self.service.crew.waiting == claims else None, f"{claims} claims that wait")

    async def caller(self, *scopes: str, **quota: Any) -> Caller:
        """A caller with a key of its own; from then on everybody needs one."""
        token, _ = await create_key(self.engine, name="", scopes=scopes, **quota)
        return Caller(self.session, token)


@asynccontextmanager
async def serving(store: str, folder: Path, clock: Clock | None = None) -> AsyncIterator[Server]:
    """`clock` is that of the store."""
    stop = asyncio.Event()
    verbs = Verbs()
    engine, beside = observed(create(store, base=folder, clock=clock), verbs.tell), create(store, base=folder, clock=clock)
    settings = msgspec.structs.replace(Settings(), audit_log=str(folder / "audit.log"))
    with bound("127.0.0.1", 0) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        began: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(run(engine, settings, sock, stop, base=folder, began=began.set_result))
        await asyncio.wait([running, began], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if running.done():
            running.result()
        await beside.open()
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=HANGS)) as session:
            try:
                yield Server(url, began.result(), beside, session, stop, verbs)
            finally:
                stop.set()
        await running
        await beside.close()
