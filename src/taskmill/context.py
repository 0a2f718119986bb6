"""What a handler knows and may do while it runs, and what it may raise to say how its attempt ends.

    raise Fail("no such user")            dead, no retry
    raise RetryAfter("10s")               a failure, tried again after this long
    ctx.snooze("5m")                      no failure: the same task again, later

    async with ctx.transaction() as tx:   completed, if and only if what is written in it commits

A `Context` is made for every attempt, so it is three references and nothing else: whatever needs decoding is decoded when it is asked for.
`Run` is the part that changes while the attempt runs; the executor writes it, the handler reads it, from any thread.

Everything a handler leaves behind is written under its lease. A write that comes too late (the lease is another's by now) changes nothing,
is told as `StaleLease`, and `ctx.lease_lost` is true from then on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from msgspec import Struct

from taskmill import codec
from taskmill.clock import SECOND, DurationLike, duration
from taskmill.engine import Checkpoint, Claimed, Ending, Outcome, Transaction
from taskmill.errors import AnswerLost, Conflict, InvalidInput, StaleLease, StoreError, TaskmillError, WrongStore
from taskmill.retry import Retry
from taskmill.task import DEFAULT_MAX_CRASHES, DEFAULT_TIMEOUT, Priority, Progress, State, check_name, new_id

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.handle import Handle
    from taskmill.sync import SyncContext
    from taskmill.tasks import Call, TaskType

__all__ = ["Context", "Fail", "Received", "RetryAfter", "Run", "Snooze"]

P = ParamSpec("P")
R = TypeVar("R")

PROGRESS_INTERVAL = SECOND // 4
TRACE_HEADERS = frozenset({"traceparent", "tracestate", "baggage"})
_LONGEST_MESSAGE = 1_000
_ROUNDING = 1e-6
_logger = logging.getLogger("taskmill.task")


# What a handler raises


class Fail(Exception):
    """The task is dead now: trying again would not help. `code` is what its record and metrics say."""

    def __init__(self, message: str = "", *, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RetryAfter(Exception):
    """The attempt failed; the next one comes after this long. Counts as a failure, so it ends when the retries do."""

    def __init__(self, after: DurationLike, message: str = "") -> None:
        super().__init__(message)
        self.after = duration(after, field="RetryAfter")
        """Microseconds."""
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        return RetryAfter, (timedelta(microseconds=self.after), self.message)


class Snooze(BaseException):
    """How `ctx.snooze` leaves the handler; not an Exception, so that no `except Exception` on its way takes it for an error."""

    def __init__(self, after: int) -> None:
        super().__init__(after)
        self.after = after
        """Microseconds."""


# What runs


class Run:
    """The moving part of one attempt, shared by its executor and its handler. Times are of the monotonic clock, in microseconds."""

    __slots__ = (
        "asked", "cancelled", "children", "committing", "deadline", "ending", "lease_lost", "loop", "pending", "reason", "received", "result", "started",
        "transacting", "written_at",
    )  # fmt: skip

    def __init__(self, *, received: int = 0, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.received = received
        self.started = 0
        self.deadline = 0
        self.loop = loop
        self.cancelled = False
        self.reason: str | None = None
        self.lease_lost = False
        self.children: dict[tuple[str, bytes], int] | None = None
        self.pending: Progress | None = None
        self.written_at = 0
        self.transacting = False
        """It stands in the transaction that it ends with; `result` is what it will have completed with."""
        self.result = b"null"
        self.committing = False
        """Its end is just being written: to ask it to end would come between, so that is `asked` later."""
        self.asked: str | None = None
        self.ending: Outcome | None = None
        """The end that it has written itself, in its own transaction."""


class Received(Struct, frozen=True):
    """A signal as the handler sees it: its number, its name and its decoded data."""

    number: int
    name: str
    data: object
    at: int


class Context:
    """One attempt, from the inside. The first parameter of a handler that wants it: `async def send(ctx: Context, user_id: int)`."""

    __slots__ = ("_memory", "app", "claimed", "run")

    def __init__(self, app: App, claimed: Claimed, run: Run) -> None:
        self.app = app
        self.claimed = claimed
        self.run = run

    def __repr__(self) -> str:
        return f"<Context {self.claimed.type} {self.claimed.id} attempt {self.claimed.attempt}>"

    @staticmethod
    def inline(app: App | None = None, type: str = "inline") -> Context:
        """A context for a direct call: attempt 1, no lease; progress and checkpoints stay in memory."""
        if app is None:
            from taskmill.app import App

            app = App("sqlite://:memory:")
        run = Run(received=app.clock.monotonic())
        run.started = run.received
        run.deadline = run.started + DEFAULT_TIMEOUT
        return _Inline(app, _unclaimed(type), run)

    # The task

    @property
    def id(self) -> str:
        return self.claimed.id

    @property
    def type(self) -> str:
        return self.claimed.type

    @property
    def queue(self) -> str:
        return self.claimed.queue

    @property
    def attempt(self) -> int:
        """From 1."""
        return self.claimed.attempt

    @property
    def token(self) -> int:
        """The fence of this attempt's lease: grows over all tasks, so a store of your own can refuse writes with a lower one."""
        return self.claimed.token

    @property
    def tenant(self) -> str:
        return self.claimed.tenant

    @property
    def priority(self) -> int:
        return self.claimed.priority

    @property
    def headers(self) -> Mapping[str, str]:
        return self.claimed.headers

    @property
    def must_end(self) -> str | None:
        """Why this task has to undo what it did (cancelled, poison, expired), if it has to."""
        return self.claimed.must_end

    # The attempt

    @property
    def deadline(self) -> int:
        """When this attempt times out, in microseconds since 1970."""
        return self.app.clock.now() + self.run.deadline - self.app.clock.monotonic()

    @property
    def remaining(self) -> int:
        """Microseconds until then."""
        return max(0, self.run.deadline - self.app.clock.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether to stop: a cancel was asked for, the time is over, the lease is lost, or the worker ends. Cheap to ask in a loop."""
        return self.run.cancelled or self.run.lease_lost

    @property
    def cancel_reason(self) -> str | None:
        return self.run.reason or ("lease_lost" if self.run.lease_lost else None)

    @property
    def lease_lost(self) -> bool:
        """Whether this attempt is somebody else's by now; nothing it writes will count."""
        return self.run.lease_lost

    # What came before

    @property
    def results(self) -> list[Any]:
        """What the tasks that this one waited for returned, in order; None for those that did not complete."""
        return [None if edge.result is None else codec.decode(edge.result) for edge in self.claimed.results]

    @property
    def outcomes(self) -> list[State | None]:
        """How the tasks that this one waited for ended, in order."""
        return [edge.outcome for edge in self.claimed.results]

    @property
    def signals(self) -> list[Received]:
        """The signals sent to this task, oldest first."""
        return [Received(signal.number, signal.name, codec.decode(signal.data), signal.at) for signal in self.claimed.signals]

    @property
    def checkpoints(self) -> Mapping[str, Any]:
        """What earlier attempts, and this one so far, have saved."""
        return MappingProxyType(self._saved())

    def _saved(self) -> dict[str, Any]:
        try:
            return self._memory
        except AttributeError:
            self._memory: dict[str, Any] = {name: codec.decode(value) for name, value in self.claimed.checkpoints.items()}
            return self._memory

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have the fields task_id, task_type, queue and attempt."""
        claimed = self.claimed
        return logging.LoggerAdapter(_logger, {"task_id": claimed.id, "task_type": claimed.type, "queue": claimed.queue, "attempt": claimed.attempt})

    @property
    def sync(self) -> SyncContext:
        """The same verbs for a handler that is a plain function: they block."""
        from taskmill.sync import SyncContext

        return SyncContext(self)

    # What the handler does

    def snooze(self, after: DurationLike) -> NoReturn:
        """End this attempt without an error; the task runs again after this long."""
        raise Snooze(duration(after, field="snooze"))

    async def progress(self, value: float, message: str = "") -> None:
        """Say how far the task is, from 0 to 1. As often as you like: at most four times a second it is written, the last value always."""
        run = self.run
        waiting = run.pending is not None
        run.pending = _progress(value, message)
        wait = run.written_at + PROGRESS_INTERVAL - self.app.clock.monotonic() if run.written_at else 0
        if self.app.in_transaction():
            wait = max(wait, PROGRESS_INTERVAL)
        if wait <= 0:
            await self._write_progress()
        elif not waiting:
            asyncio.get_running_loop().call_later(wait / SECOND, self._write_soon)

    def _write_soon(self) -> None:
        """Not in a transaction, for which it would wait: after it."""
        if self.run.pending is None or self.cancelled:
            return
        if self.app.in_transaction():
            asyncio.get_running_loop().call_later(PROGRESS_INTERVAL / SECOND, self._write_soon)
        else:
            _keep(asyncio.get_running_loop().create_task(self._write_late()))

    async def _write_late(self) -> None:
        """The last value, if nothing newer came; when the attempt has ended meanwhile, it is refused, and nobody minds."""
        with suppress(TaskmillError):
            await self._write_progress()

    async def _write_progress(self) -> None:
        run = self.run
        due, run.pending = run.pending, None
        if due is not None:
            run.written_at = self.app.clock.monotonic()
            await self._save(Checkpoint(task=self.claimed.id, worker=self.claimed.worker, token=self.claimed.token, progress=due))

    async def checkpoint(self, name: str, value: object = None) -> None:
        """Save what this step has come to; the next attempt finds it in `checkpoints`."""
        data = codec.encode(value, field=check_name(name, "checkpoint"), limit=self.app.settings.payload_limit)
        if self.app.in_transaction():
            hint = "save it before or after the transaction; what is done in it is done once, with the end of the task"
            raise Conflict("a checkpoint would wait for the transaction it stands in", code="inside_transaction", field="checkpoint", hint=hint)
        await self._save(Checkpoint(task=self.claimed.id, worker=self.claimed.worker, token=self.claimed.token, name=name, value=data))
        self._saved()[name] = codec.decode(data)

    async def _save(self, entry: Checkpoint) -> None:
        refusal = await self.app.checkpoint(entry)
        if refusal is not None:
            raise self._lost()

    def _lost(self) -> StaleLease:
        self.run.lease_lost = True
        return StaleLease(
            "this attempt no longer holds its task: the lease is another's, or over",
            hint="stop here; nothing that this attempt writes will count",
            task_id=self.claimed.id,
        )

    # The end, with rows of the handler's own

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction whose commit is the end of this task: your rows, the tasks that you submit with `tx=`, and that it is completed, or nothing of it.

        `complete` says with which value. What the handler does after the block is done by a task that has ended: it is not repeated when it fails.
        """
        run = self.run
        await self._check_transactions()
        run.result, run.transacting = b"null", True
        try:
            async with self.app.transaction() as tx:
                yield tx
                run.committing = True
                await self._end_in(tx, self._completed(run.result))
        except (AnswerLost, StaleLease, asyncio.CancelledError) as error:
            if not run.committing:
                raise
            if isinstance(error, StaleLease):
                raise self._lost() from None
            if not await self._has_ended():
                raise
            run.ending = self._completed(run.result)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            run.ending = self._completed(run.result)
        finally:
            run.committing = run.transacting = False

    async def _check_transactions(self) -> None:
        if self.run.ending is not None:
            hint = "a task ends once: put it all into one block"
            raise Conflict("the task has ended already, in its transaction", code="terminal", field="transaction", hint=hint)
        await self.app.open()
        features = self.app.engine.features
        if not features.user_transactions:
            hint = "return the value, and make what the handler writes safe to repeat: ctx.id and ctx.token help"
            raise WrongStore(f"the engine {features.name} has no transactions for users", code="no_transactions", field="transaction", hint=hint)

    def complete(self, value: object = None) -> None:
        """What the task completes with, said inside of `transaction`: it is written with the commit."""
        if not self.run.transacting:
            hint = "return the value; or complete_in(tx, value) in a transaction of your own"
            raise Conflict("there is no transaction that the task ends with", code="no_transaction", field="complete", hint=hint)
        self.run.result = self._encoded(value)

    async def complete_in(self, tx: Any, value: object = None) -> None:
        """The end of this task, with this value, in a transaction of your own, on your own connection: it has ended if and only if that commits.

        Say it last, right before the commit, and commit before the handler returns: others wait for what the task holds until then.
        """
        try:
            await self._end_in(tx, self._completed(self._encoded(value)))
        except StaleLease:
            raise self._lost() from None

    def _encoded(self, value: object) -> bytes:
        declared = self.app.types.get(self.claimed.type)
        limit = self.app.settings.payload_limit
        return codec.encode(value, field="result", limit=limit) if declared is None else declared.binding.result(value, limit)

    async def _end_in(self, tx: Transaction, outcome: Outcome) -> None:
        await self.app.engine.finish([outcome], tx=tx)

    def _completed(self, result: bytes) -> Outcome:
        claimed, run = self.claimed, self.run
        began = max(0, run.started - run.received)
        return Outcome(task=claimed.id, worker=claimed.worker, token=claimed.token, ending=Ending.COMPLETED, result=result, started_after=began)

    async def _has_ended(self) -> bool:
        """Whether a commit whose answer was lost has come to pass. A write under the lease waits for whoever still holds the task's row; then it is decided."""
        claimed, engine = self.claimed, self.app.engine
        pause = 0.02
        while True:
            try:
                if not await engine.checkpoint([Checkpoint(task=claimed.id, worker=claimed.worker, token=claimed.token)]):
                    return False
                mine = [each for each in await engine.attempts(claimed.id) if (each.worker, each.token) == (claimed.worker, claimed.token)]
            except StoreError as error:
                _logger.warning("whether task %s has committed is not known yet, asking again: %s", claimed.id, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 1.0)
                continue
            if any(each.outcome == Ending.COMPLETED for each in mine):
                return True
            raise self._lost()

    # Children

    @overload
    async def submit(self, task: TaskType[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    async def submit(self, task: Call[R], /) -> Handle[R]: ...
    @overload
    async def submit(self, task: str, payload: object = None, /) -> Handle[Any]: ...
    async def submit(self, task: TaskType[..., Any, Any] | Call[Any] | str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Submit another task. Its id derives from this task and the call, so that a second attempt of this one makes no second child."""
        return await self.app.submit_call(self.child(self.app.call_of(task, *args, **kwargs)))

    async def submit_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Submit many in one round trip per batch, each with its derived id."""
        return await self.app.submit_calls(self.child(call) for call in calls)

    def child(self, call: Call[R]) -> Call[R]:
        """The call as this task's own: with a derived id, and priority, tenant and trace of this task unless it names others."""
        claimed = self.claimed
        given = call.fields
        fields = {"priority": claimed.priority, "tenant": claimed.tenant, **given}
        trace = {name: value for name, value in claimed.headers.items() if name in TRACE_HEADERS}
        if trace:
            fields["headers"] = {**trace, **given.get("headers", {})}
        if "id" not in given:
            fields["id"] = self._derived_id(call.type, call.payload)
        return call.with_fields(fields)

    def _derived_id(self, type: str, payload: bytes) -> str:
        children = self.run.children
        if children is None:
            children = self.run.children = {}
        ordinal = children.get((type, payload), 0)
        children[type, payload] = ordinal + 1
        return derived_id(self.claimed.id, type, payload, ordinal)


def derived_id(task: str, type: str, payload: bytes, ordinal: int) -> str:
    """The id of the child that a task makes by this call: the same in every attempt. A UUID of version 8."""
    digest = bytearray(blake2b(b"\0".join((task.encode(), type.encode(), b"%d" % ordinal, payload)), digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(digest)))


def _progress(value: object, message: str) -> Progress:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_ROUNDING <= value <= 1 + _ROUNDING:
        raise InvalidInput(f"{value!r:.80} is no progress", code="out_of_range", field="progress", hint="a number from 0 to 1")
    return Progress(min(1.0, max(0.0, float(value))), message[:_LONGEST_MESSAGE])


_late: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """The loop holds its tasks only weakly."""
    _late.add(task)
    task.add_done_callback(_late.discard)


class _Inline(Context):
    """The context of a direct call: there is no lease, so what would be written stays here."""

    __slots__ = ()

    async def _save(self, entry: Checkpoint) -> None:
        pass

    async def _end_in(self, tx: Transaction, outcome: Outcome) -> None:
        pass

    async def _has_ended(self) -> bool:
        return False


def _unclaimed(type: str) -> Claimed:
    return Claimed(
        id=new_id(), type=type, queue="default", payload=b"null", worker="inline", token=0, attempt=1, claimed_at=0, priority=Priority.NORMAL, failures=0,
        crashes=0, max_crashes=DEFAULT_MAX_CRASHES, version=1, created_at=0, retry=Retry(), timeout=DEFAULT_TIMEOUT, expires_at=None, tenant="", limits=(),
        unwind=False, must_end=None, phase=None, headers={}, checkpoints={}, signals=(), results=(),
    )  # fmt: skip
