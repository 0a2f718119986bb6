"""The threads in which plain functions run."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue

from taskmill.engine import Outcome
from taskmill.worker.attempt import Running

__all__ = ["Threads"]


class Threads:
    """Threads that wait for a slot. They start when first needed, and end with the process: a handler that never returns holds its thread for ever."""

    def __init__(
        self,
        work: Callable[[Callable[[], None], Callable[[Running, Outcome], None]], None],
        collect: Callable[[list[tuple[Running, Outcome]], int], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._work = work
        self._collect = collect
        self._loop = loop
        self._slots: SimpleQueue[None] = SimpleQueue()
        self._done: deque[tuple[Running, Outcome] | None] = deque()
        self._told = False
        self._started = 0
        self._woken = 0
        self._arrived: deque[None] = deque()
        self.awake = 0

    @property
    def coming(self) -> int:
        """Slots whose thread has not yet looked for a task."""
        return self._woken - len(self._arrived)

    def wake(self) -> None:
        """One more slot for a thread."""
        self._woken += 1
        self.awake += 1
        if self.awake > self._started:
            self._started += 1
            threading.Thread(target=self._run, name=f"taskmill-handler-{self._started}", daemon=True).start()
        self._slots.put(None)

    def _run(self) -> None:
        while True:
            self._slots.get()
            Context().run(self._work, self._arrive, self._tell)  # what a handler leaves in its context is not for the next one
            self._done.append(None)
            self._tell_loop()

    def _arrive(self) -> None:
        self._arrived.append(None)

    def _tell(self, running: Running, outcome: Outcome) -> None:
        self._done.append((running, outcome))
        self._tell_loop()

    def _tell_loop(self) -> None:
        """Once until the loop has looked: what is done meanwhile comes along."""
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: it knows the last outcome, and nobody waits for the slot
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._told = False  # before reading: what is appended after it is told anew
        for _ in range(len(self._arrived)):
            self._arrived.popleft()
            self._woken -= 1
        done = [self._done.popleft() for _ in range(len(self._done))]
        ended = [one for one in done if one is not None]
        slots = len(done) - len(ended)
        self.awake -= slots
        self._collect(ended, slots)
