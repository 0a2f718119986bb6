"""Those who wait for the end of a task, without a connection for each of them.

The first few have a request of their own, which the server answers at the end of the task and otherwise every 30 seconds. All others are a crowd: one request
asks for all of them, for a second at a time, so that whoever joins is asked for with the next. A thousand waits cost 33 connections.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence

import msgspec

from taskmill.client.http import Http
from taskmill.client.problems import understood
from taskmill.clock import SECOND, format_duration
from taskmill.errors import NotFound, TaskmillError
from taskmill.task import State

__all__ = ["Waits"]

ALONE = 32
"""Waits with a request of their own: half of all connections, so that there is always one for something else."""
SLICE = 30 * SECOND
CROWD_SLICE = SECOND
TOGETHER = 1_000
PAUSE = 0.1
"""Seconds before a server is asked again that did not wait: it is about to stop."""
PATH = "/api/v1/tasks:wait"


class _Ended(msgspec.Struct, frozen=True):
    ended: dict[str, State]
    unknown: list[str]


class Waits:
    """All waits of one client."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._alone = 0
        self._crowd: dict[str, set[asyncio.Future[State]]] = {}
        self._asking: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def wait(self, id: str, timeout: int | None) -> State | None:
        """How it ended; None when the time is over before. The first look is not bounded by it."""
        if timeout == 0 or self._alone < ALONE:
            self._alone += 1
            try:
                return await self._wait_alone(id, timeout)
            finally:
                self._alone -= 1
        return await self._wait_in_crowd(id, timeout)

    async def any(self, ids: Sequence[str], timeout: int | None) -> dict[str, State]:
        """Those of many that have ended, as soon as one has."""
        deadline = _deadline(timeout)
        while True:
            left = _left(deadline)
            found = await self._ask(ids, min(SLICE, left), left)
            if found.unknown:
                raise _nobody(found.unknown[0])
            if found.ended or left == 0:
                return found.ended

    async def _wait_alone(self, id: str, timeout: int | None) -> State | None:
        return (await self.any([id], timeout)).get(id)

    async def _wait_in_crowd(self, id: str, timeout: int | None) -> State | None:
        future: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._crowd.setdefault(id, set()).add(future)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_crowd())
        try:
            async with asyncio.timeout(None if timeout is None else timeout / SECOND):
                return await future
        except TimeoutError:
            return None
        finally:
            others = self._crowd[id]
            others.discard(future)
            if not others:
                del self._crowd[id]

    async def _ask_for_crowd(self) -> None:
        try:
            while self._crowd:
                ids = list(self._crowd)
                await asyncio.gather(*(self._ask_for(ids[start : start + TOGETHER]) for start in range(0, len(ids), TOGETHER)))
                await asyncio.sleep(0)  # those who were told leave
        finally:
            self._asking = None

    async def _ask_for(self, ids: Sequence[str]) -> None:
        try:
            found = await self._ask(ids, CROWD_SLICE)
        except TaskmillError as error:  # it belongs to those who wait
            for id in ids:
                self._tell(id, error)
            return
        for id, state in found.ended.items():
            self._tell(id, state)
        for id in found.unknown:
            self._tell(id, _nobody(id))

    def _tell(self, id: str, what: State | TaskmillError) -> None:
        for future in self._crowd.get(id, ()):
            if not future.done():
                if isinstance(what, State):
                    future.set_result(what)
                else:
                    future.set_exception(copy.copy(what))

    async def _ask(self, ids: Sequence[str], wait: int, left: int = SLICE) -> _Ended:
        body = msgspec.json.encode({"ids": ids, "wait": format_duration(wait)})
        loop = asyncio.get_running_loop()
        began = loop.time()
        answered = await self._http.ask("POST", PATH, body, patience=wait / SECOND, limit=max(1.0, left / SECOND))
        found = understood(answered.data, _Ended)
        if not found.ended and not found.unknown and loop.time() - began < wait / SECOND / 2:
            await asyncio.sleep(PAUSE)
        return found


def _deadline(timeout: int | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout / SECOND


def _left(deadline: float | None) -> int:
    return SLICE if deadline is None else max(0, int((deadline - asyncio.get_running_loop().time()) * SECOND))


def _nobody(id: str) -> NotFound:
    hint = "ids are known for 72 h after the submit, or as long as the task's own window says"
    return NotFound(f"there is no task {id}", field="id", hint=hint, task_id=id)
