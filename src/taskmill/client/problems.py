"""Answers that are errors, as the errors they were on the server: problem+json back to the same class with the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

import msgspec

from taskmill.clock import SECOND, SystemClock, instant
from taskmill.errors import (
    Conflict,
    Expired,
    Forbidden,
    InvalidInput,
    InvalidPayload,
    NotFound,
    RateLimited,
    ResultTimeout,
    StaleVersion,
    StoreError,
    TaskmillError,
    Unauthenticated,
)

__all__ = ["Problem", "error_of", "expected", "refusal", "understood", "unexpected"]

T = TypeVar("T")
P = ParamSpec("P")


class Problem(msgspec.Struct, frozen=True):
    """What a server says of an error; all of it may be missing where the answer is that of a proxy."""

    status: int = 500
    code: str = ""
    title: str = ""
    field: str | None = None
    hint: str | None = None
    task_id: str | None = None
    state: str | None = None
    retry_at: str | None = None


def _tree(kind: type[TaskmillError]) -> Iterator[type[TaskmillError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


_BY_CODE = {kind.code: kind for kind in _tree(TaskmillError) if kind.__module__ == TaskmillError.__module__}
_BY_CODE["unknown_edge"] = NotFound  # to HTTP it is a mistake in the body
_BY_STATUS: dict[int, type[TaskmillError]] = {
    400: InvalidPayload,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: InvalidInput,
    409: Conflict,
    410: Expired,
    413: InvalidPayload,
    415: InvalidInput,
    422: InvalidInput,
    429: RateLimited,
    431: InvalidInput,
    502: StoreError,
    503: StoreError,
    504: ResultTimeout,
}


def error_of(problem: Problem) -> TaskmillError:
    """The error that a problem was made of."""
    if problem.status == 412:  # what HTTP calls a condition is the version that was seen
        return StaleVersion(problem.title, field="version", hint="read it again, then change it")
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, TaskmillError)
    error = kind(problem.title, code=problem.code or None, field=problem.field, hint=problem.hint, task_id=problem.task_id)
    if problem.state is not None and isinstance(error, (Conflict, Expired)):
        error.state = problem.state
    if problem.retry_at is not None and isinstance(error, RateLimited):
        error.retry_at = instant(problem.retry_at, field="retry_at")
        error.retry_after = max(error.retry_at - SystemClock().now(), 0)  # as far as the clocks agree; a header of the answer knows better
    return error


def refusal(status: int, data: bytes, retry_after: str | None, url: str) -> TaskmillError:
    """The error of a whole answer; one that is not a server's of ours says what was asked."""
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except msgspec.MsgspecError:
        problem = Problem()
    if problem.code:
        error = error_of(problem)
    else:
        kind = StoreError if status >= 500 else _BY_STATUS.get(status, TaskmillError)
        error = kind(f"{url} answered {status}", code="unexpected_answer", hint=_HINT)
    if isinstance(error, RateLimited) and retry_after is not None and retry_after.isdigit():
        error.retry_after = int(retry_after) * SECOND
    return error


_HINT = "it is not what a Taskmill server says: does the URL name one, and what stands between?"


def unexpected(what: str) -> StoreError:
    return StoreError(what, code="unexpected_answer", hint=_HINT)


def understood(data: bytes, kind: type[T]) -> T:
    """An answer as what it should be; a page of HTML that comes with 200 is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        raise unexpected("the answer cannot be read") from None


def expected(read: Callable[P, T]) -> Callable[P, T]:
    """What is read of an answer: a field that is missing, or of another form, is the server's mistake and not the caller's."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError, InvalidInput) as error:
            raise unexpected(f"the answer cannot be read: {type(error).__name__}") from error

    return reading
