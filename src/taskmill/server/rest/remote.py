"""The worker protocol over HTTP/JSON: join, claim by long poll, beat, checkpoint, finish, leave. docs/api/worker-protocol.md tells it in full.

It is made for programs in any language, so it is written differently from the rest in two points. A token is a text of digits: on a Redis Cluster tokens are
larger than 2^53, and a number in JavaScript would silently become another token. Durations in answers are numbers of seconds, so that nobody has to take
"90s" apart; in requests both are understood, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from taskmill import codec
from taskmill.clock import SECOND, duration, rfc3339
from taskmill.engine import Checkpoint, Claimed, Ending, Outcome, Refusal
from taskmill.errors import Conflict, InvalidInput, NotFound, StaleLease, TaskmillError
from taskmill.options import limit_value, type_settings
from taskmill.requests import LONGEST_WAIT, wait_of
from taskmill.retry import Retry
from taskmill.server.access import Scope
from taskmill.server.problem import Problem, invalid, problem_of
from taskmill.server.rest.tasks import TaskBody, read_task, task_of
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.server.shapes import Cap, Count, Duration, Id, Json, Key, Name, RateText, RetryData
from taskmill.task import ErrorInfo, NewTask, OnFailure, Progress, TypeSettings, Unique, check_id, check_name, check_range
from taskmill.views import priority_word

__all__ = ["BEATS", "BELONGS", "LONGEST_WAIT", "ROUTES"]

BEATS = 3
"""Beats in a lease: two of them may be lost."""
MOST_OUTCOMES = 1_000
BODY_LIMIT = 32 << 20
LONGEST_MESSAGE, LONGEST_TRACEBACK = 2_000, 16_000

Token = Annotated[str, Meta(description="As it was given: digits, possibly more than a double can hold.", extra_json_schema={"pattern": "^[0-9]{1,19}$"})]
Worker = Annotated[str, Meta(description="The id that join answered.", extra_json_schema={"maxLength": 64})]
Item = TypeVar("Item", bound=Struct)
Made = TypeVar("Made")


# Joining


class TypeBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What tasks of a type get unless they say otherwise."""

    queue: Name | None = None
    priority: Literal["critical", "high", "normal", "low"] | None = None
    retry: RetryData | None = None
    max_retries: Count | None = None
    timeout: Duration | None = None
    max_crashes: Count | None = None
    rate_limit: RateText | None = None
    """Starts in a time, over all workers: "100/m"."""
    concurrency: Cap | None = None
    """At once, over all workers."""
    limits: Key | list[Key] | None = None
    on_limit: Literal["delay", "reject"] | None = None
    unique: Key | None = None
    fair: Key | None = None
    ordered: bool | Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class JoinBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A worker that begins: what it can run, and from which queues."""

    types: dict[str, TypeBody | None] | list[Name]
    """By name, with settings, or null for those that the store has; or names alone."""
    queues: list[Name] = []
    """Those of its types, unless it says otherwise."""
    lease: Duration | None = None
    """How long it may be silent before what it holds is given to others: 2s to 1d, 30s unless it says otherwise."""
    info: dict[str, str] = {}
    """Shown to operators: its language, host, version."""


async def join_worker(call: Call[Nothing, JoinBody]) -> Answer:
    body = call.body
    given = body.types if isinstance(body.types, dict) else dict.fromkeys(body.types)
    types: dict[str, TypeSettings | None] = {}
    limits: dict[str, bytes] = {}
    for name, declared in given.items():
        types[name] = None if declared is None else _settings(check_name(name, "types"), declared, body.queues, limits)
    lease = None if body.lease is None else duration(body.lease, field="lease")
    worker, granted = await call.service.crew.join(call.caller, queues=body.queues, types=types, lease=lease, info=body.info, limits=limits)
    return Answer({"worker": worker, "lease": _seconds(granted), "beat_every": _seconds(granted // BEATS)})


def _settings(name: str, body: TypeBody, queues: Sequence[str], limits: dict[str, bytes]) -> TypeSettings:
    """The settings that a worker declares, and with them the limits that they come to."""
    given: dict[str, Any] = {field: value for field in body.__struct_fields__ if (value := getattr(body, field)) is not None}
    most = given.pop("max_retries", None)
    if "retry" in given or most is not None:
        given["retry"] = Retry.from_data({**given.get("retry", {}), **({} if most is None else {"max_retries": most})})
    if "unique" in given:
        given["unique"] = Unique(given["unique"])
    if "rate_limit" in given or "concurrency" in given:
        limits[name] = limit_value(given.get("rate_limit"), given.get("concurrency"), "rate_limit")
    given.setdefault("queue", queues[0] if queues else None)
    return TypeSettings(**type_settings(name, {field: value for field, value in given.items() if value is not None}))


class WorkerBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which worker."""

    worker: Worker


async def leave_worker(call: Call[Nothing, WorkerBody]) -> Answer:
    await call.service.crew.leave(call.caller, call.body.worker)
    return Answer({"left": True})


# Claiming


class ClaimBody(WorkerBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker has room for."""

    request: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": (1 << 53) - 1})]
    """Its number: from 1, one more each time, the same again until it is answered."""
    slots: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 1_000})] = 1
    """How many tasks at most."""
    wait: Duration = 0.0
    """How long to wait for the first of them, at most a minute."""
    types: dict[str, Count] = {}
    """At most so many of a type; 0: none now."""


async def claim_tasks(call: Call[Nothing, ClaimBody]) -> Answer:
    body = call.body
    wait = wait_of(body.wait)
    types = {check_name(name, "types"): check_range(most, f"types.{name}", 0, 10_000) for name, most in body.types.items()}
    gone = asyncio.ensure_future(call.gone())
    try:
        claim = await call.service.crew.claim(call.caller, body.worker, body.request, slots=body.slots, wait=wait, types=types, gone=gone)
    finally:
        gone.cancel()
    next_at = None if claim.next_at is None else rfc3339(claim.next_at)
    return Answer({"request": body.request, "tasks": [_claimed(task) for task in claim.tasks], "next_at": next_at, "more": claim.more})


def _claimed(task: Claimed) -> dict[str, Any]:
    """Everything that a handler needs."""
    return {
        "id": task.id,
        "type": task.type,
        "queue": task.queue,
        "payload": msgspec.Raw(task.payload),
        "token": str(task.token),
        "attempt": task.attempt,
        "failures": task.failures,
        "crashes": task.crashes,
        "priority": priority_word(task.priority),
        "tenant": task.tenant,
        "timeout": _seconds(task.timeout),
        "created_at": rfc3339(task.created_at),
        "claimed_at": rfc3339(task.claimed_at),
        "deadline": rfc3339(task.claimed_at + task.timeout),
        "headers": dict(task.headers),
        "checkpoints": {name: msgspec.Raw(value) for name, value in task.checkpoints.items()},
        "signals": [{"number": each.number, "name": each.name, "data": msgspec.Raw(each.data), "at": rfc3339(each.at)} for each in task.signals],
        "results": [{"task": each.task, "outcome": each.outcome, "result": None if each.result is None else msgspec.Raw(each.result)} for each in task.results],
        "must_end": task.must_end,
        "unwind": task.unwind,
        "phase": task.phase,
    }


# While they run


class BeatBody(WorkerBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """That a worker lives, and what it holds."""

    request: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": (1 << 53) - 1})]
    """The last claim whose answer it has; 0 before the first."""
    leases: Annotated[list[Token], Meta(extra_json_schema={"maxItems": 10_000})]
    """The tokens of everything that it holds of the claims up to this one; what it holds and does not name is given back."""


async def beat_worker(call: Call[Nothing, BeatBody]) -> Answer:
    body = call.body
    beat = await call.service.crew.beat(call.caller, body.worker, body.request, [_token(token, "leases") for token in body.leases])
    lost = [str(token) for token in beat.lost]
    return Answer({"known": beat.known, "lost": lost, "cancelled": list(beat.cancelled), "commands": list(beat.commands)})


class ProgressBody(Struct, frozen=True, forbid_unknown_fields=True):
    value: float
    """From 0 to 1."""
    message: str = ""


class EntryBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that a running task has done: a named value that its next attempt finds, or how far it is."""

    task: Id
    token: Token
    name: Name | None = None
    value: Json = None
    progress: ProgressBody | None = None
    unwind: bool | None = None
    """From now on only its handler may end it: a cancel makes it ready, to undo what it did."""
    phase: Name | None = None
    started_after: Duration | None = None
    """How long after the claim its handler began: `started_at` of the running task is that, once it was said."""


class CheckpointBody(WorkerBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    entries: Annotated[list[Any], Meta(min_length=1, max_length=MOST_OUTCOMES, extra_json_schema={"items": {"$ref": "#/components/schemas/EntryBody"}})]


async def checkpoint_tasks(call: Call[Nothing, CheckpointBody]) -> Answer:
    body = call.body
    limit = call.service.settings.payload_limit

    def entry(item: EntryBody) -> Checkpoint:
        return Checkpoint(
            task=check_id(item.task, "task"),
            worker=body.worker,
            token=_token(item.token, "token"),
            name=None if item.name is None else check_name(item.name, "name"),
            value=codec.encode(item.value, field="value", limit=limit),
            progress=None if item.progress is None else _progress(item.progress),
            unwind=item.unwind,
            phase=None if item.phase is None else check_name(item.phase, "phase"),
            started_after=None if item.started_after is None else duration(item.started_after, field="started_after"),
        )

    answers = _Answers(body.entries, EntryBody, entry)
    if answers.read:
        answers.refuse(await call.service.crew.checkpoint(call.caller, answers.read))
    return answers.answer()


def _progress(body: ProgressBody) -> Progress:
    if not 0 <= body.value <= 1:
        raise InvalidInput(f"{body.value!r:.40} is no progress", code="out_of_range", field="progress.value", hint="a number from 0 to 1")
    return Progress(body.value, body.message[:LONGEST_MESSAGE])


# Ending


class ErrorBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why an attempt failed."""

    code: Key
    """Stable, a name where it can be: rules of a retry policy go by it."""
    message: str = ""
    traceback: str = ""


class OutcomeBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one attempt ended. What does not belong to its ending is refused."""

    task: Id
    token: Token
    ending: Literal["completed", "failed", "dead", "snoozed", "waiting", "cancelled", "released", "crashed"]
    result: Json | UnsetType = UNSET
    """completed: what it came to."""
    error: ErrorBody | None = None
    """failed, dead, crashed: why."""
    retry_after: Duration | None = None
    """failed: when to try again, instead of what the task's policy says."""
    after: Duration | None = None
    """snoozed: when to go on."""
    signals: list[Name] = []
    """waiting: for one of these …"""
    seen: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": (1 << 53) - 1})] = 0
    """… behind the signal of this number …"""
    tasks: list[Id] = []
    """… and for the end of all of these …"""
    on_failure: Literal["cancel", "ignore", "hold"] = "cancel"
    deadline: Duration | None = None
    """… or until this much time has passed."""
    then: Annotated[list[Any], Meta(max_length=MOST_OUTCOMES, extra_json_schema={"items": {"$ref": "#/components/schemas/TaskBody"}})] = []
    """Tasks that exist if and only if this outcome is applied; one that waits, waits for them."""
    started_after: Duration | None = None
    """How long after the claim its handler began."""


class FinishBody(WorkerBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    outcomes: Annotated[list[Any], Meta(min_length=1, max_length=MOST_OUTCOMES, extra_json_schema={"items": {"$ref": "#/components/schemas/OutcomeBody"}})]


_ENDINGS = {**{ending.value: ending for ending in Ending}, "failed": Ending.RETRY}
BELONGS = {
    "result": {"completed"},
    "error": {"failed", "dead", "crashed"},
    "retry_after": {"failed"},
    "after": {"snoozed"},
    "signals": {"waiting"},
    "seen": {"waiting"},
    "tasks": {"waiting"},
    "on_failure": {"waiting"},
    "deadline": {"waiting"},
    "then": {"completed", "waiting"},
}


async def finish_tasks(call: Call[Nothing, FinishBody]) -> Answer:
    body = call.body
    answers = _Answers(body.outcomes, OutcomeBody, lambda item: _outcome(call, item))
    if answers.read:
        finished = await call.service.crew.finish(call.caller, answers.read)
        answers.refuse(finished.refused, finished.instead)
    return answers.answer()


def _outcome(call: Call[Nothing, FinishBody], item: OutcomeBody) -> Outcome:
    _check_belongs(item)
    error = item.error
    ended = item.ending in {"released", "cancelled"}
    started = None if ended and item.started_after is None else duration(item.started_after or 0, field="started_after")
    return Outcome(
        task=check_id(item.task, "task"),
        worker=call.body.worker,
        token=_token(item.token, "token"),
        ending=_ENDINGS[item.ending],
        result=_result(call, item),
        error=None if error is None else ErrorInfo(error.code[:256], error.message[:LONGEST_MESSAGE], error.traceback[-LONGEST_TRACEBACK:]),
        after=duration(item.retry_after or item.after or 0, field="after"),
        signals=tuple(check_name(name, "signals") for name in item.signals),
        seen=check_range(item.seen, "seen", 0, (1 << 53) - 1),
        tasks=tuple(check_id(id, "tasks") for id in item.tasks),
        on_failure=OnFailure(item.on_failure),
        deadline=None if item.deadline is None else duration(item.deadline, field="deadline"),
        then=tuple(_follower(call, each) for each in item.then),
        started_after=started,
    )


def _result(call: Call[Nothing, FinishBody], item: OutcomeBody) -> bytes | None:
    if item.ending != "completed":
        return None
    return codec.encode(None if item.result is UNSET else item.result, field="result", limit=call.service.settings.payload_limit)


def _check_belongs(item: OutcomeBody) -> None:
    for field, endings in BELONGS.items():
        value = getattr(item, field)
        if value is not UNSET and value not in (None, [], 0, "cancel") and item.ending not in endings:
            raise InvalidInput(
                f"it does not belong to an attempt that is {item.ending}",
                code="contradiction",
                field=field,
                hint=f"leave it out, or end as {', '.join(sorted(endings))}",
            )
    if item.ending == "waiting" and not (item.tasks or item.then or item.signals or item.deadline is not None):
        raise InvalidInput("a wait for nothing would never end", code="required", field="signals", hint="name signals, tasks or a deadline")
    if item.ending == "snoozed" and item.after is None:
        raise InvalidInput("it is required", code="required", field="after", hint="how long it snoozes")


def _follower(call: Call[Nothing, FinishBody], item: Any) -> NewTask:
    service = call.service
    try:
        body = read_task(codec.write(item))
    except msgspec.ValidationError as error:
        raise invalid(error, TaskBody.__struct_fields__) from None
    return task_of(body, service.engine.new_id, payload_limit=service.settings.payload_limit, now=service.engine.clock.now())[0]


# Answering


class _Answers:
    """The answers to a batch, each item judged by itself: one that cannot be read or is refused keeps no other from being applied."""

    def __init__(self, items: Sequence[Any], kind: type[Item], read: Callable[[Item], Made]) -> None:
        self._errors: dict[int, TaskmillError] = {}
        self._states: Mapping[str, str] = {}
        self._ids = [_named(item) for item in items]
        self._places: list[int] = []
        self.read: list[Any] = []
        for place, item in enumerate(items):
            try:
                self.read.append(read(msgspec.convert(item, kind)))
                self._places.append(place)
            except msgspec.ValidationError as error:
                self._errors[place] = invalid(error, kind.__struct_fields__)
            except TaskmillError as error:
                self._errors[place] = error

    def refuse(self, refused: Sequence[Refusal], instead: Mapping[str, str] | None = None) -> None:
        """What the store did not take, and what came to something else than was asked for."""
        self._states = instead or {}
        by_lease = {(refusal.task, refusal.token): refusal for refusal in refused}
        for place, item in zip(self._places, self.read, strict=True):
            refusal = by_lease.get((item.task, item.token))
            if refusal is not None:
                self._errors[place] = _refused(refusal)

    def answer(self) -> Answer:
        """One that was sent alone is answered alone: its refusal is the refusal of the request."""
        if len(self._ids) == 1 and self._errors:
            raise self._errors[0]
        answers = [self._one(place, *ids) for place, ids in enumerate(self._ids)]
        return Answer({"applied": len(answers) - len(self._errors), "refused": len(self._errors), "answers": answers})

    def _one(self, place: int, task: str | None, token: str | None) -> dict[str, str | bool | Problem | None]:
        error = self._errors.get(place)
        found: dict[str, str | bool | Problem | None] = {"task": task, "token": token, "applied": error is None}
        if error is not None:
            found["error"] = problem_of(error)
        elif task is not None and task in self._states:
            found["state"] = self._states[task]
        return found


def _named(item: Any) -> tuple[str | None, str | None]:
    """Which task and lease an item is about, as far as it says so."""
    named = [item.get(name) if isinstance(item, dict) else None for name in ("task", "token")]
    task, token = (value[:80] if isinstance(value, str) else None for value in named)
    return task, token


def _refused(refusal: Refusal) -> TaskmillError:
    if refusal.code == "stale_lease":
        return StaleLease("the lease is no longer current; nothing was written", hint="stop working on it: it is another's, or over", task_id=refusal.task)
    if refusal.code == "not_found":
        return NotFound(f"there is no task {refusal.task}", field="task", hint="stop working on it", task_id=refusal.task)
    return Conflict(refusal.message or "the store refuses it", code=refusal.code, hint="end the attempt in another way", task_id=refusal.task)


def _token(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 1 << 63):
        raise InvalidInput(f"{text!r:.40} is no token", code="invalid_token", field=field, hint="the text of digits that came with the task")
    return int(text)


def _seconds(micros: int) -> float:
    return micros / SECOND


def _route(verb: str, handler: Handler, summary: str, body: type, gives: str, **more: Any) -> Route:
    return Route(method="POST", path=f"/api/v1/worker/{verb}", handler=handler, summary=summary, scope=Scope.WORKER, whole=True, body=body, gives=gives, **more)


ROUTES = (
    _route("join", join_worker, "Begin as a worker", JoinBody, "Joined"),
    _route("claim", claim_tasks, "Get tasks to run, as soon as there are any", ClaimBody, "ClaimedTasks", refuses=(404,)),
    _route("beat", beat_worker, "Say that the worker lives and what it holds", BeatBody, "Beat", refuses=(404,)),
    _route(
        "checkpoint",
        checkpoint_tasks,
        "Keep what running tasks have done so far",
        CheckpointBody,
        "Applied",
        parts=(EntryBody,),
        body_limit=BODY_LIMIT,
        refuses=(404, 409),
    ),
    _route("finish", finish_tasks, "Say how attempts ended", FinishBody, "Applied", parts=(OutcomeBody, TaskBody), body_limit=BODY_LIMIT, refuses=(404, 409)),
    _route("leave", leave_worker, "End as a worker; what it still holds is released", WorkerBody, "Left", refuses=(404,)),
)
