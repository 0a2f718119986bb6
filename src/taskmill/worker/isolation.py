"""Attempts in processes of their own: for handlers that burn CPU, and for tasks that took a process down with them.

    a rested runner, or a new one: its process starts, imports the app, says "ready" ──▶ the attempt begins ──▶ its outcome

The time of an attempt begins when its runner is ready. A start has a limit of its own, and one that fails is no failure of the task: it
comes back later. No more processes start at a time than there are processors.

A runner runs one attempt at a time and is used again, unless the attempt left its process other than it found it. It can be killed
without harm to anybody else, so here a timeout and a cancel are final: the handler is asked first, and gone a second later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from types import MappingProxyType

import msgspec

from taskmill.clock import MINUTE, SECOND, format_duration
from taskmill.engine import Claimed, Ending, Outcome
from taskmill.task import ErrorInfo
from taskmill.worker.attempt import Running, ended, failed
from taskmill.worker.channel import Channel, Message
from taskmill.worker.executor import PROCESSORS, HandlerUnavailable
from taskmill.worker.process import death, kill, kill_group

__all__ = ["Job", "Runners"]

MOST_IDLE = 4
LAST_BREATH = 0.5


class Job(msgspec.Struct, frozen=True, gc=False):
    """An attempt as it is sent to a runner; its times are of the monotonic clock, which all processes of a machine share."""

    claimed: Claimed
    received: int
    started: int
    deadline: int


def encode(job: Job) -> bytes:
    return msgspec.json.encode(job, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError


class Runners:
    """The runners of one child; `start_limit` is how long one may take until it is ready."""

    def __init__(self, target: str, kill_after: int, log_level: str | None = None, *, start_limit: int = MINUTE) -> None:
        self._target = target
        self._log_level = log_level
        self._patience = min(SECOND, kill_after // 2) / SECOND
        self._start_limit = start_limit
        self._starting = asyncio.Semaphore(PROCESSORS)
        self._idle: list[_Runner] = []
        self._all: set[_Runner] = set()

    async def attempt(self, running: Running, begin: Callable[[], bool]) -> Outcome | None:
        """Run it to its end, whatever that is; `begin` is asked when a runner is ready for it, and None answered if it must not begin.

        HandlerUnavailable: no runner could be started.
        """
        runner = await self._ready()
        if not begin():
            await self._put_back(runner)
            return None
        try:
            outcome = await runner.attempt(running)
        except asyncio.CancelledError as asked:
            outcome = await self._ask(runner, running, asked)
        except _Died as died:
            outcome = ended(running, Ending.CRASHED, error=ErrorInfo("crashed", str(died)))
        await self._put_back(runner)
        return outcome

    async def _ask(self, runner: _Runner, running: Running, asked: BaseException) -> Outcome:
        """The executor wants it to end: the handler is told, and killed when it does not listen."""
        with contextlib.suppress(TimeoutError, _Died):
            return await asyncio.wait_for(runner.ask(running), self._patience)
        runner.kill()
        return failed(running, asked)

    async def _ready(self) -> _Runner:
        if (runner := self._rested()) is not None:
            return runner
        async with self._starting:
            return self._rested() or await self._start()

    def _rested(self) -> _Runner | None:
        """One that has run others before; what an earlier handler left in it may have ended it since, which is not this one's fault."""
        while self._idle:
            if (runner := self._idle.pop()).alive:
                return runner
            self._all.discard(runner)
            runner.close()
        return None

    async def _start(self) -> _Runner:
        runner = await _Runner.start(self._target, self._log_level)
        self._all.add(runner)
        try:
            async with asyncio.timeout(self._start_limit / SECOND):
                await runner.ready()
        except BaseException as error:
            self._all.discard(runner)
            await runner.end()
            if isinstance(error, TimeoutError):
                limit = format_duration(self._start_limit)
                raise HandlerUnavailable(f"the app was not ready in a new process after {limit}; the setting start_timeout allows more") from None
            raise
        return runner

    async def _put_back(self, runner: _Runner) -> None:
        if runner.fit and len(self._idle) < MOST_IDLE:
            self._idle.append(runner)
        else:
            self._all.discard(runner)
            await runner.end()

    async def close(self) -> None:
        for runner in self._all:
            await runner.end()


class _Died(Exception):
    """The runner's process is gone; the text says how it ended."""


class _Runner:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self.fit = True

    @classmethod
    async def start(cls, target: str, log_level: str | None) -> _Runner:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "taskmill.worker.runner", str(theirs.fileno()), str(os.getpid()), pass_fds=(theirs.fileno(),), start_new_session=True
            )  # fmt: skip
        channel = await Channel.open(ours)
        channel.say(Message("load", text=target, data=msgspec.Raw(msgspec.json.encode(log_level))))
        return cls(process, channel)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ready(self) -> None:
        """Its app has been imported and started."""
        message = await self._channel.hear()
        if message is None:
            raise HandlerUnavailable(f"the app does not start in a new process: {await self._death()}")
        if message.kind == "failed":
            raise HandlerUnavailable(message.text)

    async def attempt(self, running: Running) -> Outcome:
        job = Job(running.claimed, running.received, running.started, running.deadline)
        self._channel.say(Message("attempt", data=msgspec.Raw(encode(job))))
        return await self._outcome()

    async def ask(self, running: Running) -> Outcome:
        self._channel.say(Message("ask", text=running.reason or ""))
        return await self._outcome()

    async def _outcome(self) -> Outcome:
        message = await self._channel.hear()
        if message is None:
            raise _Died(await self._death())
        self.fit = message.text != "changed"
        return msgspec.json.decode(message.data, type=Outcome)

    async def _death(self) -> str:
        """It let go of the channel: so it ends, or a handler closed all its files and it can be of no use any more."""
        self.fit = False
        try:
            code = await asyncio.wait_for(self._process.wait(), LAST_BREATH)
            kill_group(self._process.pid)  # what its handler had started must not go on without it
            return death(code)
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return "it closed the files of its process"

    def kill(self) -> None:
        self.fit = False
        kill(self._process)

    async def end(self) -> None:
        """Nothing of worth is in it any more, and what a handler left behind might keep it."""
        self.kill()
        self.close()
        await self._process.wait()

    def close(self) -> None:
        self._channel.close()
