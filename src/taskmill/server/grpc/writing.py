"""The records of the product as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from taskmill.clock import SECOND
from taskmill.engine import Changed, Claim, Claimed, Durability, Refusal, Status, Submitted, WorkerInfo
from taskmill.operations import LimitInfo, QueueInfo, ScheduleInfo, Tally, TypeInfo
from taskmill.retry import Retry
from taskmill.schedule import Schedule
from taskmill.server.access import Key
from taskmill.server.grpc.reading import STATES
from taskmill.server.grpc.statuses import problem_of
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import Attempt, EdgeResult, ErrorInfo, OnFailure, OnLimit, Signal, State, Task, Unique

__all__ = [
    "answers_of",
    "changed_of",
    "claim_of",
    "duration_of",
    "edge_of",
    "instant_of",
    "key_of",
    "limit_of",
    "queue_of",
    "refusals_of",
    "schedule_of",
    "state_of",
    "submitted_of",
    "tally_of",
    "task_of",
    "type_of",
    "worker_of",
]

_STATE_NUMBERS: Mapping[State, pb.State.ValueType] = {state: pb.State.Value(pb.State.Name(number)) for number, state in STATES.items()}  # type: ignore[arg-type]
_STATUSES = {status: pb.SubmitStatus.Value(f"SUBMIT_STATUS_{status.name}") for status in Status}
_DURABILITIES = {level: pb.Durability.Value(f"DURABILITY_{level.name}") for level in Durability}
_ON_FAILURE = {each: pb.OnFailure.Value(f"ON_FAILURE_{each.name}") for each in OnFailure}
_ON_LIMIT = {each: pb.OnLimit.Value(f"ON_LIMIT_{each.name}") for each in OnLimit}
_PRIORITIES = (pb.PRIORITY_LOW, pb.PRIORITY_NORMAL, pb.PRIORITY_HIGH, pb.PRIORITY_CRITICAL)


def instant_of(micros: int) -> Timestamp:
    seconds, rest = divmod(micros, SECOND)
    return Timestamp(seconds=seconds, nanos=rest * 1_000)


def _instant(micros: int | None) -> Timestamp | None:
    return None if micros is None else instant_of(micros)


def duration_of(micros: int) -> Duration:
    seconds, rest = divmod(micros, SECOND)
    return Duration(seconds=seconds, nanos=rest * 1_000)


def state_of(state: State) -> pb.State.ValueType:
    return _STATE_NUMBERS[state]


# Submits


def submitted_of(answer: Submitted) -> pb.Submitted:
    if answer.error is None:
        return pb.Submitted(status=_STATUSES[answer.status], id=answer.id, durability=_DURABILITIES[answer.durability])
    return pb.Submitted(status=_STATUSES[answer.status], id=answer.id, durability=_DURABILITIES[answer.durability], problem=problem_of(answer.error))


def answers_of(answers: Iterable[Submitted]) -> pb.SubmitBatchResponse:
    return pb.SubmitBatchResponse(answers=[submitted_of(answer) for answer in answers])


# Tasks


def task_of(task: Task, *, payloads: bool, attempts: Sequence[Attempt] = ()) -> pb.Task:
    """`payloads`: the caller may see what went in and what came out. What a handler writes may hold some of it, so of that only codes and numbers are left."""
    return pb.Task(
        id=task.id,
        type=task.type,
        queue=task.queue,
        payload=task.payload if payloads else b"",
        priority=_PRIORITIES[task.priority],
        state=state_of(task.state),
        version=task.version,
        run_at=instant_of(task.run_at),
        executions=task.executions,
        failures=task.failures,
        crashes=task.crashes,
        cancel_requested=task.cancel_requested,
        limits=task.limits,
        fair_key=task.fair_key,
        order_key=task.order_key or "",
        retry=_retry(task.retry),
        timeout=duration_of(task.timeout),
        max_crashes=task.max_crashes,
        expires_at=_instant(task.expires_at),
        idempotency_key=task.idempotency_key or "",
        idempotency_window=duration_of(task.idempotency_window),
        unique=_unique(task.unique),
        tenant=task.tenant,
        headers=task.headers if payloads else {},
        tags=task.tags,
        open_edges=task.open_edges,
        sealed=task.sealed,
        result=(task.result or b"") if payloads else b"",
        error=_error(task.error, whole=payloads),
        progress=None if task.progress is None else pb.Progress(value=task.progress.value, message=task.progress.message if payloads else ""),
        worker=task.worker or "",
        created_at=instant_of(task.created_at),
        updated_at=instant_of(task.updated_at),
        started_at=_instant(task.started_at),
        finished_at=_instant(task.finished_at),
        attempts=[_attempt(attempt, whole=payloads) for attempt in attempts],
    )


def _attempt(attempt: Attempt, *, whole: bool) -> pb.Attempt:
    return pb.Attempt(
        number=attempt.number,
        worker=attempt.worker,
        started_at=instant_of(attempt.started_at),
        ended_at=_instant(attempt.ended_at),
        outcome=attempt.outcome or "",
        error=_error(attempt.error, whole=whole),
    )


def _error(error: ErrorInfo | None, *, whole: bool) -> pb.Error | None:
    if error is None or not whole:
        return None if error is None else pb.Error(code=error.code)
    return pb.Error(code=error.code, message=error.message, traceback=error.traceback)


def _unique(unique: Unique | None) -> pb.Unique | None:
    return None if unique is None else pb.Unique(key=unique.key, until=unique.until, on_conflict=unique.on_conflict)


def _retry(retry: Retry) -> pb.Retry:
    return pb.Retry(
        kind=retry.kind,
        max_retries=retry.max_retries,
        base=duration_of(retry.base),
        factor=retry.factor,
        cap=duration_of(retry.cap),
        jitter=retry.jitter,
        delays=[duration_of(delay) for delay in retry.delays],
        rules=[pb.RetryRule(error=rule.error, action=rule.action, after=duration_of(rule.after) if rule.action == "after" else None) for rule in retry.rules],
    )


# Changes


def tally_of(tally: Tally) -> pb.ChangeResponse:
    return pb.ChangeResponse(matched=tally.matched, done=tally.done, requested=tally.requested, refused=tally.refused)


def changed_of(changed: Changed) -> pb.ChangeResponse:
    return pb.ChangeResponse(
        matched=1,
        done=0 if changed.requested else 1,
        requested=int(changed.requested),
        state=pb.STATE_UNSPECIFIED if changed.state is None else state_of(changed.state),
        version=changed.version or 0,
    )


# Workers


def claim_of(claim: Claim, request: int) -> pb.ClaimResponse:
    return pb.ClaimResponse(tasks=[_claimed(task) for task in claim.tasks], request=request)


def _claimed(task: Claimed) -> pb.ClaimedTask:
    return pb.ClaimedTask(
        id=task.id,
        type=task.type,
        queue=task.queue,
        payload=task.payload,
        token=task.token,
        attempt=task.attempt,
        priority=_PRIORITIES[task.priority],
        failures=task.failures,
        crashes=task.crashes,
        timeout=duration_of(task.timeout),
        tenant=task.tenant,
        headers=task.headers,
        created_at=instant_of(task.created_at),
        claimed_at=instant_of(task.claimed_at),
        expires_at=_instant(task.expires_at),
        checkpoints=task.checkpoints,
        signals=[_signal(signal) for signal in task.signals],
        results=[edge_of(edge) for edge in task.results],
    )


def _signal(signal: Signal) -> pb.Signal:
    return pb.Signal(number=signal.number, name=signal.name, data=signal.data, at=instant_of(signal.at))


def edge_of(edge: EdgeResult, *, payloads: bool = True) -> pb.EdgeResult:
    outcome = pb.STATE_UNSPECIFIED if edge.outcome is None else state_of(edge.outcome)
    return pb.EdgeResult(task=edge.task, outcome=outcome, result=(edge.result or b"") if payloads else b"", on_failure=_ON_FAILURE[edge.on_failure])


def refusals_of(refused: Iterable[Refusal]) -> list[pb.Refusal]:
    return [pb.Refusal(task=each.task, token=each.token, code=each.code, message=each.message) for each in refused]


# The store


def queue_of(info: QueueInfo) -> pb.Queue:
    settings = info.settings
    return pb.Queue(
        name=info.name,
        paused=info.paused,
        reason=info.reason,
        counts={state.value: info.counts.get(state, 0) for state in State},
        oldest=None if info.oldest is None else duration_of(info.oldest),
        no_worker=info.no_worker,
        workers=info.workers,
        settings=pb.QueueSettings(weights=settings.weights, priorities=settings.priorities or (), fair=settings.fair or "", partitions=settings.partitions),
        version=info.version,
    )


def type_of(info: TypeInfo) -> pb.Type:
    known = info.settings
    settings = pb.TypeSettings(
        queue=known.queue,
        priority=_PRIORITIES[known.priority],
        retry=None if known.retry is None else _retry(known.retry),
        timeout=duration_of(known.timeout),
        max_crashes=known.max_crashes,
        limits=known.limits,
        on_limit=_ON_LIMIT[known.on_limit],
        unique=_unique(known.unique),
        fair=known.fair or "",
        ordered=known.ordered or "",
    )
    return pb.Type(
        name=info.name, settings=settings, version=info.version, operator=info.operator, paused=info.paused, reason=info.reason, workers=info.workers
    )


def schedule_of(info: ScheduleInfo) -> pb.Schedule:
    return pb.Schedule(
        name=info.name,
        spec=None if info.schedule is None else _spec(info.schedule),
        version=info.version,
        operator=info.operator,
        paused=info.paused,
        reason=info.reason,
        next_at=_instant(info.next_at),
        last=info.last or "",
        fired_at=_instant(info.fired_at),
        error=info.error or "",
    )


def _spec(schedule: Schedule) -> pb.ScheduleSpec:
    cron = schedule.cron
    task = pb.NewTask(
        type=schedule.type,
        payload=schedule.payload,
        queue=schedule.queue or "",
        priority=pb.PRIORITY_UNSPECIFIED if schedule.priority is None else _PRIORITIES[schedule.priority],
        retry=None if schedule.retry is None else _retry(schedule.retry),
        timeout=None if schedule.timeout is None else duration_of(schedule.timeout),
        max_crashes=schedule.max_crashes,
        headers=schedule.headers,
        tags=schedule.tags,
        limits=schedule.limits or (),
    )
    return pb.ScheduleSpec(
        cron=cron.expression,
        timezone=cron.timezone,
        start=_instant(cron.start),
        overlap=schedule.overlap.value,
        misfire=schedule.misfire.value,
        task=task,
        expires=None if schedule.expires is None else duration_of(schedule.expires),
        tenant=schedule.tenant,
    )


def worker_of(info: WorkerInfo) -> pb.Worker:
    return pb.Worker(
        id=info.id,
        queues=info.queues,
        types=info.types,
        lease=duration_of(info.lease),
        joined_at=instant_of(info.joined_at),
        silent=None if info.silent is None else duration_of(info.silent),
        alive=info.alive,
        running=info.running,
        info=info.info,
        command=info.command or "",
    )


def limit_of(info: LimitInfo) -> pb.Limit:
    limit = info.limit
    window = None if limit.rate is None else duration_of(limit.window)
    return pb.Limit(name=info.name, numbers=pb.LimitNumbers(rate=limit.rate, window=window, cap=limit.cap), version=info.version, operator=info.operator)


def key_of(key: Key) -> pb.Key:
    return pb.Key(
        id=key.id,
        name=key.name,
        scopes=[scope.value for scope in key.scopes],
        tenant=key.tenant or "",
        rate=key.rate or 0,
        depth=key.depth or 0,
        created_at=instant_of(key.created_at),
    )
