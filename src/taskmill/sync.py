"""The one door for synchronous callers: every awaitable verb, blocking, behind `.sync`.

Nothing is written twice. A verb behind the door runs the awaitable one on the loop that the app was opened in, if that runs in another
thread, or else on a loop of the app's own in the background, and waits for its end.

Inside a running loop a blocking verb would stop the very loop it waits for, so it raises and names its awaitable twin; without a loop
the awaitable verbs raise and name this door.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar, Token, copy_context
from itertools import chain
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from taskmill.clock import DurationLike
from taskmill.errors import InvalidInput
from taskmill.task import Progress, State, Task

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.context import Context
    from taskmill.engine import Transaction
    from taskmill.handle import Cancelled, Handle
    from taskmill.submitting import Submitter
    from taskmill.tasks import Call, TaskType

__all__ = ["Door", "SyncApp", "SyncContext", "SyncHandle", "SyncSubmitter", "SyncTask", "SyncTransaction", "check_blocking", "check_loop", "run_here"]

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


def run_here(verb: str, coroutine: Coroutine[Any, Any, T]) -> T:
    """The end of a coroutine that never waits, because what it does blocks: on this thread, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    coroutine.close()
    raise InvalidInput(
        f"{verb} blocks, and the connection of its transaction is one that is awaited", code="running_loop", field="tx",
        hint=f"write: await {verb.replace('.sync.', '.')}, or use a blocking connection",
    )  # fmt: skip


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
        errand = _Errand(loop, make)
        try:
            return errand.done()
        except BaseException:
            errand.cancel()  # Ctrl-C here ends it there; one that has ended is left as it is
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


class _Errand(Generic[T]):
    """Something that another thread's loop does for this one, which waits in C.

    A future of `concurrent.futures` waits behind a lock in Python: a signal that meets it in the wrong instruction leaves that locked, and whoever touches the
    future afterwards, the loop among them, stands still for good.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._make = make
        self._ended: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        self._task: asyncio.Task[T] | None = None
        self._wanted = True

    def done(self) -> T:
        self._loop.call_soon_threadsafe(self._begin)
        return self._ended.get().result()

    def cancel(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._give_up)

    def _begin(self) -> None:
        if self._wanted:
            self._task = self._loop.create_task(_made(self._make))
            self._task.add_done_callback(self._ended.put)

    def _give_up(self) -> None:
        self._wanted = False
        if self._task is not None:
            self._task.cancel()


async def _made(make: Callable[[], Awaitable[T]]) -> T:
    """Made on the loop itself, where the awaitable verbs want to be called."""
    return await make()


class Block(Protocol):
    """Waits for the end of what is made, on the loop of the store."""

    def __call__(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]], /) -> T: ...


class SyncTransaction:
    """A transaction of the store for plain functions: `with … as tx`. It begins and ends on the loop of the store; its statements go there where their answer
    is awaited, and run here where it is not."""

    def __init__(self, verb: str, make: Callable[[], AbstractAsyncContextManager[Any]], block: Block) -> None:
        self._verb = verb
        self._make = make
        self._block = block

    def __enter__(self) -> Self:
        check_blocking(self._verb)
        self._context = copy_context()
        self._manager = self._make()
        self.inner: Transaction = self._await(self._manager.__aenter__)
        self._standing = self._stand_inside()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for variable, token in self._standing:
            variable.reset(token)
        self._await(lambda: self._manager.__aexit__(kind, error, traceback))

    def execute(self, statement: str, bindings: Any = None) -> Any:
        """A statement of your own; its rows."""
        return self._answer(self.inner.execute(statement, bindings))

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> Any:
        """The same statement for each of these rows of bindings."""
        return self._answer(self.inner.executemany(statement, rows))

    def _answer(self, answer: Any) -> Any:
        return self._await(lambda: answer) if inspect.iscoroutine(answer) else answer

    def _await(self, make: Callable[[], Awaitable[T]]) -> T:
        """All of it in one context, as in the coroutine that it stands for: what the engine notes there at the beginning it finds at the end."""

        async def within() -> T:
            return await asyncio.get_running_loop().create_task(_made(make), context=self._context)

        return self._block(self._verb, within)

    def _stand_inside(self) -> list[tuple[ContextVar[Any], Token[Any]]]:
        """Whoever stands in the transaction knows it: so does this thread, and what it calls."""
        here = copy_context()
        return [(variable, variable.set(value)) for variable, value in self._context.items() if here.get(variable, self) is not value]


class SyncHandle(Generic[R]):
    """A handle whose verbs block."""

    __slots__ = ("_app", "_handle", "id", "type")

    def __init__(self, app: Submitter[Any], handle: Handle[R]) -> None:
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

    def cancel(self) -> Cancelled:
        return self._app.block("handle.sync.cancel()", self._handle.cancel)


class SyncTask(Generic[P, R]):
    """A task type, with or without options, whose submit blocks."""

    __slots__ = ("_app", "_call", "_name")

    def __init__(self, name: str, call: Callable[P, Call[R]], app: Callable[[], Submitter[Any]]) -> None:
        self._name = name
        self._call = call
        self._app = app

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[R]:
        """Submit it and wait until the store has it."""
        check_blocking(f"{self._name}.sync.submit()")
        return self._app().sync.submit(self._call(*args, **kwargs))


class SyncSubmitter:
    """The verbs of an app or a client, blocking."""

    __slots__ = ("_app",)

    def __init__(self, app: Submitter[Any]) -> None:
        self._app = app

    def _verb(self, name: str) -> str:
        return f"{self._app.word}.sync.{name}()"

    def open(self) -> None:
        self._app.block(self._verb("open"), self._app.open)

    def close(self) -> None:
        self._app.block(self._verb("close"), self._app.close)
        self._app.door.close()

    @overload
    def submit(self, task: Call[R], /) -> SyncHandle[R]: ...
    @overload
    def submit(self, task: TaskType[..., R, Any], payload: object = None, /, **options: Any) -> SyncHandle[R]: ...
    @overload
    def submit(self, task: str, payload: object = None, /, **options: Any) -> SyncHandle[Any]: ...
    def submit(self, task: Call[Any] | TaskType[..., Any, Any] | str, payload: object = None, /, **options: Any) -> SyncHandle[Any]:
        return _submitted(self._app, self._verb("submit"), self._app.call_with(task, payload, options), self._app.block)

    def unseal(self, *tasks: str | Handle[Any] | SyncHandle[Any]) -> None:
        self._app.block(self._verb("unseal"), lambda: self._app.unseal(*(task if isinstance(task, str) else task.id for task in tasks)))

    def submit_many(self, calls: Iterable[Call[R]]) -> list[SyncHandle[R]]:
        verb = self._verb("submit_many")
        check_blocking(verb)
        waiting = iter(calls)
        first = next(waiting, None)
        if first is None:
            return []
        many = (_inner(call) for call in chain([first], waiting))
        handles = _block_of(self._app, first.tx, self._app.block)(verb, lambda: self._app.submit_calls(many))
        return [SyncHandle(self._app, handle) for handle in handles]

    def handle(self, id: str) -> SyncHandle[Any]:
        return SyncHandle(self._app, self._app.handle(id))


class SyncApp(SyncSubmitter):
    """The app's own verbs, blocking."""

    __slots__ = ()
    _app: App

    def transaction(self) -> SyncTransaction:
        return SyncTransaction("app.sync.transaction()", self._app.transaction, self._app.block)

    def inbox(self, tx: Any, source: str, message_id: str) -> bool:
        inner = tx.inner if isinstance(tx, SyncTransaction) else tx
        return _block_of(self._app, tx, self._app.block)("app.sync.inbox()", lambda: self._app.inbox(inner, source, message_id))


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
        return _submitted(app, "ctx.sync.submit()", self._ctx.child(app.call_of(task, *args, **kwargs)), self._block)

    def transaction(self) -> SyncTransaction:
        return SyncTransaction("ctx.sync.transaction()", self._ctx.transaction, self._block)

    def complete_in(self, tx: Any, value: object = None) -> None:
        inner = tx.inner if isinstance(tx, SyncTransaction) else tx
        _block_of(self._ctx.app, tx, self._block)("ctx.sync.complete_in()", lambda: self._ctx.complete_in(inner, value))

    def _block(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._ctx.app.door.run(verb, make, self._ctx.run.loop or self._ctx.app.home)


# In a transaction


def _submitted(app: Submitter[Any], verb: str, call: Call[R], block: Block) -> SyncHandle[R]:
    inner = _inner(call)
    return SyncHandle(app, _block_of(app, call.tx, block)(verb, lambda: app.submit_call(inner)))


def _block_of(app: Submitter[Any], tx: object, block: Block) -> Block:
    """A connection of the caller's own is used on the caller's thread; the store's own is on its loop."""
    return block if tx is None or isinstance(tx, SyncTransaction) else app.block_here


def _inner(call: Call[R]) -> Call[R]:
    return call.inside(call.tx.inner) if isinstance(call.tx, SyncTransaction) else call
