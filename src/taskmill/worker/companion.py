"""A process of another kind under a supervisor: the API beside the workers of `taskmill up`.

It is started once the app's store is known, started anew when it dies, and told to end when the supervisor drains. The socket it serves is the
supervisor's, so callers who come while it is started anew wait instead of being refused. It may ask its supervisor questions; the answers are JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from taskmill.clock import SECOND
from taskmill.config import Settings
from taskmill.worker.channel import Channel, Message
from taskmill.worker.process import death, kill
from taskmill.worker.settings import StoreSettings

__all__ = ["Beginning", "Companion"]

log = logging.getLogger("taskmill")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0

Question = Callable[[], Awaitable[bytes]]


class Beginning(msgspec.Struct, frozen=True):
    """What a companion needs to begin: the store, and options of its own."""

    store: StoreSettings
    options: dict[str, int | None] = {}
    log_level: str | None = None


class Companion:
    """The place of one such process; `listen` gives the socket once the settings are known, `began` is called with where
    it serves."""

    def __init__(
        self,
        module: str,
        listen: Callable[[Settings], socket.socket],
        *,
        options: Mapping[str, int | None],
        log_level: str | None = None,
        began: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._module = module
        self._listen = listen
        self._options = dict(options)
        self._log_level = log_level
        self._began = began
        self.questions: Mapping[str, Question] = {}
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._draining = False

    def listen(self, settings: Settings) -> None:
        """Take its port, before anything is begun: one that cannot be had is an error of the whole."""
        self._socket = self._listen(settings)

    def drain(self) -> None:
        """No more callers; those under way are answered, then it ends."""
        self._draining = True
        if self._channel is not None:
            self._channel.say(Message("drain"))

    def kill(self) -> None:
        """It did not end when it was told to."""
        if self._process is not None:
            kill(self._process)

    async def run(self, store: StoreSettings, env: dict[str, str]) -> None:
        """Until it has ended after `drain`, or until cancelled."""
        beginning = msgspec.Raw(msgspec.json.encode(Beginning(store, self._options, self._log_level)))
        pause = FIRST_PAUSE
        assert self._socket is not None
        with self._socket:
            try:
                while True:
                    began = asyncio.get_running_loop().time()
                    code = await self._life(self._socket, beginning, env)
                    if self._draining:
                        return
                    log.warning("the API is gone: %s", death(code))
                    if asyncio.get_running_loop().time() - began > LONGEST_PAUSE:
                        pause = FIRST_PAUSE
                    await asyncio.sleep(pause * random.uniform(0.8, 1.2))
                    pause = min(2 * pause, LONGEST_PAUSE)
            finally:
                await self._end(store.settings.grace_period / SECOND)

    async def _life(self, sock: socket.socket, beginning: msgspec.Raw, env: dict[str, str]) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, str(theirs.fileno()), str(sock.fileno()), str(os.getpid()),
                pass_fds=(theirs.fileno(), sock.fileno()), env=env, start_new_session=True,
            )  # fmt: skip
        self._channel = await Channel.open(ours)
        self._channel.say(Message("start", data=beginning))
        if self._draining:
            self._channel.say(Message("drain"))
        try:
            while (message := await self._channel.hear()) is not None:
                await self._heard(message)
            return await self._process.wait()
        finally:
            self._channel.close()
            self._channel = None

    async def _heard(self, message: Message) -> None:
        if message.kind == "began":
            self._began(message.ids)
        elif message.kind == "failed":
            log.error("the API did not start: %s", message.text)
        elif message.kind in self.questions and self._channel is not None:
            answer = await self.questions[message.kind]()
            self._channel.say(Message("answer", number=message.number, data=msgspec.Raw(answer)))

    async def _end(self, grace: float) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace if self._draining else 0.1)
        kill(process)
        await process.wait()
