"""Tasks over HTTP: submitted, looked at, waited for, changed one by one or all that match."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from taskmill import codec, requests
from taskmill.engine import Durability, Filter, Status, Submitted
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.operations import Tally
from taskmill.options import submit_fields
from taskmill.retry import MAX_RETRIES, Retry
from taskmill.server.access import Caller, Scope
from taskmill.server.problem import Problem, invalid, problem_of
from taskmill.server.rest.pages import page_of
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.server.shapes import Count, Cursor, Duration, DurationText, Id, Ids, Instant, Key, Limit, Name, RetryData, Share, StateWord, Tag, Version
from taskmill.task import MOST_BATCH_EDGES, Edge, NewTask, OnFailure, State, Task, Unique, check_key, check_name, check_range, sequence_of
from taskmill.views import attempt_data, edge_data, task_data

__all__ = ["ROUTES", "Conditions", "DeadBody", "filter_of", "tally_answer", "task_answer", "task_of", "which_of"]

TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header traceparent, as W3C has it."""
BATCH_LIMIT = 32 << 20
READ_AT_ONCE = 500
BYTES_AT_ONCE = 128 << 10
"""Tasks of a batch, and their bytes, that are looked at before others have their turn."""
BESIDE_PAYLOAD = 1 << 20
"""Bytes that one task of a batch may have beside its payload."""


class UniqueBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Only one live task of its type holds this key."""

    key: str
    until: Literal["started", "ended"] = "ended"
    on_conflict: Literal["keep", "replace"] = "keep"


class ParentBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The task that waits for this one, and what it means to it when this one does not complete."""

    task: Id
    on_failure: Literal["cancel", "ignore", "hold"] = "cancel"


class TaskBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task to submit. What is left out, its type decides."""

    type: Name
    payload: Annotated[Raw, Meta(description="Any JSON value.")]
    id: Id | UnsetType | None = UNSET
    """Yours, so that a repeat is one task; otherwise one is made."""
    queue: Name | UnsetType | None = UNSET
    priority: Literal["critical", "high", "normal", "low"] | UnsetType | None = UNSET
    delay: Duration | UnsetType | None = UNSET
    run_at: Instant | UnsetType | None = UNSET
    retry: RetryData | UnsetType | None = UNSET
    max_retries: Count | UnsetType | None = UNSET
    """Short for a retry policy that differs in this alone."""
    timeout: Duration | UnsetType | None = UNSET
    max_crashes: Count | UnsetType | None = UNSET
    expires: Duration | UnsetType | None = UNSET
    """The deadline of the whole task, this long from now: unless it runs at that time, it is cancelled, and it is not tried again."""
    expires_at: Instant | UnsetType | None = UNSET
    idempotency_key: Key | UnsetType | None = UNSET
    """One task per key; the header Idempotency-Key says the same."""
    idempotency_window: Duration | UnsetType | None = UNSET
    unique: Key | UniqueBody | UnsetType | None = UNSET
    tags: dict[str, str] | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    after: Id | list[Id] | UnsetType | None = UNSET
    """The tasks that it waits for."""
    on_failure: Literal["cancel", "ignore", "hold"] | UnsetType | None = UNSET
    parent: Id | ParentBody | UnsetType | None = UNSET
    """The task that waits for this one: in the same batch, or sealed."""
    sealed: bool | UnsetType | None = UNSET
    """It waits until `:unseal` breaks its seal and all tasks that name it as `parent` have ended: for more than 10,000 tasks to wait for."""
    limits: Key | list[Key] | UnsetType | None = UNSET
    on_limit: Literal["delay", "reject"] | UnsetType | None = UNSET
    fair_key: Share | UnsetType | None = UNSET
    order_key: Key | UnsetType | None = UNSET
    durability: Literal["local", "fsync", "replicated"] | UnsetType | None = UNSET


_OPTIONS = tuple(name for name in TaskBody.__struct_fields__ if name not in {"type", "payload"})
_options = attrgetter(*_OPTIONS)

NewId = Callable[[str], str]


class BatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Many tasks; each is answered by itself."""

    tasks: Annotated[
        list[Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/TaskBody"})]], Meta(min_length=1, max_length=requests.MOST_TASKS)
    ]
    durability: Literal["local", "fsync", "replicated"] | None = None


# Submitting


def task_of(body: TaskBody, new_id: NewId, *, payload_limit: int, key: str | None = None, now: int = 0) -> tuple[NewTask, Durability | None]:
    """The new task of a body that was read, and how durable it shall be."""
    payload = codec.sized(bytes(body.payload), limit=payload_limit)
    type = check_name(body.type, "type")
    if key is None and body == TaskBody(type=body.type, payload=body.payload, queue=body.queue):  # most tasks have no more than a queue
        queue = None if body.queue is UNSET or body.queue is None else check_name(body.queue, "queue")
        return NewTask(type=type, payload=payload, queue=queue, id=new_id(queue or "default")), None
    options = {name: value for name, value in zip(_OPTIONS, _options(body), strict=True) if value is not UNSET and value is not None}
    if key is not None and options.setdefault("idempotency_key", key) != key:
        raise InvalidInput("the header and the body name different keys", field="idempotency_key", hint="give it once")
    if "idempotency_key" in options:
        check_key(options["idempotency_key"], "idempotency_key")
    wanted = submit_fields(_read(options), "a task")
    fields = wanted.fields
    if "id" not in fields:
        fields["id"] = new_id(fields.get("queue") or "default")
    if wanted.expires is not None:
        fields["expires_at"] = now + wanted.expires
    return NewTask(type=type, payload=payload, **fields), wanted.durability


read_task = msgspec.json.Decoder(TaskBody).decode


def _read(options: dict[str, Any]) -> dict[str, Any]:
    """JSON has no policies and no keys with settings of their own; these are read here, all else as everywhere."""
    if "retry" in options:
        options["retry"] = Retry.from_data(options["retry"])
    if "max_retries" in options:
        options["retry"] = msgspec.structs.replace(
            options.get("retry", Retry()), max_retries=check_range(options.pop("max_retries"), "max_retries", 0, MAX_RETRIES)
        )
    unique = options.get("unique")
    if isinstance(unique, UniqueBody):
        options["unique"] = Unique(unique.key, unique.until, unique.on_conflict)
    parent = options.get("parent")
    if isinstance(parent, ParentBody):
        options["parent"] = Edge(parent.task, OnFailure(parent.on_failure))
    return options


async def submit_task(call: Call[Nothing, TaskBody]) -> Answer:
    key = call.headers.get(b"idempotency-key")
    service = call.service
    new, durability = task_of(
        call.body,
        service.new_id,
        payload_limit=service.settings.payload_limit,
        key=None if key is None else _header_key(key),
        now=service.engine.clock.now(),
    )
    answer = await service.desk.submit(call.caller, _traced(new, call.headers), durability)
    return Answer(_accepted(answer), ((b"location", f"/api/v1/tasks/{answer.id}".encode()),))


def _header_key(header: bytes) -> str:
    try:
        return header.decode()
    except UnicodeDecodeError:
        raise InvalidInput("the header is not UTF-8", code="invalid_key", field="idempotency_key", hint="1 to 256 printable characters") from None


def _traced(new: NewTask, headers: Mapping[bytes, bytes]) -> NewTask:
    """A task without a trace of its own belongs to that of the request, where there is one."""
    if b"traceparent" not in headers:
        return new
    parent = headers[b"traceparent"].decode("latin-1")
    if not TRACE.fullmatch(parent) or "traceparent" in new.headers:
        return new
    return msgspec.structs.replace(new, headers={**new.headers, "traceparent": parent})


class Accepted(Struct, frozen=True, omit_defaults=True):
    """What became of one task."""

    id: str | None = None
    status: Status | None = None
    durability: Durability | None = None
    error: Problem | None = None


def _accepted(answer: Submitted) -> Accepted:
    return Accepted(answer.id, answer.status, answer.durability, None if answer.error is None else problem_of(answer.error))


async def submit_batch(call: Call[Nothing, BatchBody]) -> Answer:
    """One that is refused keeps no other from being stored."""
    answers: list[Accepted] = []
    groups: dict[Any, list[tuple[int, NewTask]]] = {}
    for place, (task, durability, error) in enumerate(await _read_batch(call)):
        answers.append(Accepted(error=error))
        if task is not None:
            groups.setdefault(durability or call.body.durability, []).append((place, task))
    for durability, placed in groups.items():
        given = await call.desk.submit_many(call.caller, [task for _, task in placed], durability)
        for (place, _), answer in zip(placed, given, strict=True):
            answers[place] = _accepted(answer)
    refused = sum(answer.error is not None for answer in answers)
    return Answer({"accepted": len(answers) - refused, "refused": refused, "answers": answers})


async def _read_batch(call: Call[Nothing, BatchBody]) -> list[tuple[NewTask | None, Any, Any]]:
    service = call.service
    new_id, limit, now = service.new_id, service.settings.payload_limit, service.engine.clock.now()
    found: list[tuple[NewTask | None, Any, Any]] = []
    size = edges = 0
    for number, item in enumerate(map(bytes, call.body.tasks), 1):
        size += len(item)
        if number % READ_AT_ONCE == 0 or size > BYTES_AT_ONCE:
            size = 0
            await asyncio.sleep(0)
        codec.check_depth(item, 2, field="body")
        try:
            codec.sized(item, field="task", limit=limit + BESIDE_PAYLOAD)
            task, durability = task_of(read_task(item), new_id, payload_limit=limit, now=now)
            found.append((_traced(task, call.headers), durability, None))
            edges += len(task.edges)
        except msgspec.ValidationError as error:
            found.append((None, None, problem_of(invalid(error, TaskBody.__struct_fields__))))
        except TaskmillError as error:
            found.append((None, None, problem_of(error)))
        if edges > MOST_BATCH_EDGES:  # nothing more is made of it
            sequence_of([task for task, _, _ in found if task is not None])
    call.body.tasks.clear()  # the text of the body goes with them
    return found


# Looking


class GetQuery(Struct, frozen=True, forbid_unknown_fields=True):
    wait: DurationText | None = None
    """How long to wait for its end, at most a minute."""


def task_answer(caller: Caller, task: Task) -> dict[str, Any]:
    """The record as this caller may see it."""
    data = task_data(task, raw=True)
    if not caller.may(Scope.READ_PAYLOAD):
        for name in ("payload", "result", "headers"):
            del data[name]
        if task.error is not None:
            data["error"] = {"code": task.error.code}
        if task.progress is not None:
            data["progress"] = {"value": task.progress.value}
    return data


async def get_task(call: Call[GetQuery, None]) -> Answer:
    wait = call.query.wait
    if wait is None:
        task = await call.desk.get(call.caller, call.params["id"])
    else:
        found = await call.service.unless_draining(call.desk.result(call.caller, call.params["id"], requests.wait_of(wait)))
        task = await call.desk.get(call.caller, call.params["id"]) if found is None else found
    return Answer(task_answer(call.caller, task), ((b"etag", f'"{task.version}"'.encode()),))


class WaitBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tasks to wait for; it is answered as soon as one of them has ended, or cannot be seen."""

    ids: Ids
    wait: DurationText = "0s"
    """How long at most, up to a minute."""


class Ended(Struct, frozen=True):
    """Of the tasks named: how those ended that have, and which are not known."""

    ended: dict[str, State]
    unknown: list[str]


async def wait_tasks(call: Call[Nothing, WaitBody]) -> Answer:
    ids, wait = requests.ids_of(call.body.ids), requests.wait_of(call.body.wait)
    found = await call.service.unless_draining(call.desk.wait(call.caller, ids, wait))
    return Answer(Ended({}, []) if found is None else Ended(*found))


async def get_attempts(call: Call[Nothing, None]) -> Answer:
    attempts = await call.desk.attempts(call.caller, call.params["id"])
    data = [attempt_data(attempt) for attempt in attempts]
    if not call.caller.may(Scope.READ_PAYLOAD):
        for each in data:
            error = each.get("error")
            each["error"] = {"code": error["code"]} if isinstance(error, dict) else None
    return Answer({"attempts": data})


class EdgesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=1 << 31)] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


async def get_edges(call: Call[EdgesQuery, None]) -> Answer:
    edges = await call.desk.edges(call.caller, call.params["id"], after=call.query.after, n=call.query.limit)
    data = [edge_data(edge) for edge in edges]
    if not call.caller.may(Scope.READ_PAYLOAD):
        for each in data:
            del each["result"]
    return Answer({"edges": data})


class Conditions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which tasks, of whatever state; all conditions hold."""

    type: list[Name] = []
    queue: list[Name] = []
    tenant: Annotated[str, Meta(description="Those of this tenant; empty: those of none.", extra_json_schema={"maxLength": 128})] | None = None
    tag: list[Tag] = []
    since: Instant | None = None
    """Submitted then or later."""
    until: Instant | None = None
    """Submitted before."""


class FilterQuery(Conditions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which tasks; all conditions hold."""

    state: list[StateWord] = []


class ListQuery(FilterQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Limit = 100
    """At most so many; a page that grows large ends before, and its cursor goes on."""
    cursor: Cursor | None = None


def filter_of(query: Conditions, state: Sequence[str] = ()) -> Filter:
    """The filter that parameters make; `state`: that of a route which has its own."""
    return requests.filter_of(
        state=query.state if isinstance(query, FilterQuery) else state,
        type=query.type,
        queue=query.queue,
        tenant=query.tenant,
        tags=query.tag,
        since=query.since,
        until=query.until,
    )


def which_of(body: ManyBody | DeadBody, state: Sequence[str] = ()) -> Sequence[str] | Filter:
    """The tasks that a body means."""
    ids = None if body.ids is UNSET else body.ids
    which = None if body.filter is UNSET else filter_of(body.filter, state)
    return requests.which_of(ids, which, confirm=body.confirm, dry_run=body.dry_run)


async def list_tasks(call: Call[ListQuery, None]) -> Answer:
    tasks, cursor = await page_of(call, filter_of(call.query), call.query.limit, call.query.cursor)
    return Answer({"tasks": [task_answer(call.caller, task) for task in tasks], "cursor": cursor})


async def count_tasks(call: Call[FilterQuery, None]) -> Answer:
    return Answer({"count": await call.desk.count(call.caller, filter_of(call.query))})


# Changing


class ChangeBody(Struct, frozen=True, forbid_unknown_fields=True):
    version: Version | None = None
    """The version seen; refused when the task has changed since."""
    from_start: bool = False
    """requeue: forget the checkpoints."""


class ManyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The tasks named, or all that match. `dry_run` counts and changes nothing; a filter is not taken without it or `confirm`."""

    ids: Ids | UnsetType = UNSET
    filter: FilterQuery | UnsetType = UNSET
    dry_run: bool = False
    confirm: bool = False
    from_start: bool = False


class DeadBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The dead tasks named, or all that match. `dry_run` counts and changes nothing; a filter is not taken without it or `confirm`."""

    ids: Ids | UnsetType = UNSET
    filter: Conditions | UnsetType = UNSET
    dry_run: bool = False
    confirm: bool = False
    from_start: bool = False
    """requeue: forget the checkpoints."""


async def _change(verb: str, call: Call[Nothing, ChangeBody]) -> Answer:
    changed = await call.desk.change(call.caller, verb, call.params["id"], version=call.body.version, from_start=call.body.from_start)
    return Answer({"id": changed.task, "state": changed.state, "version": changed.version, "requested": changed.requested})


def tally_answer(tally: Tally, *, dry_run: bool) -> Answer:
    return Answer({**msgspec.to_builtins(tally), "refused": dict(tally.refused), "dry_run": dry_run})


async def _change_many(verb: str, call: Call[Nothing, ManyBody]) -> Answer:
    body = call.body
    tally = await call.desk.change_many(call.caller, verb, which_of(body), dry_run=body.dry_run, from_start=body.from_start)
    return tally_answer(tally, dry_run=body.dry_run)


async def cancel_task(call: Call[Nothing, ChangeBody]) -> Answer:
    return await _change("cancel", call)


async def requeue_task(call: Call[Nothing, ChangeBody]) -> Answer:
    return await _change("requeue", call)


async def delete_task(call: Call[Nothing, ChangeBody]) -> Answer:
    return await _change("delete", call)


async def cancel_tasks(call: Call[Nothing, ManyBody]) -> Answer:
    return await _change_many("cancel", call)


async def requeue_tasks(call: Call[Nothing, ManyBody]) -> Answer:
    return await _change_many("requeue", call)


async def delete_tasks(call: Call[Nothing, ManyBody]) -> Answer:
    return await _change_many("delete", call)


class SignalBody(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    data: Any = None
    id: Key | None = None
    """Yours, so that a repeat is one signal."""


async def signal_task(call: Call[Nothing, SignalBody]) -> Answer:
    body = call.body
    if body.id is not None:
        check_key(body.id, "id")
    data = codec.encode(body.data, field="data", limit=call.service.settings.payload_limit)
    return Answer({"number": await call.desk.signal(call.caller, call.params["id"], body.name, data, body.id)})


async def unseal_task(call: Call[Nothing, Nothing]) -> Answer:
    [id] = requests.ids_of([call.params["id"]], "id")
    await call.desk.unseal(call.caller, [id])
    return Answer({"id": id, "sealed": False})


TASKS = "/api/v1/tasks"


def _one(verb: str, handler: Handler, summary: str) -> Route:
    path = f"{TASKS}/{{id}}:{verb}"
    return Route(method="POST", path=path, handler=handler, summary=summary, scope=Scope.CANCEL, body=ChangeBody, gives="Changed", refuses=(404, 409, 410))


def _many(verb: str, handler: Handler, summary: str) -> Route:
    return Route(method="POST", path=f"{TASKS}:{verb}", handler=handler, summary=summary, scope=Scope.CANCEL, body=ManyBody, gives="Tally")


ROUTES = (
    Route(
        method="POST", path=TASKS, handler=submit_task, summary="Submit a task", scope=Scope.SUBMIT, body=TaskBody, status=202, gives="Submitted",
        body_limit=4 << 20, refuses=(409,), headers=("Idempotency-Key",),
    ),
    Route(
        method="POST", path=f"{TASKS}:batch", handler=submit_batch, summary="Submit many tasks; each is answered by itself", scope=Scope.SUBMIT, body=BatchBody,
        status=202, gives="Batch", parts=(TaskBody,), deep_parts=True, body_limit=BATCH_LIMIT,
    ),
    Route(method="GET", path=TASKS, handler=list_tasks, summary="List tasks, newest first", scope=Scope.READ, query=ListQuery, gives="Tasks"),
    Route(method="GET", path=f"{TASKS}:count", handler=count_tasks, summary="How many tasks match", scope=Scope.READ, query=FilterQuery, gives="Number"),
    Route(
        method="POST", path=f"{TASKS}:wait", handler=wait_tasks, summary="Wait until one of the tasks named has ended", scope=Scope.READ, body=WaitBody,
        gives=Ended,
    ),
    _many("cancel", cancel_tasks, "Cancel the tasks named, or all that match"),
    _many("requeue", requeue_tasks, "Run ended tasks again, those named, or all that match"),
    _many("delete", delete_tasks, "Delete ended tasks, those named, or all that match"),
    _one("cancel", cancel_task, "Cancel a task; the worker of a running one is told"),
    _one("requeue", requeue_task, "Run an ended task again"),
    _one("delete", delete_task, "Delete the record of an ended task"),
    Route(
        method="POST", path=f"{TASKS}/{{id}}:signal", handler=signal_task, summary="Send a task a named value", scope=Scope.SUBMIT, body=SignalBody,
        gives="Signalled", refuses=(404, 409, 410),
    ),
    Route(
        method="POST", path=f"{TASKS}/{{id}}:unseal", handler=unseal_task, summary="Break the seal of a task: all that it waits for has been submitted",
        scope=Scope.SUBMIT, body=Nothing, gives="Unsealed", refuses=(404, 409, 410),
    ),
    Route(
        method="GET", path=f"{TASKS}/{{id}}", handler=get_task, summary="One task; `wait` waits for its end", scope=Scope.READ, query=GetQuery, gives="Task",
        refuses=(404, 410),
    ),
    Route(
        method="GET", path=f"{TASKS}/{{id}}/attempts", handler=get_attempts, summary="Every attempt of a task, oldest first", scope=Scope.READ,
        gives="Attempts", refuses=(404, 410),
    ),
    Route(
        method="GET", path=f"{TASKS}/{{id}}/edges", handler=get_edges, summary="What a task waits or waited for", scope=Scope.READ, query=EdgesQuery,
        gives="Edges", refuses=(404, 410),
    ),
)  # fmt: skip
