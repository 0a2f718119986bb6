"""The App: what is declared, the store it lives in, and the way in for tasks.

    app = App("sqlite:///taskmill.db")     # or TASKMILL_URL, then taskmill.toml, then ./taskmill.db

Making an App reads and opens nothing, so any module may do it at import. The store is opened at first use, on the loop of that use; from then on
that loop is the app's home, and callers on other loops and threads are taken there. A submit goes `app → operations → engine`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from taskmill import config
from taskmill.batching import Batcher
from taskmill.clock import Clock, SystemClock
from taskmill.config import Loaded, Settings
from taskmill.declared import Declared, settings_of
from taskmill.engine import Checkpoint, Engine, Joining, Refusal, Transaction
from taskmill.errors import AppError, InvalidInput, TaskmillError, WrongStore
from taskmill.handle import Handle
from taskmill.operations import Operations, submitted
from taskmill.submitting import Submitter
from taskmill.sync import Door, SyncApp, check_blocking, run_here
from taskmill.task import NewTask
from taskmill.tasks import Call, Tasks, TaskType

if TYPE_CHECKING:
    from taskmill.telemetry import Metrics

__all__ = ["App"]

R = TypeVar("R")
T = TypeVar("T")
Hook = TypeVar("Hook", bound=Callable[..., object])

NOTICE_AFTER = 10.0
"""Seconds after which a submit that no worker could have taken is worth a line in the log."""
logger = logging.getLogger("taskmill")


class App(Tasks, Submitter[Operations]):
    """One application: its types, schedules and limits, and its store."""

    notice_after = NOTICE_AFTER

    def __init__(self, url: str | None = None, *, name: str | None = None, version: int | None = None, clock: Clock | None = None, **settings: object) -> None:
        Tasks.__init__(self)
        self._arguments: dict[str, object] = {"url": url, "name": name, "version": version, **settings}
        self.folder = _folder_of(sys._getframe(1).f_code.co_filename)
        """Where the app's file is: a relative path of the store starts here, unless there is a taskmill.toml."""
        self.clock: Clock = clock or SystemClock()
        self.state = SimpleNamespace()
        """For what `on_start` hooks make: pools, clients, models."""
        self._clock = clock
        self._loaded: Loaded | None = None
        self._instead: Callable[[], Awaitable[Engine]] | None = None
        self._starting: list[Callable[..., object]] = []
        self._stopping: list[Callable[..., object]] = []
        Submitter.__init__(self)

    def _forget(self) -> None:
        super()._forget()
        self._engine: Engine | None = None
        self._former: Engine | None = None
        self._checkpoints: Batcher[Checkpoint, Refusal | None] | None = None
        self._owned = False
        self._declared: Declared | None = None
        self._metrics: Metrics | None = None
        self._notice: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<App of {len(self.types)} types{'' if self._loaded is None else f' on {self._loaded.settings.url}'}>"

    def root(self) -> App:
        return self

    def submitter(self) -> App:
        return self

    # Settings

    @property
    def loaded(self) -> Loaded:
        """The settings in force and where each came from; read when first asked for."""
        if self._loaded is None:
            file = config.find_file(self.folder) or config.find_file(Path.cwd())
            self._loaded = config.load(self._arguments, os.environ, file, folder=self.folder)
        return self._loaded

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    # Lifespan

    def on_start(self, hook: Hook) -> Hook:
        """Run this in each worker process before its first task; it may be async, and may take the app."""
        self._starting.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Run this in each worker process after its last task, the last declared first."""
        self._stopping.append(hook)
        return hook

    async def start(self) -> None:
        """The hooks of `on_start`, in order; what one raises stops the start."""
        for hook in self._starting:
            await _run_hook(hook, self)

    async def stop(self) -> None:
        """The hooks of `on_stop`, each of them whatever the others do; the first error is raised in the end."""
        errors: list[Exception] = []
        for hook in reversed(self._stopping):
            try:
                await _run_hook(hook, self)
            except Exception as error:  # the user's own code; the other hooks must still run
                logger.exception("the on_stop hook %s failed", getattr(hook, "__name__", hook))
                errors.append(error)
        if errors:
            raise errors[0]

    # The store

    @property
    def engine(self) -> Engine:
        """The open store."""
        if self._engine is None:
            raise self.not_open()
        return self._engine

    @property
    def declared(self) -> Declared:
        """What the store has been told of the types."""
        if self._declared is None:
            raise self.not_open()
        return self._declared

    def use(self, engine: Engine) -> None:
        """Work on this engine, which is open on the running loop; whoever opened it closes it."""
        self._forget()
        self.home = asyncio.get_running_loop()
        self._take(engine)

    def observe(self, watch: Callable[[Engine], Engine]) -> None:
        """Everything that the app asks of its open store goes through what `watch` makes of it, until the store is let go."""
        self._take(watch(self.engine))

    def stand_in(self, clock: Clock, connect: Callable[[], Awaitable[Engine]]) -> Callable[[], None]:
        """For tests: open what `connect` gives instead of the app's own store, and leave it open. The answer puts everything back as it was."""
        before = dict(self.__dict__)
        self._forget()
        self.clock = self._clock = clock
        self.state = SimpleNamespace(**vars(self.state))
        self.door = Door()
        self._instead = connect
        return lambda: self.__dict__.update(before)

    def _take(self, engine: Engine) -> None:
        self._engine = engine
        self._operations = Operations(engine, self._queue_of)
        self._checkpoints = Batcher(self._write_checkpoints)
        self._declared = Declared(engine, self.settings, self.limits)
        if self._clock is None:
            self.clock = engine.clock

    def _queue_of(self, type: str) -> str | None:
        found = self.types.get(type)
        return None if found is None else found.settings.queue

    def _leave_behind(self) -> None:
        """The loop of the first use does not run any more (a second `asyncio.run`): the store is opened anew on this one."""
        if self._engine is not None and not self._owned and self._instead is None:
            raise AppError("the engine that the app was given belongs to a loop that does not run", code="closed", hint="give it another: app.use(engine)")
        former = self._engine if self._owned else None
        self._forget()
        self._former = former

    async def _connect(self) -> None:
        if self._former is not None:
            with suppress(Exception):  # its loop is gone: whatever of it cannot be closed from here ends with the process
                await self._former.close()
            self._former = None
        engine = await (self._instead or self._own_store)()
        self._owned = self._instead is None
        self._take(engine)

    async def _own_store(self) -> Engine:
        from taskmill import engines

        engine = engines.of_settings(self.settings, self.loaded.folder(self.folder), clock=self._clock)
        await engine.open()
        return engine

    async def _let_go(self, *, at_home: bool) -> None:
        if self._notice is not None:
            self._notice.cancel()
        if self._looking is not None:
            self._looking.cancel()
        engine, operations, owned = self._engine, self._operations, self._owned
        if operations is not None and at_home:
            await operations.drain()
        self._forget()
        if engine is not None and owned:
            await engine.close()

    def _inherit(self) -> None:
        if self._engine is not None:
            _inherited.append(self._engine)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction to submit in: `async with app.transaction() as tx: await task.options(tx=tx).submit()`."""
        await self._at_home(lambda: self.declared.tell(self.types.values()))
        async with self.engine.transaction() as tx:
            yield tx

    async def inbox(self, tx: Transaction | Any, source: str, message_id: str) -> bool:
        """Whether this message comes for the first time. It counts as dealt with if and only if the transaction commits, for which a second consumer waits."""
        if self._operations is None:
            await self.open()
        if not self.engine.features.inbox:
            hint = "keep ids of messages in a table of your own, or use idempotency_key= for what you submit"
            raise WrongStore(f"the engine {self.engine.features.name} keeps no inbox", code="no_inbox", hint=hint)
        first: bool = await cast("Any", self.engine).inbox(tx, source, message_id)
        return first

    # In the caller's own transaction

    def block_here(self, verb: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same for a verb in the caller's own transaction: on this thread, where its connection is."""
        check_blocking(verb)
        if self._operations is None or self.home is None or not self.home.is_running():
            self.block(verb, self.open)
        return run_here(verb, make())

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.home
        except RuntimeError:
            return False

    def in_transaction(self) -> bool:
        """Whether the caller stands in a transaction of the store's own."""
        return self._engine is not None and self._engine.in_transaction()

    def metrics(self) -> Coroutine[Any, Any, bytes]:
        """What a scraper of this program reads, in the text format of Prometheus: its submits and calls of the store since this was first asked for, and
        the queues and workers of the store."""
        return self.at_home("app.metrics()", self._scrape)

    async def _scrape(self) -> bytes:
        if self._metrics is None:
            from taskmill.telemetry import Metrics

            self._metrics = Metrics(clock=self._clock)
            self.observe(self._metrics.watch)
        return await self._metrics.scrape()

    @property
    def sync(self) -> SyncApp:
        """The app's verbs for callers without an event loop."""
        return SyncApp(self)

    # Submitting

    def type_named(self, name: str) -> TaskType[..., Any, Any] | None:
        return self.types.get(name)

    async def submit_call(self, call: Call[R]) -> Handle[R]:
        """One call; concurrent ones share one commit. One in a transaction stays where that is: on the caller's loop and thread."""
        if call.tx is not None:
            if self._operations is None:
                await self.open()
            return await self._submit(call)
        if self.home is not asyncio.get_running_loop() or self._operations is None:
            return await self._at_home(lambda: self._submit(call))
        return await self._submit(call)

    async def _submit(self, call: Call[R]) -> Handle[R]:
        operations = self.operations
        if call.task_type is not None and call.type not in self.declared:
            call = await self._prepared(call, call.task_type)
        answer = await operations.submit(self._new(call), tx=call.tx, durability=call.durability)
        if call.tx is None or self._is_here():
            self._watch_for_workers(call.type)
        return Handle(self, answer.id, call.type, self.reader(call), answer)

    async def _prepared(self, call: Call[R], declared: TaskType[..., R, Any]) -> Call[R]:
        """Whatever else happens, the task is submitted with what its type declares."""
        if call.tx is not None:
            return await self.declared.in_transaction(call, declared)
        await self.declared.tell([declared])
        return call

    def _new(self, call: Call[Any]) -> NewTask:
        return call.new(self.engine.new_id(call.fields.get("queue") or "default"), self.clock.now() if call.expires is not None else None)

    async def submit_calls(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Many calls; what one of them was refused for is raised when all have been offered."""
        waiting = iter(calls)
        first = next(waiting, None)
        if first is None:
            return []
        if first.tx is None:
            return await self._at_home(lambda: self._submit_calls(first, waiting))
        if self._operations is None:
            await self.open()
        return await self._submit_calls(first, waiting)

    async def _submit_calls(self, first: Call[R], others: Iterator[Call[R]]) -> list[Handle[R]]:
        waiting: Iterator[Call[R]] = chain([first], others)
        if first.tx is None:
            await self.declared.tell(self.types.values())
        else:
            waiting = iter([call if call.task_type is None else await self._prepared(call, call.task_type) for call in waiting])
        sent: list[Call[R]] = []
        answers = await self.operations.submit_many(self._alike(waiting, sent), tx=first.tx, durability=first.durability)
        if first.tx is None or self._is_here():
            self._watch_for_workers(first.type)
        return [Handle(self, submitted(answer).id, call.type, self.reader(call), answer) for call, answer in zip(sent, answers, strict=True)]

    def _alike(self, calls: Iterable[Call[R]], sent: list[Call[R]]) -> Iterator[NewTask]:
        """The tasks of calls that can go together; each call is noted as its task is taken."""
        for call in calls:
            sent.append(call)
            if call.tx is not sent[0].tx or call.durability != sent[0].durability:
                raise InvalidInput("calls of several transactions or durabilities do not go together", field="tx", hint="submit them one group after the other")
            yield self._new(call)

    # What a worker registers

    def joining(self, worker: str, queues: Sequence[str] = (), *, lease: int | None = None, info: Mapping[str, str] = MappingProxyType({})) -> Joining:
        """What a worker of this app registers: its types (of these queues, if any are named), all limits and all schedules, as data."""
        wanted = frozenset(queues)
        types = {name: settings_of(each, self.settings) for name, each in self.types.items() if not wanted or each.settings.queue in wanted}
        return Joining(
            worker=worker,
            queues=tuple(queues) or tuple(sorted({settings.queue for settings in types.values()})),
            types=types,
            lease=self.settings.lease if lease is None else lease,
            app=self.settings.name,
            version=self.settings.version,
            limits=dict(self.limits),
            schedules={name: schedule.encode() for name, schedule in self.schedules.items()},
            info=info,
        )

    # What a running handler writes

    async def checkpoint(self, entry: Checkpoint) -> Refusal | None:
        """Written under its lease, in one step with those of other handlers; or why it was not. A process of one handler opens the store for it."""
        return await self._at_home(lambda: self._checkpoint(entry))

    async def _checkpoint(self, entry: Checkpoint) -> Refusal | None:
        if self._checkpoints is None:
            raise self.not_open()
        return await self._checkpoints.add(entry)

    async def _write_checkpoints(self, entries: list[Checkpoint]) -> list[Refusal | None]:
        refused = {(refusal.task, refusal.token): refusal for refusal in await self.engine.checkpoint(entries)}
        return [refused.get((entry.task, entry.token)) for entry in entries]

    # A submit that nobody takes

    def _watch_for_workers(self, type: str) -> None:
        if self._notice is None:
            self._notice = asyncio.get_running_loop().call_later(self.notice_after, self._look_for_workers, type)

    def _look_for_workers(self, type: str) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._tell_if_alone(type))

    async def _tell_if_alone(self, type: str) -> None:
        """Said once: the task waits, and whoever reads the log may wonder why. While there are workers, a later submit looks again."""
        with suppress(TaskmillError):
            alive = [worker for worker in await self.operations.workers() if worker.alive]
            if any(type in worker.types for worker in alive):
                self._notice = None
                return
            who = "no live worker on this store knows it" if alive else "there is no live worker on this store"
            logger.warning("a task of type %s was submitted %g s ago and %s; start one: taskmill worker", type, self.notice_after, who)


async def _run_hook(hook: Callable[..., object], app: App) -> None:
    answer = hook(app) if inspect.signature(hook).parameters else hook()
    if isinstance(answer, Awaitable):
        await answer


def _folder_of(file: str) -> Path:
    return Path(file).absolute().parent if not file.startswith("<") and Path(file).exists() else Path.cwd()


_inherited: list[Engine] = []
"""Of the parent of a fork; closing them here would touch its files."""
