"""Every exception of the product, each with its code and what it means to HTTP and gRPC.

    TaskmillError
    ├── InvalidInput            422  INVALID_ARGUMENT     what the caller gave cannot be used; `field` names it
    │   ├── InvalidPayload      422                       not JSON that every engine can hold
    │   ├── InvalidSettings     422                       a setting, its source and its remedy
    │   └── AppError            422                       an app that cannot be used: its file, its declarations
    ├── Unauthenticated         401  UNAUTHENTICATED      no API key, or one that is not known
    ├── Forbidden               403  PERMISSION_DENIED    the key is known and may not do this
    ├── NotFound                404  NOT_FOUND            no such task, schedule, limit, …
    ├── Expired                 410  NOT_FOUND            it was here; its record is gone, its final state is known
    │   └── ResultExpired       410  NOT_FOUND            the task has ended, its result is no longer kept
    ├── Conflict                409  FAILED_PRECONDITION  the thing is not in the state this step needs
    │   ├── StaleLease          409  ABORTED              the lease is no longer current; nothing was written
    │   ├── StaleTerm           409  ABORTED              the leadership is over; nothing was written
    │   └── StaleVersion        409  ABORTED              it was changed since the caller saw it
    ├── RateLimited             429  RESOURCE_EXHAUSTED
    ├── TaskFailed              409  FAILED_PRECONDITION  there is no result: the task is dead; `error` says why
    ├── TaskCancelled           409  FAILED_PRECONDITION  there is no result: the task was cancelled or expired
    ├── ResultTimeout           504  DEADLINE_EXCEEDED    the task has not ended yet
    ├── StoreError              503  UNAVAILABLE          the store did not answer, is busy, full or refused
    │   └── AnswerLost          503  UNAVAILABLE          the step may have been applied: ask again, every verb may be repeated
    └── WrongStore              500  FAILED_PRECONDITION  this program cannot work on this store (schema, path, library)

A message says what is wrong; `hint` says what to do about it. Codes are stable, messages are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

__all__ = [
    "AnswerLost",
    "AppError",
    "Conflict",
    "Expired",
    "Forbidden",
    "InvalidInput",
    "InvalidPayload",
    "InvalidSettings",
    "NotFound",
    "RateLimited",
    "ResultExpired",
    "ResultTimeout",
    "StaleLease",
    "StaleTerm",
    "StaleVersion",
    "StoreError",
    "TaskCancelled",
    "TaskFailed",
    "TaskmillError",
    "Unauthenticated",
    "WrongStore",
    "nearest",
]


class TaskmillError(Exception):
    """Something Taskmill refused or could not do."""

    code = "taskmill_error"
    status = 500
    grpc = "INTERNAL"

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None, hint: str | None = None, task_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.field = field
        self.hint = hint
        self.task_id = task_id
        """The task that this is about, where it is about one."""

    def __str__(self) -> str:
        named = f"{self.field}: {self.message}" if self.field else self.message
        return f"{named} ({self.hint})" if self.hint else named

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


def _rebuild(kind: type[TaskmillError], message: str, state: dict[str, object]) -> TaskmillError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class InvalidInput(TaskmillError):
    """What the caller gave cannot be used."""

    code = "invalid_input"
    status = 422
    grpc = "INVALID_ARGUMENT"


class InvalidPayload(InvalidInput):
    """The payload is not JSON that every engine can hold."""

    code = "invalid_payload"


class InvalidSettings(InvalidInput):
    """A setting is unknown, of the wrong form, or contradicts another."""

    code = "invalid_settings"


class AppError(InvalidInput):
    """An app that cannot be used: its file does not import, has no App or two, or declares what cannot be."""

    code = "invalid_app"


class Unauthenticated(TaskmillError):
    """No API key, or one that is not known."""

    code = "unauthenticated"
    status = 401
    grpc = "UNAUTHENTICATED"


class Forbidden(TaskmillError):
    """The API key is known and may not do this."""

    code = "forbidden"
    status = 403
    grpc = "PERMISSION_DENIED"


class NotFound(TaskmillError):
    """There is no such thing."""

    code = "not_found"
    status = 404
    grpc = "NOT_FOUND"


class Expired(TaskmillError):
    """The record was pruned or deleted; `state` is the one it ended in."""

    code = "expired"
    status = 410
    grpc = "NOT_FOUND"
    state: str | None = None
    """Where the task ended, in the words of `task.State`."""


class ResultExpired(Expired):
    """The task has ended; its record, and with it the result, is no longer kept."""

    code = "result_expired"


class Conflict(TaskmillError):
    """The thing is not in the state this step needs."""

    code = "conflict"
    status = 409
    grpc = "FAILED_PRECONDITION"
    state: str | None = None
    """Where the task is, where it is about one."""


class StaleLease(Conflict):
    """The lease is no longer current; nothing was written."""

    code = "stale_lease"
    grpc = "ABORTED"


class StaleTerm(Conflict):
    """The leadership is over; nothing was written."""

    code = "stale_term"
    grpc = "ABORTED"


class StaleVersion(Conflict):
    """It was changed since the caller saw it; nothing was written."""

    code = "stale_version"
    grpc = "ABORTED"


class RateLimited(TaskmillError):
    """A rate is used up for now."""

    code = "rate_limited"
    status = 429
    grpc = "RESOURCE_EXHAUSTED"
    retry_after: int | None = None
    """Microseconds after which it may be tried again, where that is known."""
    retry_at: int | None = None
    """The same as a time of the store's clock."""


class Reason(Protocol):
    """Why a task is dead, as its record says it (`taskmill.task.ErrorInfo`)."""

    @property
    def code(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def traceback(self) -> str: ...


class TaskFailed(TaskmillError):
    """The task is dead; `error` is what its last attempt ended with."""

    code = "task_failed"
    status = 409
    grpc = "FAILED_PRECONDITION"
    error: Reason | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        hint: str | None = None,
        task_id: str | None = None,
        error: Reason | None = None,
    ) -> None:
        super().__init__(message, code=code, field=field, hint=hint, task_id=task_id)
        self.error = error


class TaskCancelled(TaskmillError):
    """The task was cancelled, or its deadline (`expires`) has passed."""

    code = "task_cancelled"
    status = 409
    grpc = "FAILED_PRECONDITION"


class ResultTimeout(TaskmillError):
    """The task has not ended in the time that the caller gave it; it goes on."""

    code = "result_timeout"
    status = 504
    grpc = "DEADLINE_EXCEEDED"


class StoreError(TaskmillError):
    """The store did not answer, is busy, full, or refused the step; nothing was written."""

    code = "store_unavailable"
    status = 503
    grpc = "UNAVAILABLE"


class AnswerLost(StoreError):
    """The step may or may not have been applied; every verb may be repeated."""

    code = "answer_lost"


class WrongStore(TaskmillError):
    """This program cannot work on this store."""

    code = "wrong_store"
    status = 500
    grpc = "FAILED_PRECONDITION"


MOST_LETTERS, MOST_WORDS = 80, 1_000


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant, for "did you mean …?". A comparison costs the square of its letters, so only the first 80
    letters and 1,000 words are compared."""
    from difflib import get_close_matches

    near = get_close_matches(word[:MOST_LETTERS].lower(), [str(each)[:MOST_LETTERS] for each in islice(known, MOST_WORDS)], 1, cutoff)
    return near[0] if near else None
