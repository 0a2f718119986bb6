"""`under_test(app)`: what a test holds in its hands."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from taskmill import codec
from taskmill.clock import DurationLike, ManualClock, duration, instant
from taskmill.engine import Durability, Engine
from taskmill.engines import create
from taskmill.errors import InvalidInput
from taskmill.sync import check_blocking
from taskmill.task import Task, check_name
from taskmill.testing.running import FOR_EVER, Leaving, Ran, Worker
from taskmill.testing.submissions import Expectation, Expected, Submission, explain

if TYPE_CHECKING:
    from taskmill.app import App

__all__ = ["SyncUnderTest", "UnderTest", "under_test"]

T = TypeVar("T")
START = "2030-01-01T00:00:00Z"
"""A Tuesday. Tests begin at the same time every day, so that none fails on the 29th of February only."""
MOST = 1_000


class Identified(Protocol):
    """A handle, a submission, an attempt: whatever has a task's id."""

    @property
    def id(self) -> str: ...


def under_test(
    app: App,
    *,
    now: str | int | dt.datetime = START,
    raise_errors: bool = False,
    lifespan: bool = True,
    elsewhere: tuple[str, ...] = (),
    most: int = MOST,
) -> UnderTest:
    """The app on a store of its own in memory, by a clock that stands still at `now`, until the block ends.

    raise_errors    what a handler raises comes out of `drain`, instead of being recorded alone
    lifespan        whether the app's hooks of `on_start` and `on_stop` run, before the first task and at the end
    elsewhere       types that live in another program: they can be submitted by name, and nothing runs them
    most            attempts that `drain` runs without the clock moving, before it says that this never ends
    """
    return UnderTest(app, ManualClock(instant(now, field="now")), raise_errors=raise_errors, lifespan=lifespan, elsewhere=elsewhere, most=most)


class UnderTest:
    """An app under test: `async with under_test(app) as test:`, or `with under_test(app) as test:` and its `sync` side."""

    def __init__(self, app: App, clock: ManualClock, *, raise_errors: bool, lifespan: bool, elsewhere: tuple[str, ...], most: int) -> None:
        self.app = app
        self.clock = clock
        self._elsewhere = [check_name(name, "elsewhere") for name in elsewhere]
        self._options: dict[str, Any] = {"raise_errors": raise_errors, "lifespan": lifespan, "most": most}
        self._lifespan = lifespan
        self._engine: Engine | None = None
        self._worker: Worker | None = None
        self._put_back: Callable[[], None] | None = None

    # Coming and going

    def begin(self) -> None:
        """From now on the app opens the store of this test, at its next use."""
        if self._put_back is not None:
            raise InvalidInput("this test has begun already", code="nested", hint="make another: under_test(app)")
        self._put_back = self.app.stand_in(self.clock, self._connect)

    async def _connect(self) -> Engine:
        """Opened once: what closes the app under test, and opens it again, finds its tasks."""
        if self._worker is None:
            engine = create("sqlite://:memory:", clock=self.clock, durability=Durability.LOCAL, term=FOR_EVER)
            await engine.open()
            self._engine = engine
            self._worker = Worker(self.app, engine, self.clock, **self._options)
            for name in self._elsewhere:
                await engine.put("type", name, b"{}", operator=False)
            await self._worker.prepare()
        return self._worker.engine

    async def _close(self) -> None:
        engine, worker = self._engine, self._worker
        self._engine = None
        try:
            if self._lifespan and worker is not None and worker.started:
                await self.app.stop()
        finally:
            await self.app.close()
            if engine is not None:
                await engine.close()

    def _end(self) -> None:
        put_back, self._put_back = self._put_back, None
        if put_back is not None:
            self.app.door.close()
            put_back()

    async def aclose(self) -> None:
        """The app has its own store again. A second call does nothing."""
        if self._put_back is not None:
            try:
                home = self.app.home
                if home is None or home is asyncio.get_running_loop():
                    await self._close()
                else:
                    await asyncio.to_thread(self.app.door.run, "test.sync.close()", self._close, home)
            finally:
                self._end()

    def close(self) -> None:
        """The same for callers without a loop; also when the loop that the test ran on is gone."""
        if self._put_back is not None:
            try:
                self.app.door.run("test.sync.close()", self._close, self.app.home)
            finally:
                self._end()

    async def __aenter__(self) -> Self:
        self.begin()
        try:
            await self.app.open()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        _check_plain()
        self.begin()
        try:
            self.app.sync.open()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # Running

    def drain(self) -> Coroutine[Any, Any, list[Ran]]:
        """Run everything that is ready, and what that makes ready, until nothing is; the clock stands still. The attempts, in their order."""
        return _out(self.app.at_home("test.drain()", lambda: self._at_work().drain()))

    def advance(self, by: DurationLike) -> Coroutine[Any, Any, list[Ran]]:
        """Let time pass: whatever is due on the way, schedules, retries, delays, runs at its own time. The attempts, in their order."""
        micros = duration(by, field="advance")
        return _out(self.app.at_home("test.advance()", lambda: self._at_work().run_until(self.clock.now() + micros)))

    def run_until(self, time: str | int | dt.datetime) -> Coroutine[Any, Any, list[Ran]]:
        """The same up to an instant, for example "2030-02-01T09:00:00Z"; one that has passed is like `drain`."""
        until = instant(time, field="run_until")
        return _out(self.app.at_home("test.run_until()", lambda: self._at_work().run_until(until)))

    @property
    def raise_errors(self) -> bool:
        """Whether what a handler raises comes out of `drain`; may be set at any time."""
        return bool(self._options["raise_errors"])

    @raise_errors.setter
    def raise_errors(self, raised: bool) -> None:
        self._options["raise_errors"] = raised
        if self._worker is not None:
            self._worker.raise_errors = raised

    @property
    def ran(self) -> list[Ran]:
        """Every attempt so far, in order."""
        return [] if self._worker is None else list(self._worker.ran)

    @property
    def failures(self) -> list[Ran]:
        """Those whose handler raised, whether they are tried again or not."""
        return [one for one in self.ran if one.error is not None]

    # Looking

    def submitted(self, what: Expectation | None = None, /, *args: Any, **arguments: Any) -> list[Submission]:
        """What was submitted, by tests, handlers and schedules, in order: all, or those of a type, perhaps with these arguments or options."""
        found = [] if self._worker is None else self._worker.submissions()
        if what is None:
            return found
        expected = Expected(what, args, arguments)
        return [each for each in found if not expected.differences(each)]

    def assert_submitted(self, what: Expectation, /, *args: Any, **arguments: Any) -> Submission:
        """Such a task was submitted; the first of them. Arguments that are not named may have any value."""
        __tracebackhide__ = True
        found = self.submitted(what, *args, **arguments)
        if not found:
            raise AssertionError(explain(Expected(what, args, arguments), self.submitted()))
        return found[0]

    def assert_not_submitted(self, what: Expectation, /, *args: Any, **arguments: Any) -> None:
        """No such task was submitted."""
        __tracebackhide__ = True
        found = self.submitted(what, *args, **arguments)
        if found:
            shown = "".join(f"\n  {each}" for each in found[:20])
            raise AssertionError(f"{len(found)} submitted as {Expected(what, args, arguments)}:{shown}")

    def task(self, of: Identified | str) -> Coroutine[Any, Any, Task]:
        """The record of a task as it is now, by its handle, its submission or its id."""
        return self.app.at_home("test.task()", lambda: self.app.operations.get(_id(of)))

    def signal(self, of: Identified | str, name: str, data: object = None) -> Coroutine[Any, Any, int]:
        """Send a task a signal."""
        value = codec.encode(data, field="signal")
        return self.app.at_home("test.signal()", lambda: self.app.operations.signal(_id(of), name, value))

    @property
    def sync(self) -> SyncUnderTest:
        """The awaitable verbs, blocking, for tests that are plain functions."""
        return SyncUnderTest(self)

    def _at_work(self) -> Worker:
        if self._worker is None or self._put_back is None:
            raise _not_begun()
        return self._worker


class SyncUnderTest:
    """The same for tests without an event loop. Handlers that are plain functions run on the thread of the test."""

    def __init__(self, test: UnderTest) -> None:
        self._test = test

    def drain(self) -> list[Ran]:
        return self._here("test.sync.drain()", lambda worker, threads: worker.drain(threads))

    def advance(self, by: DurationLike) -> list[Ran]:
        micros = duration(by, field="advance")
        return self._here("test.sync.advance()", lambda worker, threads: worker.run_until(worker.clock.now() + micros, threads))

    def run_until(self, time: str | int | dt.datetime) -> list[Ran]:
        until = instant(time, field="run_until")
        return self._here("test.sync.run_until()", lambda worker, threads: worker.run_until(until, threads))

    def task(self, of: Identified | str) -> Task:
        return self._test.app.block("test.sync.task()", lambda: self._test.task(of))

    def signal(self, of: Identified | str, name: str, data: object = None) -> int:
        return self._test.app.block("test.sync.signal()", lambda: self._test.signal(of, name, data))

    def _here(self, verb: str, make: Callable[[Worker, Executor], Coroutine[Any, Any, T]]) -> T:
        check_blocking(verb)
        app = self._test.app
        app.sync.open()
        worker, home, here = self._test._at_work(), app.home, Here()
        assert home is not None
        return here.work(asyncio.run_coroutine_threadsafe(make(worker, here), home))


class Here(Executor):
    """The thread of the test itself, while it blocks: connections and transactions that belong to this thread are there for handlers too."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # the edge of the thread: whoever waits is told
                future.set_exception(error)

        self._calls.put(call)
        return future

    def work(self, until: Future[T]) -> T:
        """Do what is asked for until the drain has ended, whose end this is."""
        until.add_done_callback(lambda _: self._calls.put(None))
        try:
            while (call := self._calls.get()) is not None:
                call()
            return until.result()
        except Leaving as leaving:
            raise leaving.error from None
        except BaseException:
            until.cancel()  # Ctrl-C here ends it there
            raise


async def _out(running: Coroutine[Any, Any, T]) -> T:
    try:
        return await running
    except Leaving as leaving:
        raise leaving.error from None


def _id(of: Identified | str) -> str:
    return of if isinstance(of, str) else of.id


def _check_plain() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput("an event loop runs here", code="running_loop", hint="in async tests write: async with under_test(app) as test")


def _not_begun() -> InvalidInput:
    return InvalidInput("the test has not begun, or is over", code="not_open", hint="use it as `async with under_test(app) as test:`")
