"""What an App and a Client have in common: tasks are submitted by type, by name or as calls, and each answer is a handle.

app ────▶ operations ──▶ engine
client ─▶ remote operations ──▶ HTTP ──▶ server ──▶ operations ──▶ engine
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar, Unpack, overload

from taskmill import codec
from taskmill.errors import InvalidInput
from taskmill.handle import Handle
from taskmill.home import Home, Verbs
from taskmill.options import SubmitOptions, submit_fields
from taskmill.sync import SyncSubmitter, check_loop
from taskmill.task import check_id, check_name
from taskmill.tasks import Call, TaskType

__all__ = ["Submitter"]

R = TypeVar("R")
V = TypeVar("V", bound=Verbs)


class Submitter(Home[V]):
    """The verbs of whoever submits; `submit_call` and `submit_calls` say how a task gets to its store."""

    @property
    def sync(self) -> SyncSubmitter:
        """The same verbs for callers without an event loop."""
        return SyncSubmitter(self)

    # Submitting

    @overload
    def submit(self, task: Call[R], /) -> Coroutine[Any, Any, Handle[R]]: ...
    @overload
    def submit(self, task: TaskType[..., R, Any], payload: object = None, /, **options: Unpack[SubmitOptions]) -> Coroutine[Any, Any, Handle[R]]: ...
    @overload
    def submit(self, task: str, payload: object = None, /, **options: Unpack[SubmitOptions]) -> Coroutine[Any, Any, Handle[Any]]: ...
    def submit(self, task: Call[Any] | TaskType[..., Any, Any] | str, payload: object = None, /, **options: Any) -> Coroutine[Any, Any, Handle[Any]]:
        """Submit by name, with a payload, for what lives in another program: `await app.submit("send_welcome", {"user_id": 42})`."""
        check_loop(f"{self.word}.submit()")
        return self.submit_call(self.call_with(task, payload, options))

    def submit_many(self, calls: Iterable[Call[R]]) -> Coroutine[Any, Any, list[Handle[R]]]:
        """Submit any number, one round trip per batch; the handles in the order of the calls."""
        check_loop(f"{self.word}.submit_many()")
        return self.submit_calls(calls)

    def unseal(self, *tasks: str | Handle[Any]) -> Coroutine[Any, Any, None]:
        """Break the seals of tasks that were submitted with `sealed=True`: all that name them as their parent have been submitted."""
        ids = [check_id(task if isinstance(task, str) else task.id, "tasks") for task in tasks]
        return self.at_home(f"{self.word}.unseal()", lambda: self.operations.unseal(ids))

    def handle(self, id: str) -> Handle[Any]:
        """The handle of a task whose id is known."""
        return Handle(self, id, read=self.reader())

    async def submit_call(self, call: Call[R]) -> Handle[R]:
        """One call; concurrent ones go together."""
        raise NotImplementedError

    async def submit_calls(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Many calls; what one of them was refused for is raised when all have been offered."""
        raise NotImplementedError

    def block_here(self, verb: str, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """What a verb behind `.sync` does in a transaction of the caller's own."""
        raise NotImplementedError

    def type_named(self, name: str) -> TaskType[..., Any, Any] | None:
        """The type of this name, if it is declared here."""
        raise NotImplementedError

    # Calls

    def call_with(self, task: Call[Any] | TaskType[..., Any, Any] | str, payload: object, options: Mapping[str, Any]) -> Call[Any]:
        """The call that a type or its name, a payload and options make."""
        call = task if isinstance(task, Call) else self._named(task, payload)
        return call.wanting(submit_fields(options, f"{self.word}.submit()")) if options else call

    def call_of(self, task: TaskType[..., Any, Any] | Call[Any] | str, *args: Any, **kwargs: Any) -> Call[Any]:
        """The call that a type and its arguments make, or a name and its payload."""
        if isinstance(task, TaskType):
            return task.call(*args, **kwargs)
        if isinstance(task, str) and len(args) <= 1 and not kwargs:
            return self._named(task, *args)
        if isinstance(task, Call) and not args and not kwargs:
            return task
        raise InvalidInput(
            f"{task!r:.80} does not take these arguments",
            code="invalid_arguments",
            field="submit",
            hint="a task type and its arguments, a call, or a name and a payload",
        )

    def _named(self, task: TaskType[..., Any, Any] | str, payload: object = None) -> Call[Any]:
        data = codec.encode(payload)
        if isinstance(task, str):
            found = self.type_named(task)
            return Call(check_name(task, "type"), data, {}) if found is None else found.payload_call(data)
        if not isinstance(task, TaskType):
            raise InvalidInput(f"{task!r:.80} is no task", code="invalid_arguments", field="submit", hint="a task type, a call of it, or a type's name")
        task.binding.arguments(data)
        return task.payload_call(data)

    def reader(self, call: Call[Any] | None = None) -> Callable[[bytes], object]:
        """How the result of a call is read; without one, of a task whose type nobody said."""
        return codec.decode if call is None or call.task_type is None else call.task_type.binding.returned
