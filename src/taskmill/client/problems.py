"""Answers that are errors, as the errors they were on the server: problem+json back to the same class with the same code."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from taskmill.clock import SECOND
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

__all__ = ["Problem", "error_of", "refusal"]


class Problem(msgspec.Struct, frozen=True):
    """What a server says of an error; all of it may be missing where the answer is that of a proxy."""

    status: int = 500
    code: str = ""
    title: str = ""
    field: str | None = None
    hint: str | None = None
    task_id: str | None = None
    state: str | None = None


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
        hint = "it is not what a Taskmill server says: does the URL name one, and what stands between?"
        error = kind(f"{url} answered {status}", code="unexpected_answer", hint=hint)
    if isinstance(error, RateLimited) and retry_after is not None and retry_after.isdigit():
        error.retry_after = int(retry_after) * SECOND
    return error
