"""The records of the product as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from taskmill.clock import SECOND
from taskmill.engine import Changed, Claim, Claimed, Durability, Refusal, Status, Submitted
from taskmill.operations import Tally
from taskmill.retry import Retry
from taskmill.server.grpc.reading import STATES
from taskmill.server.grpc.statuses import problem_of
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import Attempt, EdgeResult, ErrorInfo, Signal, State, Task, Unique

__all__ = ["answers_of", "changed_of", "claim_of", "duration_of", "instant_of", "refusals_of", "state_of", "submitted_of", "tally_of", "task_of"]

_STATE_NUMBERS: Mapping[State, pb.State.ValueType] = {state: pb.State.Value(pb.State.Name(number)) for number, state in STATES.items()}  # type: ignore[arg-type]
_STATUSES = {status: pb.SubmitStatus.Value(f"SUBMIT_STATUS_{status.name}") for status in Status}
_DURABILITIES = {level: pb.Durability.Value(f"DURABILITY_{level.name}") for level in Durability}
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
        results=[_edge(edge) for edge in task.results],
    )


def _signal(signal: Signal) -> pb.Signal:
    return pb.Signal(number=signal.number, name=signal.name, data=signal.data, at=instant_of(signal.at))


def _edge(edge: EdgeResult) -> pb.EdgeResult:
    outcome = pb.STATE_UNSPECIFIED if edge.outcome is None else state_of(edge.outcome)
    return pb.EdgeResult(task=edge.task, outcome=outcome, result=edge.result or b"")


def refusals_of(refused: Iterable[Refusal]) -> list[pb.Refusal]:
    return [pb.Refusal(task=each.task, token=each.token, code=each.code, message=each.message) for each in refused]
