"""The program `taskmill worker`: it runs no handler itself, so nothing a handler does can keep it from beating for its children.

    supervisor ─┬─ child (claims, runs, finishes)       one worker each, with its own id
                ├─ child
                ├─ beats: each child's leases named, hard deadlines enforced, cancels and commands passed on
                ├─ maintenance: recovery, schedules, pruning, outbox
                └─ probes and metrics, where a port is given

A child that dies is reported at once and replaced. SIGTERM (and SIGINT) drains: no more claims, what runs may end within the grace
period, exit 0; a second signal stops hard. A store that does not answer then is not waited for: what cannot be released runs elsewhere when
its lease is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from taskmill.clock import SECOND, SystemClock
from taskmill.config import Settings
from taskmill.engine import Beat, Engine, Outcome
from taskmill.errors import StoreError, TaskmillError
from taskmill.maintenance import Maintenance
from taskmill.worker import funeral, logs
from taskmill.worker.channel import Message
from taskmill.worker.companion import Companion
from taskmill.worker.offspring import Offspring, worker_id
from taskmill.worker.process import LAST_PART, death, handlers_time, kill, let_go, within
from taskmill.worker.settings import Start, StoreSettings
from taskmill.worker.stats import Counted

__all__ = ["Supervisor"]

log = logging.getLogger("taskmill")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
LONGEST_PAUSE_ONCE_JOINED = 1.0
"""One that came so far was killed by a task, and the next must not wait for long."""
SETTLED = 10.0
"""Seconds after which a child counts as well begun: the next death is no crash loop."""
HARD_STOP = 1
LAST_REPORT = 0.5
"""Seconds that the store has for the last reports of a supervisor that is told to end."""
CLOSING = 30.0
FAREWELL = 0.15
"""Seconds for each part of this process to end."""


class Supervisor:
    """The parent of the processes that work for one app."""

    def __init__(
        self,
        target: str,
        *,
        queues: Sequence[str] = (),
        processes: int | None = None,
        maintenance: bool = True,
        env: dict[str, str] | None = None,
        info: dict[str, str] | None = None,
        log_level: str | None = None,
        ready: Callable[[Supervisor], Coroutine[Any, Any, None]] | None = None,
        companion: Companion | None = None,
    ) -> None:
        self._target = target
        self._queues = tuple(queues)
        self._processes = processes
        self._maintain = maintenance
        self._env = {**os.environ, **(env or {})}
        self._info = info or {}
        self._log_level = log_level
        self._ready = ready
        self._companion = companion
        self._store: StoreSettings | None = None
        self._clock = SystemClock()
        self._stop = asyncio.Event()
        self._hard = asyncio.Event()
        self._failure: tuple[str, int] | None = None
        self.children: list[Offspring] = []
        self.engine: Engine | None = None
        self.settings = Settings()
        self._watching: set[asyncio.Task[None]] = set()
        self.on_stats: Callable[[dict[str, Counted]], None] = lambda _: None
        self.on_metrics: Callable[[bytes], None] = lambda _: None
        """What children count at the seam of their engine, as `Metrics.take` gives it."""
        self.observe: Callable[[Engine], Engine] = lambda engine: engine
        """Metrics put themselves between this process and its store here."""
        self.turned_at = 0
        """When a round of beats last ended, answered or refused, on the monotonic clock."""
        self.crashes = 0

    async def run(self) -> int:
        """Until a signal; the exit code."""
        self._catch_signals()
        try:
            return await self._run()
        finally:
            for child in self.children:
                child.kill()
                await child.process.wait()
            if self.engine is not None:
                await within(FAREWELL if self.stopping else CLOSING, self.engine.close())
            self._ignore_signals()

    async def _run(self) -> int:
        first = await self._first_child()
        if first is None:
            return self._explain()
        if self._companion is not None:
            self._companion.listen(self.settings)
        async with asyncio.TaskGroup() as tasks:
            works = [self._beat()]
            if self._maintain and self.settings.maintenance:
                works.append(self._maintenance().run())
            if self._ready is not None:
                works.append(self._ready(self))
            loops = [tasks.create_task(let_go(work, FAREWELL)) for work in works]
            accompanying = [] if self._companion is None or self._store is None else [tasks.create_task(self._companion.run(self._store, self._env))]
            lives = [tasks.create_task(self._life(first)), *(tasks.create_task(self._life(None)) for _ in range(self.places - 1))]
            ending = tasks.create_task(self._end_on_signal())
            await asyncio.wait(lives)
            await asyncio.gather(*self._watching, *(accompanying if self.stopping else ()))
            for loop in (*loops, *accompanying, ending):
                loop.cancel()
        return HARD_STOP if self._hard.is_set() else 0

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def places(self) -> int:
        """How many children there should be."""
        return self._processes or self.settings.processes

    def _maintenance(self) -> Maintenance:
        assert self.engine is not None
        return Maintenance(self.engine, self.settings, worker_id())

    def _explain(self) -> int:
        """Why there never was a worker."""
        if self._failure is None:
            return 0  # stopped before it began
        message, code = self._failure
        log.error("%s", message)
        return code

    # Signals

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def _ignore_signals(self) -> None:
        """From now on this process ends by itself; one signal more, when the loop no longer hears it, must not end it in another way."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})

    def stop(self) -> None:
        """Drain; asked a second time, stop hard."""
        (self._hard if self._stop.is_set() else self._stop).set()

    async def _end_on_signal(self) -> None:
        await self._stop.wait()
        log.info("draining: running tasks have %d s", self.settings.grace_period // SECOND)
        for child in self.children:
            child.drain(self.settings.grace_period)
        if self._companion is not None:
            self._companion.drain()
        await self._asked_again((handlers_time(self.settings.grace_period) + LAST_PART) / SECOND - FAREWELL)
        for child in self.children:
            child.kill()
        if self._companion is not None:
            self._companion.kill()

    async def _asked_again(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hard.wait()

    # Children

    async def _first_child(self) -> Offspring | None:
        """The first one brings the app's settings; until it has, there is no store to speak of."""
        child = await self._spawn()
        hearing = asyncio.ensure_future(child.channel.hear())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({hearing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        message = hearing.result() if hearing.done() else None
        if message is not None and message.kind == "loaded":
            store = msgspec.json.decode(message.data, type=StoreSettings)
            self._store = store
            self.settings = store.settings
            logs.use(self.settings.log_format)
            self.engine = self.observe(store.engine())
            if await self._opened(self.engine):
                return child
        hearing.cancel()
        if not self._stop.is_set():
            failed = message is not None and message.kind == "failed"
            self._failure = (message.text, message.number or 1) if failed and message else (f"the worker did not start: {death(await child.process.wait())}", 1)
        child.kill()
        await child.process.wait()
        self.children.remove(child)
        child.close()
        return None

    async def _opened(self, engine: Engine) -> bool:
        """False when it was told to end before the store answered."""
        opening = asyncio.ensure_future(engine.open())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if opening.done():
            await opening
        return opening.done()

    async def _spawn(self) -> Offspring:
        start = Start(
            target=self._target, worker=worker_id(), queues=self._queues, info={**self._info, "pid": str(os.getpid())}, log_level=self._log_level,
        )  # fmt: skip
        child = await Offspring.spawn(start, self._env)
        self.children.append(child)
        return child

    async def _life(self, child: Offspring | None) -> None:
        """One place for a child: when it is vacated, by death or for a successor, another takes it, until the end."""
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            if child is None:
                child = await self._spawn()
            watching = asyncio.create_task(self._watch(child))
            self._watching.add(watching)
            watching.add_done_callback(self._watching.discard)
            await child.vacated.wait()
            if child.unwanted:
                return
            if child.draining or asyncio.get_running_loop().time() - child.began > SETTLED:
                pause = FIRST_PAUSE
            else:
                await self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE_ONCE_JOINED if child.joined else LONGEST_PAUSE)
            child = None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds * random.uniform(0.8, 1.2))

    async def _watch(self, child: Offspring) -> None:
        """From its first word until it is dead and buried."""
        child.channel.say(Message("go"))
        while (message := await child.channel.hear()) is not None:
            self._heard(child, message)
        code = await self._ended(child)
        if code != 0 and not (child.killed and self.stopping):
            self.crashes += 1
            log.warning("worker %s is gone: %s", child.worker, child.death(code))
        try:
            await self._bury(child, code)
        finally:
            self.children.remove(child)
            child.close()
            child.vacated.set()

    async def _ended(self, child: Offspring) -> int:
        """It let go of the channel, so it ends; if not, a handler closed its files, and nobody can speak to it any more."""
        try:
            return await asyncio.wait_for(child.process.wait(), self.settings.kill_after / SECOND)
        except TimeoutError:
            child.mute = True
            kill(child.process)
            return await child.process.wait()

    def _heard(self, child: Offspring, message: Message) -> None:
        match message.kind:
            case "joined":
                child.joined = True
                if self._stop.is_set():
                    child.drain(self.settings.grace_period)
            case "stats":
                counted = msgspec.json.decode(message.data, type=dict[str, Counted])
                child.ran += sum(sum(one.endings.values()) for one in counted.values())
                self.on_stats(counted)
            case "metrics":
                self.on_metrics(bytes(message.data))
            case "away":
                child.away = True
            case "unknown":
                child.drain(0)
            case "failed":
                log.error("a worker did not start: %s", message.text)

    async def _bury(self, child: Offspring, code: int) -> None:
        """Report what it held, and that it is gone."""
        leases = child.board.leases()
        if not child.joined or (child.away and self.stopping) or (code == 0 and not leases):
            return
        reporting = self._report(child, code, killed=child.killed)
        if self.stopping:
            await within(LAST_REPORT, reporting)
        else:
            with contextlib.suppress(TaskmillError):
                await reporting

    async def _report(self, child: Offspring, code: int, *, killed: bool) -> None:
        assert self.engine is not None
        outcomes = await funeral.outcomes(self.engine, child.worker, child.board.leases(), child.culprits, killed=killed, death=child.death(code))
        if outcomes:
            await self._finish(outcomes)
        await self.engine.leave(child.worker)

    async def _finish(self, outcomes: Sequence[Outcome]) -> None:
        """If the store stays away, its own recovery does the same, later."""
        assert self.engine is not None
        for _ in range(5):
            try:
                await self.engine.finish(outcomes)
                return
            except StoreError as error:
                log.warning("the store does not take %d reports, trying again: %s", len(outcomes), error)
                await asyncio.sleep(random.uniform(0.1, 0.5))

    # Beats

    async def _beat(self) -> None:
        """Each beat at its time, whatever the one before took."""
        loop = asyncio.get_running_loop()
        every = self.settings.beat / SECOND
        at = loop.time()
        while True:
            await asyncio.gather(*(self._beat_for(child) for child in self.children if child.joined))
            self.turned_at = self._clock.monotonic()
            at = max(at + every, loop.time())
            await asyncio.sleep(at - loop.time())

    async def _beat_for(self, child: Offspring) -> None:
        now = self._clock.monotonic()
        late = child.overdue(now)
        if late and not child.killed:
            log.warning("worker %s is killed: %d of its handlers did not end when asked", child.worker, len(late))
            child.kill(late)
            return
        answered, leases = child.leases(now)
        try:
            beat = await self._told(child, answered, [lease.token for lease in leases])
        except StoreError as error:
            log.warning("the store does not take the beat of %s: %s", child.worker, error)
            return
        # Whatever it is, the next beat may be taken, and without beats everything this child holds is lost.
        except Exception:
            log.exception("the beat of %s failed", child.worker)
            return
        self._pass_on(child, beat)
        self._recycle(child)

    async def _told(self, child: Offspring, answered: int, tokens: Sequence[int]) -> Beat:
        assert self.engine is not None
        return await self.engine.heartbeat(child.worker, answered, tokens)

    def _pass_on(self, child: Offspring, beat: Beat) -> None:
        if child.process.returncode is not None:
            return
        if not beat.known:
            if not child.draining:
                log.warning("worker %s was silent for too long and has lost its leases; a new one takes its place", child.worker)
                child.channel.say(Message("lost", tokens=beat.lost))
                child.drain(self.settings.kill_after)
            return
        if beat.lost:
            child.channel.say(Message("lost", tokens=beat.lost))
        if beat.cancelled:
            child.channel.say(Message("cancel", ids=beat.cancelled))
        self._command(child, beat.commands[-1] if beat.commands else None)

    def _command(self, child: Offspring, command: str | None) -> None:
        if command == child.command or child.draining:
            return
        child.command = command
        if command == "stop":
            child.unwanted = True
            child.drain(self.settings.grace_period)
        else:
            child.channel.say(Message(command or "resume"))

    def _recycle(self, child: Offspring) -> None:
        """A child that has done its share, or grown too large, lets run what runs and is replaced."""
        most, memory = self.settings.max_tasks, self.settings.max_memory
        if not child.draining and ((most and child.ran >= most) or (memory and child.memory() >= memory)):
            log.info("worker %s is recycled", child.worker)
            child.drain(None)
