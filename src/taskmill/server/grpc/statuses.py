"""Errors as gRPC says them: a status code, a line for people, and details for programs.

The details are those of google.rpc.Status, in the trailer that every gRPC library knows: ErrorInfo has the code of the error as its reason, BadRequest the
field that cannot be used, RetryInfo when to come back.
"""

from __future__ import annotations

from typing import Any, NoReturn

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from taskmill.clock import SECOND
from taskmill.errors import InvalidInput, RateLimited, StoreError, TaskmillError
from taskmill.server.grpc.v1 import taskmill_pb2 as pb

__all__ = ["DeadlineExceeded", "Stopping", "details_of", "problem_of", "refuse"]

DOMAIN = "taskmill"
DETAILS = "grpc-status-details-bin"
MOST = 512
"""Characters of any text in a status: it travels as a header, and those are bounded."""


class DeadlineExceeded(TaskmillError):
    """The time for this call is over."""

    code = "deadline_exceeded"
    status = 504
    grpc = "DEADLINE_EXCEEDED"


class Stopping(StoreError):
    """This server stops; another one answers."""

    code = "stopping"


async def refuse(context: Any, error: TaskmillError) -> NoReturn:
    """End the call with this error."""
    code = StatusCode[error.grpc]
    text = str(error)[: 2 * MOST]
    await context.abort(code, text, ((DETAILS, details_of(error, code, text).SerializeToString()),))
    raise error  # never reached: abort raises


def details_of(error: TaskmillError, code: StatusCode, text: str) -> status_pb2.Status:
    named = {"field": error.field, "hint": error.hint, "task_id": error.task_id, "state": getattr(error, "state", None)}
    metadata = {name: str(value)[:MOST] for name, value in named.items() if value}
    status = status_pb2.Status(code=code.value[0], message=text)
    _add(status, error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=metadata))
    if isinstance(error, InvalidInput):
        violation = error_details_pb2.BadRequest.FieldViolation(field=(error.field or "")[:MOST], description=error.message[:MOST])
        _add(status, error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, RateLimited) and error.retry_after is not None:
        seconds, micros = divmod(max(0, error.retry_after), SECOND)
        _add(status, error_details_pb2.RetryInfo(retry_delay=Duration(seconds=seconds, nanos=micros * 1_000)))
    return status


def _add(status: status_pb2.Status, detail: Message) -> None:
    status.details.add().Pack(detail)


def problem_of(error: TaskmillError) -> pb.Problem:
    """The same for one item of a batch."""
    return pb.Problem(code=error.code, message=error.message[: 2 * MOST], field=(error.field or "")[:MOST], hint=(error.hint or "")[:MOST])
