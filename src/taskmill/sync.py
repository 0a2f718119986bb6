"""The one door for synchronous callers: every awaitable verb, blocking, behind `.sync`.

Nothing is written twice. A verb behind the door runs the awaitable one on the loop that the app was opened in, if that runs in another
thread, or else on a loop of the app's own in the background, and waits for its end.

Inside a running loop a blocking verb would stop the very loop it waits for, so it raises and names its awaitable twin; without a loop
the awaitable verbs raise and name this door.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from taskmill.clock import DurationLike
from taskmill.errors import InvalidInput
from taskmill.task import Progress, State, Task

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.context import Context
    from taskmill.handle import Handle
    from taskmill.tasks import Call, TaskType

__all__ = ["Door", "SyncApp", "SyncContext", "SyncHandle", "SyncTask", "check_blocking", "check_loop"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def check_loop(verb: str) -> asyncio.AbstractEventLoop:
    """The running loop; without one, an awaitable verb is of no use."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        blocking = verb.replace(".submit", ".sync.submit") if ".submit" in verb else _twin(verb)
        raise InvalidInput(
            f"{verb} must be awaited in a running event loop, and there is none here", code="no_loop", hint=f"from plain functions call {blocking}"
        ) from None


def _twin(verb: str) -> str:
    front, dot, back = verb.rpartition(".")
    return f"{front}{dot}sync.{back}"


def check_blocking(verb: str) -> None:
    """Refuse to block the loop that would have to answer."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(
        f"{verb} blocks, and an event loop runs in this thread", code="running_loop", hint=f"in async functions write: await {verb.replace('.sync.', '.')}"
    )


class Door:
    """Runs coroutines for callers without a loop."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]], home: asyncio.AbstractEventLoop | None = None) -> T:
        """The end of what `make` makes, on the loop `home` if it runs, else on the door's own."""
        check_blocking(verb)
        loop = home if home is not None and home.is_running() else self._own()
        future = asyncio.run_coroutine_threadsafe(_made(make), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C here ends it there; one that has ended is left as it is
            raise

    def _own(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="taskmill-sync", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Ends the door's own loop; it begins anew when it is needed."""
        with self._guard:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or thread is threading.current_thread():
            return
        if thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        loop.close()


async def _made(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Made on the loop itself, where the awaitable verbs want to be called."""
    return await make()


class SyncHandle(Generic[R]):
    """A handle whose verbs block."""

    __slots__ = ("_app", "_handle", "id", "type")

    def __init__(self, app: App, handle: Handle[R]) -> None:
        self._app = app
        self._handle = handle
        self.id = handle.id
        self.type = handle.type

    def __repr__(self) -> str:
        return f"<SyncHandle {self.type or 'task'} {self.id}>"

    def status(self) -> State:
        return self._app.block("handle.sync.status()", self._handle.status)

    def task(self) -> Task:
        return self._app.block("handle.sync.task()", self._handle.task)

    def progress(self) -> Progress | None:
        return self._app.block("handle.sync.progress()", self._handle.progress)

    def wait(self, timeout: DurationLike | None = None) -> State | None:
        return self._app.block("handle.sync.wait()", lambda: self._handle.wait(timeout))

    def result(self, timeout: DurationLike | None = None) -> R:
        return self._app.block("handle.sync.result()", lambda: self._handle.result(timeout))

    def cancel(self) -> bool:
        return self._app.block("handle.sync.cancel()", self._handle.cancel)


class SyncTask(Generic[P, R]):
    """A task type, with or without options, whose submit blocks."""

    __slots__ = ("_app", "_call", "_name")

    def __init__(self, name: str, call: Callable[P, Call[R]], app: Callable[[], App]) -> None:
        self._name = name
        self._call = call
        self._app = app

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Submit it and wait until the store has it."""
        check_blocking(f"{self._name}.sync.submit()")
        return self._app().sync.submit(self._call(*args, **kwargs))


class SyncApp:
    """The app's own verbs, blocking."""

    __slots__ = ("_app",)

    def __init__(self, app: App) -> None:
        self._app = app

    def open(self) -> None:
        self._app.block("app.sync.open()", self._app.open)

    def close(self) -> None:
        self._app.block("app.sync.close()", self._app.close)
        self._app.door.close()

    @overload
    def submit(self, task: Call[R], /) -> SyncHandle[R]: ...
    @overload
    def submit(self, task: TaskType[..., R, Any], payload: object = None, /, **options: Any) -> SyncHandle[R]: ...
    @overload
    def submit(self, task: str, payload: object = None, /, **options: Any) -> SyncHandle[Any]: ...
    def submit(self, task: Call[Any] | TaskType[..., Any, Any] | str, payload: object = None, /, **options: Any) -> SyncHandle[Any]:
        call = self._app.call_with(task, payload, options)
        return SyncHandle(self._app, self._app.block("app.sync.submit()", lambda: self._app.submit_call(call)))

    def submit_many(self, calls: Iterable[Call[R]]) -> list[SyncHandle[R]]:
        handles = self._app.block("app.sync.submit_many()", lambda: self._app.submit_calls(calls))
        return [SyncHandle(self._app, handle) for handle in handles]

    def handle(self, id: str) -> SyncHandle[Any]:
        return SyncHandle(self._app, self._app.handle(id))


class SyncContext:
    """What a handler that is a plain function does with its context."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def progress(self, value: float, message: str = "") -> None:
        self._block("ctx.sync.progress()", lambda: self._ctx.progress(value, message))

    def checkpoint(self, name: str, value: object = None) -> None:
        self._block("ctx.sync.checkpoint()", lambda: self._ctx.checkpoint(name, value))

    @overload
    def submit(self, task: TaskType[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def submit(self, task: Call[R], /) -> SyncHandle[R]: ...
    @overload
    def submit(self, task: str, payload: object = None, /) -> SyncHandle[Any]: ...
    def submit(self, task: TaskType[..., Any, Any] | Call[Any] | str, /, *args: Any, **kwargs: Any) -> SyncHandle[Any]:
        app = self._ctx.app
        call = self._ctx.child(app.call_of(task, *args, **kwargs))
        return SyncHandle(app, self._block("ctx.sync.submit()", lambda: app.submit_call(call)))

    def _block(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._ctx.app.door.run(verb, make, self._ctx.run.loop or self._ctx.app.home)
