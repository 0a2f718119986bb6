"""Declaring handlers: `@app.task`, `@app.schedule`, and `Tasks` for modules that do not import the app.

    @app.task(queue="mail", rate_limit="100/m")
    async def send_welcome(ctx: Context, user_id: int) -> str: ...

The decorated name is a `TaskType`. It is called like the function (a direct call runs it here and now), and `submit`, `call`, `options(…)` and
`sync` take the same parameters, without the context; type checkers see through all of them. What is declared is data (`TypeSettings`,
`Schedule`, limits as JSON): a worker that joins writes it to the store, where operators may put their own values over it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from taskmill.binding import Binding
from taskmill.clock import SystemClock, duration, instant
from taskmill.context import Context
from taskmill.cron import Cron, Misfire, Overlap
from taskmill.errors import AppError, InvalidInput
from taskmill.options import ScheduleOptions, SubmitOptions, TaskOptions, Wanted, choice, known, limit_value, submit_fields, type_settings
from taskmill.schedule import Schedule
from taskmill.sync import SyncTask, check_loop
from taskmill.task import NewTask, TypeSettings, check_name, check_settings

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.engine import Durability, Transaction
    from taskmill.handle import Handle
    from taskmill.submitting import Submitter

__all__ = ["Call", "Options", "TaskType", "Tasks"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Mode = Literal["async", "sync", "isolated"]


class Call(Generic[R]):
    """A task to submit: its type, its payload, and what it shall have beside the settings of its type."""

    __slots__ = ("durability", "expires", "fields", "payload", "task_type", "tx", "type")

    def __init__(
        self,
        type: str,
        payload: bytes,
        fields: Mapping[str, Any],
        *,
        task_type: TaskType[..., R, Any] | None = None,
        expires: int | None = None,
        tx: Transaction | None = None,
        durability: Durability | None = None,
    ) -> None:
        self.type = type
        self.payload = payload
        self.fields = fields
        self.task_type = task_type
        self.expires = expires
        self.tx = tx
        self.durability = durability

    def __repr__(self) -> str:
        return f"<Call {self.type} {self.payload[:80]!r}>"

    def new(self, id: str | None = None, now: int | None = None) -> NewTask:
        """A new task of this call; `id` and `now` are for calls that do not fix their id, or expire after a time."""
        fields = self.fields
        if id is not None and "id" not in fields and self.expires is None:
            return NewTask(type=self.type, payload=self.payload, id=id, **fields)
        fields = dict(fields)
        if id is not None:
            fields.setdefault("id", id)
        if self.expires is not None:
            fields["expires_at"] = (SystemClock().now() if now is None else now) + self.expires
        return NewTask(type=self.type, payload=self.payload, **fields)

    def with_fields(self, fields: Mapping[str, Any]) -> Call[R]:
        """The same call with other fields of its new task."""
        return Call(self.type, self.payload, fields, task_type=self.task_type, expires=self.expires, tx=self.tx, durability=self.durability)

    def inside(self, tx: Transaction) -> Call[R]:
        """The same call in this transaction."""
        return Call(self.type, self.payload, self.fields, task_type=self.task_type, expires=self.expires, tx=tx, durability=self.durability)

    def wanting(self, found: Wanted) -> Call[R]:
        """The same call with options over its own."""
        return Call(
            self.type,
            self.payload,
            {**self.fields, **found.fields},
            task_type=self.task_type,
            expires=self.expires if found.expires is None else found.expires,
            tx=self.tx if found.tx is None else found.tx,
            durability=found.durability or self.durability,
        )


class TaskType(Generic[P, R, C]):
    """A declared handler."""

    __name__: str

    def __init__(self, owner: Tasks, name: str, function: Callable[..., C], settings: TypeSettings, declared: frozenset[str], *, isolated: bool) -> None:
        update_wrapper(self, function)
        self.owner = owner
        self.name = name
        self.function = function
        self.binding = Binding(function, name)
        self.settings = settings
        self.declared = declared
        """The settings that the declaration names; the others follow the app's."""
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self.mode: Mode = "isolated" if isolated else "async" if self.is_async else "sync"
        self._fields: Mapping[str, Any] = {"queue": settings.queue}

    def __repr__(self) -> str:
        return f"<TaskType {self.name} in queue {self.settings.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """The handler itself, here and now; one that wants a context gets an inline one."""
        if self.binding.wants_context:
            return self.function(Context.inline(self.owner.root(), self.name), *args, **kwargs)
        return self.function(*args, **kwargs)

    @property
    def app(self) -> App:
        """The app that this type belongs to."""
        return self.owner.app

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Handle[R]]:
        """Submit it to run on some worker; the answer is a handle."""
        check_loop(f"{self.name}.submit()")
        return self.owner.submitter().submit_call(self.call(*args, **kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The same as a value, for `app.submit_many` and `ctx.submit`."""
        return Call(self.name, self.binding.payload(args, kwargs), self._fields, task_type=self)

    def payload_call(self, payload: bytes) -> Call[R]:
        """A call with a payload that is JSON already; nobody has checked its arguments."""
        return Call(self.name, payload, self._fields, task_type=self)

    def options(self, **options: Unpack[SubmitOptions]) -> Options[P, R]:
        """The same, with options for this one submit: `delay="10m"`, `priority="high"`, `idempotency_key=…`, `tx=…`."""
        return Options(self, submit_fields(options, f"{self.name}.options()"))

    @property
    def sync(self) -> SyncTask[P, R]:
        """For callers without an event loop: `send_welcome.sync.submit(42).result()`."""
        return SyncTask(self.name, self.call, self.owner.submitter)


class Options(Generic[P, R]):
    """A task type with options for its next submits."""

    __slots__ = ("task_type", "wanted")

    def __init__(self, type: TaskType[P, R, Any], wanted: Wanted) -> None:
        self.task_type = type
        self.wanted = wanted

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Handle[R]]:
        """Submit it with these options."""
        check_loop(f"{self.task_type.name}.options(…).submit()")
        return self.task_type.owner.submitter().submit_call(self.call(*args, **kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The same as a value."""
        return self.task_type.call(*args, **kwargs).wanting(self.wanted)

    @property
    def sync(self) -> SyncTask[P, R]:
        """For callers without an event loop."""
        return SyncTask(f"{self.task_type.name}.options(…)", self.call, self.task_type.owner.submitter)


# Declaring


class Declare(Protocol):
    """What `@app.task(…)` and `@app.schedule(…)` make of a function: its parameters and its result are kept.

    A first parameter annotated `Any` or `object` could be the context, and type checkers take it for that; give it the type that it has.
    """

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> TaskType[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> TaskType[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> TaskType[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskType[P, R, R]: ...


class Tasks:
    """Declarations that stand on their own until an app includes them: `tasks = Tasks()`, then `app.include(tasks)`."""

    def __init__(self) -> None:
        self.types: dict[str, TaskType[..., Any, Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.limits: dict[str, bytes] = {}
        self._parent: Tasks | None = None
        self._client: Submitter[Any] | None = None

    @property
    def app(self) -> App:
        """The app that includes these."""
        root = self.root()
        if root is None:
            raise AppError("these tasks belong to no app yet", code="no_app", hint="app.include(tasks) in the file of the app, or client.include(tasks)")
        return root

    def root(self) -> App | None:
        """The app, if there is one yet."""
        return None if self._parent is None else self._parent.root()

    def submitter(self) -> Submitter[Any]:
        """What these are submitted through: the app that includes them, or the client."""
        if self._client is not None:
            return self._client
        return self.app if self._parent is None else self._parent.submitter()

    def submit_through(self, client: Submitter[Any]) -> None:
        """From here on these, and what they include, are submitted through a client; nobody runs them in this program."""
        self._check_free()
        self._client = client

    def _check_free(self) -> None:
        if self.root() is not None or self._parent is not None or self._client is not None:
            raise AppError("these tasks are included already", code="included_twice", field="include", hint="include each Tasks once, and no App")

    def include(self, tasks: Tasks) -> None:
        """Make these declarations, and those that are still to come, part of this."""
        if tasks is self:
            raise AppError("tasks cannot include themselves", code="included_twice", field="include", hint="include each Tasks once, and no App")
        tasks._check_free()
        for kind in _KINDS:
            for name, value in getattr(tasks, kind).items():
                self._add(kind, name, value)
        tasks._parent = self

    def _add(self, kind: Kind, name: str, value: object) -> None:
        """Declared here and in everything that includes this; whoever has the name already keeps it."""
        holders: list[Tasks] = [self]
        while holders[-1]._parent is not None:
            holders.append(holders[-1]._parent)
        if any(name in getattr(holder, kind) for holder in holders):
            raise AppError(f"there is a {_KINDS[kind]} {name!r} already", code="name_taken", field=name, hint="give this one another name=")
        for holder in holders:
            getattr(holder, kind)[name] = value

    def limit(self, name: str, *, rate: str | None = None, cap: int | None = None) -> str:
        """A limit that types refer to by `limits=(name,)`: at most so many starts in a time ("3/s"), at most `cap` at once; over all workers."""
        self._add("limits", check_name(name, "limit"), limit_value(rate, cap))
        return name

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> TaskType[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> TaskType[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> TaskType[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskType[P, R, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a handler; `@app.task` or `@app.task(queue="mail", …)`."""
        given = known(options, TaskOptions, "@app.task()")
        return self._declare(function, given) if function is not None else lambda function: self._declare(function, given)

    def _declare(self, function: Any, given: Mapping[str, Any]) -> TaskType[..., Any, Any]:
        _check_function(function)
        name = _type_name(function, given.get("name"))
        fields = type_settings(name, given)
        settings = check_settings(TypeSettings(**fields), name)
        declared: TaskType[..., Any, Any] = TaskType(self, name, function, settings, frozenset(fields), isolated=bool(given.get("isolated")))
        self._add("types", name, declared)
        if "rate_limit" in given or "concurrency" in given:
            self._add("limits", name, limit_value(given.get("rate_limit"), given.get("concurrency"), "rate_limit"))
        return declared

    def schedule(self, expression: str, /, **options: Unpack[ScheduleOptions]) -> Declare:
        """Declare when a task is made by itself: `@app.schedule("0 9 * * MON-FRI", timezone="Europe/Paris", overlap="skip")`."""
        given = known(options, ScheduleOptions, "@app.schedule()")
        start = given.get("start")
        cron = Cron.parse(expression, given.get("timezone", "UTC"), start=None if start is None else instant(start, field="start"))
        return cast("Declare", lambda function: self._scheduled(function, cron, given))

    def _scheduled(self, function: Any, cron: Cron, given: Mapping[str, Any]) -> TaskType[..., Any, Any]:
        of_type = {name: value for name, value in given.items() if name in TaskOptions.__annotations__}
        if isinstance(function, TaskType):
            declared = function
            if of_type.keys() - {"name"}:
                raise InvalidInput("it is an option of the task", code="unknown_option", field=min(of_type.keys() - {"name"}), hint="move it to @app.task()")
        else:
            declared = self._declare(function, of_type)
        name = check_name(given.get("name", declared.name), "name")
        self._add("schedules", name, _schedule(declared, cron, given))
        return declared


Kind = Literal["types", "schedules", "limits"]
_KINDS: Mapping[Kind, str] = {"types": "task type", "schedules": "schedule", "limits": "limit"}


def _schedule(declared: TaskType[..., Any, Any], cron: Cron, given: Mapping[str, Any]) -> Schedule:
    arguments = given.get("arguments", {})
    fields = {name: given[name] for name in ("tenant", "tags", "headers") if name in given}
    if "expires" in given:
        fields["expires"] = duration(given["expires"], field="expires")
    return Schedule(
        type=declared.name,
        cron=cron,
        payload=declared.binding.payload((), arguments),
        overlap=Overlap(choice(given.get("overlap", "allow"), Overlap, "overlap")),
        misfire=Misfire(choice(given.get("misfire", "once"), Misfire, "misfire")),
        queue=declared.settings.queue,
        **fields,
    )


def _check_function(function: object) -> None:
    if isinstance(function, TaskType):
        raise AppError(f"{function.name} is a task already", code="invalid_handler", hint="decorate the function once")
    if isinstance(function, str):
        raise AppError("the decorator takes options by name", code="invalid_handler", field="task", hint=f'@app.task(name="{function:.40}")')
    if not callable(function) or isinstance(function, type):
        raise AppError(f"{function!r:.80} is no function", code="invalid_handler", field="task", hint="decorate a function, def or async def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__name__", "it")
        raise AppError("a handler returns its result, it does not yield", code="invalid_handler", field=name, hint="return a list, or submit a task for each")


def _type_name(function: object, given: object) -> str:
    if given is not None:
        return check_name(given, "name")
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return check_name(name, "name")
    except InvalidInput as error:
        raise AppError(f"{name!r} is no legal name of a type", code="invalid_name", field="name", hint=f'give one by name="…": {error.hint}') from None
