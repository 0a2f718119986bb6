"""Errors as HTTP answers: problem+json with a stable code, the field, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from taskmill.clock import SECOND, rfc3339
from taskmill.errors import InvalidInput, RateLimited, StoreError, TaskmillError

__all__ = ["CONTENT_TYPE", "LONGEST_URL", "Problem", "Refused", "invalid", "problem_of", "retry_after", "status_of", "url_too_long"]

CONTENT_TYPE = b"application/problem+json"
LONGEST_URL = 32_768
"""Bytes; a cursor over all shards of a Cluster has 24 KB."""

_UNREADABLE = {"body_required", "invalid_json", "invalid_utf8", "too_deep", "duplicate_key", "not_finite", "integer_too_large", "invalid_encoding"}
_STATUS = {**dict.fromkeys(_UNREADABLE, 400), "payload_too_large": 413, "unknown_edge": 422}
_AT, _UNKNOWN, _MISSING = " - at `", "Object contains unknown field `", "Object missing required field `"
LONGEST_TEXT = 1_000
LONGEST_NAME = 80
"""Letters of a caller's own name that are shown, and compared with the names there are: comparing costs the product of both lengths."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, for programs (`code`, `field`) and for people (`title`, `hint`)."""

    type: str
    status: int
    code: str
    title: str
    field: str | None = None
    hint: str | None = None
    task_id: str | None = None
    state: str | None = None
    retry_at: str | None = None
    """When trying again makes sense, where a time is known."""
    request_id: str | None = None


class Refused(TaskmillError):
    """A request that HTTP itself does not allow."""

    def __init__(self, status: int, code: str, message: str, hint: str, headers: tuple[tuple[bytes, bytes], ...] = (), field: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint, field=field)
        self.status = status
        self.headers = headers


def url_too_long() -> Refused:
    return Refused(414, "url_too_long", "the URL is too long", f"at most {LONGEST_URL} bytes")


def status_of(error: TaskmillError) -> int:
    """What the caller did wrong is 4xx; the codes of unreadable text say that it is not the text's meaning that is wrong."""
    return _STATUS.get(error.code, error.status)


def problem_of(error: TaskmillError, request_id: str | None = None) -> Problem:
    retry_at = error.retry_at if isinstance(error, RateLimited) else None
    return Problem(
        type=f"urn:taskmill:problem:{error.code}",
        status=status_of(error),
        code=error.code,
        title=error.message,
        field=error.field,
        hint=error.hint,
        task_id=error.task_id,
        state=getattr(error, "state", None),
        retry_at=None if retry_at is None else rfc3339(retry_at),
        request_id=request_id,
    )


def retry_after(error: TaskmillError) -> int | None:
    """Whole seconds after which trying again makes sense."""
    if isinstance(error, RateLimited):
        return max(1, -(-(error.retry_after or SECOND) // SECOND))
    return 1 if isinstance(error, StoreError) else None


def invalid(error: msgspec.ValidationError, fields: Mapping[str, object] | tuple[str, ...] = ()) -> InvalidInput:
    """A value of the wrong form: which field, and what it should be. The text holds names that the caller made up, of any length: it is read in one pass."""
    message, path = _parts(str(error))
    if message.startswith(_UNKNOWN):
        name = message.removeprefix(_UNKNOWN)[:LONGEST_NAME].rstrip("`")
        near = get_close_matches(name, list(fields), 1)
        hint = f"did you mean {near[0]}?" if near else "leave it out, or see /openapi.json for what there is"
        return InvalidInput("there is no such field", code="unknown_field", field=_joined(path, name), hint=hint)
    if message.startswith(_MISSING):
        return InvalidInput("it is required", code="required", field=_joined(path, message.removeprefix(_MISSING).rstrip("`")), hint="give it a value")
    return InvalidInput(message[:LONGEST_TEXT].replace("`", "'"), code="invalid_value", field=path or "body", hint="see /openapi.json for what it may be")


def _parts(text: str) -> tuple[str, str]:
    """What is wrong, and the path to it, which msgspec writes behind everything else."""
    message, _, at = text.rpartition(_AT)
    path = at.removeprefix("key in ")
    if message and path.startswith("$") and path.endswith("`"):
        return message, path[1:-1].removeprefix(".")[:LONGEST_TEXT]
    return text, ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
