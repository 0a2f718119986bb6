"""The worker of a test: it runs what is ready, one attempt after the other in the order of claiming, and lets time pass when it is told to.

    expired, fired, claimed ──▶ attempt ──▶ finished ──▶ claimed … until nothing is ready
    the next moment at which anything is due ──▶ the clock goes there ──▶ the same again

The claim, the attempt (`worker.attempt`) and the finish are those of a real worker. A finish and the next claim go to the store together.

A handler that waits for another task's result waits for what this worker alone would run; so whoever waits, runs (`Recorder.wait`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from taskmill.clock import DAY, ManualClock, rfc3339
from taskmill.engine import Claim, Claimed, Ending, Engine, Outcome, Room
from taskmill.errors import TaskmillError
from taskmill.maintenance.schedules import Schedules
from taskmill.task import ErrorInfo
from taskmill.testing.recorder import Recorder
from taskmill.testing.submissions import Noted, Submission, submission_of
from taskmill.worker.attempt import CANCELLED, STOPPING, Running, attempt_async, attempt_sync, failed, no_copy, unbegun

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.tasks import TaskType

__all__ = ["FOR_EVER", "Leaving", "Ran", "Worker"]

NAME = "testing"
FOR_EVER = 36_600 * DAY
"""Nobody beats here, and no term ends: time passes in leaps."""
CHANCE = 0.5
"""The middle of the jitter: a retry comes after exactly its delay."""
MOST_MOMENTS = 1_000_000
_ONE = Room(1)
_within: ContextVar[Tested | None] = ContextVar("taskmill_test_within", default=None)


@dataclass(frozen=True)
class Ran:
    """One attempt that ran: how it ended, and what its handler returned or raised."""

    id: str
    type: str
    attempt: int
    arguments: Any
    ending: Ending
    """completed, retry, dead, snoozed, …"""
    result: Any = None
    error: BaseException | None = None
    at: int = field(default=0, repr=False)
    """When it ran, in microseconds since 1970."""
    info: ErrorInfo | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.type} {self.id}, attempt {self.attempt} at {rfc3339(self.at)}: {self.ending}" + (f", {self.error!r}" if self.error is not None else "")


class Leaving(Exception):
    """What a handler raised to leave the process. As itself it would tear down the event loop that it is raised on."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"a handler raised {error!r}")
        self.error = error


class Tested(Running):
    """An attempt whose exception is kept for the test, whose retries have no jitter, and whose every progress is written."""

    __slots__ = ("error", "outcome")

    def __init__(self, claimed: Claimed, declared: TaskType[..., Any, Any], received: int) -> None:
        super().__init__(claimed, declared, received, asyncio.get_running_loop())
        self.error: BaseException | None = None
        self.outcome: Outcome | None = None
        self.started = received
        self.deadline = received + claimed.timeout

    @property
    def written_at(self) -> int:
        """By a clock that stands still, the second progress of an attempt would wait for ever."""
        return 0

    @written_at.setter
    def written_at(self, at: int) -> None:
        pass

    def judge(self, error: BaseException) -> Outcome:
        outcome = failed(self, error, lambda: CHANCE)
        if outcome.error is not None:
            self.error = error
        return outcome

    def ask(self, reason: str) -> None:
        """As a worker asks its handler to end."""
        self.reason = self.reason or reason
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


class Worker:
    """Runs the tasks of one test."""

    def __init__(self, app: App, engine: Engine, clock: ManualClock, *, raise_errors: bool, lifespan: bool, most: int) -> None:
        self.app = app
        self.clock = clock
        self.recorder = Recorder(engine, self._work_for, self._ask)
        self.engine = cast("Engine", self.recorder)
        self.schedules = Schedules(self.engine, NAME, beat=FOR_EVER, read_every=FOR_EVER)
        self.raise_errors = raise_errors
        self.most = most
        self.ran: list[Ran] = []
        self.started = not lifespan
        self._joined: tuple[object, ...] = ()
        self._queues: tuple[str, ...] = ()
        self._request = 0
        self._next_at: int | None = None
        self._held: dict[str, Tested] = {}
        self._active = 0
        self._news = asyncio.Event()

    # A moment

    async def drain(self, threads: Executor | None = None) -> list[Ran]:
        """Everything that is ready by the present clock, and what that makes ready."""
        await self.prepare()
        await self.recorder.expire()
        await self._fire()
        return await self._run(threads)

    async def prepare(self) -> None:
        """What the app declares is known to the store, also what it declared a moment ago."""
        app = self.app
        declared = (*app.types, None, *app.schedules, None, *app.limits)
        if declared != self._joined:
            joining = app.joining(NAME, lease=FOR_EVER)
            await self.engine.join(joining)
            self._joined, self._queues = declared, joining.queues
            await self._fire()

    async def _fire(self) -> None:
        due_at = self.schedules.due_at()
        if self.recorder.changed:
            self.schedules.forget()
            self.recorder.changed = False
        elif due_at is None or due_at > self.clock.now():
            return
        await self.schedules.fire_due()

    async def _run(self, threads: Executor | None, done: Callable[[], bool] = lambda: False) -> list[Ran]:
        ran: list[Ran] = []
        claim = await self._claim()
        while claim.tasks or claim.more:
            if not claim.tasks:
                claim = await self._claim()
                continue
            [claimed] = claim.tasks
            if len(ran) >= self.most or (ran and done()):
                await self.engine.finish([unbegun(self._running(claimed), Ending.RELEASED)])
                if done():
                    break
                raise _endless(ran)
            one, claim = await self._one(claimed, threads)
            ran.append(one)
            await self._tell(one, claim)
        self._next_at = claim.next_at
        return ran

    async def _claim(self) -> Claim:
        self._request += 1
        queues = dict.fromkeys((*self._queues, *self.recorder.queues))
        return await self.engine.claim(NAME, self._request, tuple(queues), _ONE)

    async def _tell(self, one: Ran, claim: Claim) -> None:
        """Ctrl-C, and what a test framework raises to end a test, are not for the handler's record alone."""
        error = one.error
        if error is None or isinstance(error, (GeneratorExit, asyncio.CancelledError)):
            return
        if self.raise_errors or isinstance(error, Leaving) or not isinstance(error, (Exception, SystemExit)):
            await self._give_back(claim)
            raise Leaving(error) if isinstance(error, (KeyboardInterrupt, SystemExit)) else error

    async def _give_back(self, claim: Claim) -> None:
        if claim.tasks:
            await self.engine.finish([unbegun(self._running(claimed), Ending.RELEASED) for claimed in claim.tasks])

    # An attempt

    def _running(self, claimed: Claimed) -> Tested:
        return Tested(claimed, self.app.types[claimed.type], self.clock.monotonic())

    async def _one(self, claimed: Claimed, threads: Executor | None) -> tuple[Ran, Claim]:
        if not self.started:
            self.started = True
            await self.app.start()
        running = self._running(claimed)
        self._held[claimed.id] = running
        self._active += 1
        try:
            outcome = await self._attempt(running, threads)
        finally:
            self._active -= 1
            del self._held[claimed.id]
        outcome, claim = await asyncio.gather(self._finish(outcome), self._claim() if running.reason != STOPPING else _nothing())
        self._news.set()
        self._news = asyncio.Event()
        one = self._note(running, outcome)
        if running.reason == STOPPING:
            raise asyncio.CancelledError
        return one, claim

    async def _attempt(self, running: Tested, threads: Executor | None) -> Outcome:
        """To its end, also when the test is told to stop meanwhile: then the handler is asked to end, and its task released."""
        no_copy()
        token = _within.set(running)
        loop = asyncio.get_running_loop()
        if running.declared.is_async:
            running.task = loop.create_task(_on_loop(self.app, running))
            work: asyncio.Future[None] = running.task
        else:
            work = loop.run_in_executor(threads, copy_context().run, _in_thread, self.app, running)
        _within.reset(token)
        while not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                running.ask(STOPPING)
        return running.outcome or unbegun(running, Ending.CANCELLED if running.reason == CANCELLED else Ending.RELEASED)

    async def _finish(self, outcome: Outcome) -> Outcome:
        try:
            finished = await self.engine.finish([outcome])
            if outcome.task in finished.instead:
                outcome = replace(outcome, ending=Ending.CANCELLED)
        except TaskmillError as error:  # as a worker does it: what cannot be written makes the task dead
            outcome = Outcome(
                task=outcome.task, worker=outcome.worker, token=outcome.token, ending=Ending.DEAD, error=ErrorInfo(error.code, error.message),
                started_after=outcome.started_after,
            )  # fmt: skip
            await self.engine.finish([outcome])
        return outcome

    def _note(self, running: Tested, outcome: Outcome) -> Ran:
        claimed, declared = running.claimed, running.declared
        found = self.recorder.submitted.get(claimed.id)
        arguments = {} if found is None else submission_of(found, declared).arguments
        result = None if outcome.result is None else declared.binding.returned(outcome.result)
        one = Ran(claimed.id, claimed.type, claimed.attempt, arguments, outcome.ending, result, running.error, self.clock.now(), outcome.error)
        self.ran.append(one)
        return one

    def _ask(self, ids: Iterable[str]) -> None:
        """What a beat would tell: somebody cancelled these while they run."""
        for id in ids:
            if id in self._held:
                self._held[id].ask(CANCELLED)

    # Somebody waits

    async def _work_for(self, ids: Sequence[str]) -> None:
        """Run what is ready until one of these has ended, or nothing is left that could end it."""
        inside = _within.get()
        self._active -= inside is not None
        try:
            while not await self.recorder.ended(ids):
                news = self._news
                if not await self._some(ids):
                    if self._active <= 0:
                        return
                    await news.wait()
        finally:
            self._active += inside is not None

    async def _some(self, ids: Sequence[str]) -> bool:
        await self.prepare()
        await self.recorder.expire()
        await self._fire()
        wanted = frozenset(ids)
        before = len(self.ran)
        return bool(await self._run(None, lambda: any(one.id in wanted for one in self.ran[before:])))

    # Time

    async def run_until(self, until: int, threads: Executor | None = None) -> list[Ran]:
        """From due moment to due moment, each at its own time."""
        ran = await self.drain(threads)
        for _ in range(MOST_MOMENTS):
            at = self._due_at()
            if at is None or at > until:
                self._move_to(until)
                return ran
            self._move_to(at)
            ran += await self.drain(threads)
        raise TaskmillError(f"{MOST_MOMENTS:,} moments were due and there are still more", code="endless", hint="let less time pass, or fire less often")

    def _due_at(self) -> int | None:
        now = self.clock.now()
        times = (self._next_at, self.schedules.due_at(), self.recorder.expires_at())
        return min((time for time in times if time is not None and time > now), default=None)

    def _move_to(self, at: int) -> None:
        self.clock.advance(timedelta(microseconds=max(0, at - self.clock.now())))

    # What was submitted

    def submissions(self) -> list[Submission]:
        return [self._submission(noted) for noted in self.recorder.submitted.values()]

    def _submission(self, noted: Noted) -> Submission:
        return submission_of(noted, self.app.types.get(noted.new.type))


async def _on_loop(app: App, running: Tested) -> None:
    running.outcome = await attempt_async(app, running)


def _in_thread(app: App, running: Tested) -> None:
    running.outcome = attempt_sync(app, running)


async def _nothing() -> Claim:
    return Claim(())


def _endless(ran: Sequence[Ran]) -> TaskmillError:
    counted = ", ".join(f"{type} {number:,} times" for type, number in Counter(one.type for one in ran).most_common(3))
    return TaskmillError(
        f"{len(ran):,} attempts ran without the clock moving and there is still work ({counted})",
        code="endless",
        hint="a task that submits itself again never ends; if this much is right, under_test(app, most=…)",
    )
