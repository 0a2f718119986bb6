"""What a submit answers: the task's id, and what can be asked about it from here on.

    handle = await send_welcome.submit(42)
    print(await handle.result(timeout="30s"))        # or TaskFailed, TaskCancelled, ResultTimeout, ResultExpired

A handle keeps nothing but the id and, where the type is known, how its result is read; it may be thrown away and made again by `app.handle(id)`. It is the same
for an App, which asks its store, and for a Client, which asks a server.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from taskmill import codec
from taskmill.clock import DurationLike, duration, format_duration
from taskmill.engine import Submitted, Target
from taskmill.errors import Conflict, Expired, ResultExpired, ResultTimeout, TaskCancelled, TaskFailed
from taskmill.task import Progress, State, Task

if TYPE_CHECKING:
    from taskmill.home import Verbs
    from taskmill.submitting import Submitter
    from taskmill.sync import SyncHandle

__all__ = ["Cancelled", "Handle"]

R = TypeVar("R")


class Cancelled(Enum):
    """What a cancel came to. It is false only where the task had ended already."""

    DONE = "done"
    """The task is cancelled."""
    REQUESTED = "requested"
    """The task runs, and its worker is told to stop. It may still complete."""
    ENDED = "ended"
    """The task had ended otherwise."""

    def __bool__(self) -> bool:
        return self is not Cancelled.ENDED


class Handle(Generic[R]):
    """One task, seen by whoever submitted it."""

    __slots__ = ("_app", "_read", "id", "submitted", "type")

    def __init__(
        self, app: Submitter[Any], id: str, type: str | None = None, read: Callable[[bytes], object] = codec.decode, submitted: Submitted | None = None
    ) -> None:
        self._app = app
        self._read = read
        self.id = id
        self.type = type
        self.submitted = submitted
        """What the store answered: created, or a duplicate of the task that this handle is now for; None for a handle made by id."""

    def __repr__(self) -> str:
        return f"<Handle {self.type or 'task'} {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def sync(self) -> SyncHandle[R]:
        """The same verbs, blocking."""
        from taskmill.sync import SyncHandle

        return SyncHandle(self._app, self)

    def status(self) -> Coroutine[Any, Any, State]:
        """Where the task is in its life."""
        return self._app.at_home("handle.status()", self._status)

    def task(self) -> Coroutine[Any, Any, Task]:
        """The whole record."""
        return self._app.at_home("handle.task()", self._task)

    def progress(self) -> Coroutine[Any, Any, Progress | None]:
        """How far the task last said it is."""
        return self._app.at_home("handle.progress()", self._progress)

    def wait(self, timeout: DurationLike | None = None) -> Coroutine[Any, Any, State | None]:
        """Until it has ended: the state it ended in, or None when the time is over before."""
        micros = None if timeout is None else duration(timeout, field="timeout")
        return self._app.at_home("handle.wait()", lambda: self._wait(micros))

    def result(self, timeout: DurationLike | None = None) -> Coroutine[Any, Any, R]:
        """What the handler returned, once it has; raises TaskFailed, TaskCancelled, ResultTimeout or ResultExpired."""
        micros = None if timeout is None else duration(timeout, field="timeout")
        return self._app.at_home("handle.result()", lambda: self._result(micros))

    def cancel(self) -> Coroutine[Any, Any, Cancelled]:
        """Cancel it, or ask its worker to. The answer tells which, and is false when it had ended otherwise."""
        return self._app.at_home("handle.cancel()", self._cancel)

    # On the loop that the store was opened in

    async def _status(self) -> State:
        """A task that is accepted and not yet here will come: it is pending."""
        try:
            return (await self._task()).state
        except Conflict as error:
            if error.code != "reserved":
                raise
            return State.PENDING
        except Expired as gone:
            state = getattr(gone, "state", None)
            if state is None:
                raise
            return State(state)

    async def _task(self) -> Task:
        verbs: Verbs = self._app.operations
        return await verbs.get(self.id)

    async def _progress(self) -> Progress | None:
        return (await self._task()).progress

    async def _wait(self, timeout: int | None) -> State | None:
        verbs: Verbs = self._app.operations
        return (await verbs.wait([self.id], timeout)).get(self.id)

    async def _cancel(self) -> Cancelled:
        tally = await self._app.operations.cancel([Target(self.id)])
        if tally.refused.get("not_found"):
            await self._task()
        return Cancelled.REQUESTED if tally.requested else Cancelled.DONE if tally.done else Cancelled.ENDED

    async def _result(self, timeout: int | None) -> R:
        state = await self._wait(timeout)
        if state is None:
            raise ResultTimeout(
                f"the task has not ended within {format_duration(timeout or 0)}",
                hint="it goes on; wait longer, or look at it: taskmill task get " + self.id,
                task_id=self.id,
            )
        try:
            task = await self._task()
        except Expired:
            hint = "records are kept for `history_retention`"
            raise ResultExpired(f"the task ended as {state}, its record is gone", hint=hint, task_id=self.id) from None
        return self._outcome(task)

    def _outcome(self, task: Task) -> R:
        if task.state is State.COMPLETED:
            if task.result is None:
                raise ResultExpired("the task completed, its result is gone", hint="results are kept for `result_retention`", task_id=self.id)
            return cast("R", self._read(task.result))
        error = task.error
        why = f": {error.code}{': ' * bool(error.message)}{error.message}" if error else ""
        if task.state is State.CANCELLED:
            raise TaskCancelled(f"the task was cancelled{why}", task_id=self.id)
        raise TaskFailed(
            f"the task is dead{why}",
            hint=f"`taskmill task get {self.id}` shows where; `taskmill task requeue {self.id}` tries it again",
            task_id=self.id,
            error=error,
        )
