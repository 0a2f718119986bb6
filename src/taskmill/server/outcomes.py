"""What workers say of attempts, as the store takes it: judged by the policy of the task, and in texts that every store can hold."""

from __future__ import annotations

import math
import random

from msgspec.structs import replace

from taskmill.clock import format_duration
from taskmill.engine import Checkpoint, Ending, Outcome
from taskmill.errors import InvalidInput
from taskmill.retry import decide, error_names
from taskmill.server.deadlines import Attempt
from taskmill.task import ErrorInfo, Gone, State, Task

__all__ = ["judged", "storable_entry", "storable_outcome", "timed_out"]

TIMEOUT = "timeout"
CODE_LENGTH, MESSAGE_LENGTH, TRACEBACK_LENGTH = 128, 2_000, 16_000


def judged(outcome: Outcome, task: Task | None) -> Outcome:
    """An outcome as the task's record has it. Of a task that is not there, or a lease that is not current, the store itself says so."""
    if task is None:
        return outcome
    if outcome.then:  # they belong to the tenant of this one, and stand under the limits of their types whatever a worker adds to them
        outcome = replace(outcome, then=tuple(replace(new, tenant=task.tenant, more_limits=True) for new in outcome.then))
    if outcome.ending is not Ending.RETRY or (task.worker, task.token) != (outcome.worker, outcome.token):
        return outcome
    if task.state is State.DEAD:  # by this very outcome, whose answer was lost: it was decided already, and is not decided anew
        return replace(outcome, ending=Ending.DEAD)
    return _decided(outcome, task) if task.state is State.RUNNING else outcome


def _decided(outcome: Outcome, task: Task) -> Outcome:
    """A failed attempt as the task's policy has it."""
    error = outcome.error or ErrorInfo("failed")
    names = (error.code, *error_names(TimeoutError)) if error.code == TIMEOUT else (error.code,)
    decision = decide(task.retry, task.failures + 1, names, random.random(), after=outcome.after or None)
    if decision.after is None:
        return replace(outcome, ending=Ending.DEAD, after=0, error=error)
    return replace(outcome, after=decision.after, error=error)


def timed_out(worker: str, attempt: Attempt, task: Task | Gone | None) -> Outcome:
    """What a local worker would have said of it."""
    error = ErrorInfo(TIMEOUT, f"it took longer than its {format_duration(attempt.timeout)}, and its worker did not end it")
    outcome = Outcome(task=attempt.task, worker=worker, token=attempt.token, ending=Ending.RETRY, error=error, started_after=0)
    return judged(outcome, task if isinstance(task, Task) else None)


# What workers write: any language, any text


def storable_outcome(outcome: Outcome) -> Outcome:
    error = outcome.error
    if error is None:
        return outcome
    traceback = error.traceback if len(error.traceback) <= TRACEBACK_LENGTH else "…" + error.traceback[-TRACEBACK_LENGTH:]
    kept = ErrorInfo(_storable(error.code, CODE_LENGTH) or "failed", _storable(error.message, MESSAGE_LENGTH), _storable(traceback, TRACEBACK_LENGTH + 1))
    return replace(outcome, error=kept)


def storable_entry(entry: Checkpoint) -> Checkpoint:
    progress = entry.progress
    if progress is None:
        return entry
    if not math.isfinite(progress.value):
        raise InvalidInput("it is no finite number", code="out_of_range", field="progress.value", hint="for example 0.5 when half is done")
    return replace(entry, progress=replace(progress, message=_storable(progress.message, MESSAGE_LENGTH)))


def _storable(text: str, length: int) -> str:
    """What every store can hold: bounded, no NUL, no half of a surrogate pair."""
    return text[:length].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
