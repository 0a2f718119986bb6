"""Conditions of a change: whoever has seen a setting changes it only as it was seen.

    GET  ──▶ ETag: "o3"                 put by a person, third version ("c3": declared by code)
    PUT  If-Match: "o3"        ──▶ 200, or 412 when it is another by now
    PUT  If-None-Match: *      ──▶ 201, or 412 when there is one

A person's setting and the code's are numbered apart, so a tag says whose it is. The store compares once more in the step itself: of two who saw the same,
one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from taskmill.errors import InvalidInput, StaleVersion, TaskmillError

__all__ = ["PreconditionFailed", "Seen", "etag", "held", "seen", "seen_version"]

TAG = re.compile(r'"([oc])(\d{1,18})"')

Done = TypeVar("Done")


class PreconditionFailed(TaskmillError):
    """It is not as the caller says that it has seen it; nothing was changed."""

    code = "precondition_failed"
    status = 412
    grpc = "ABORTED"


class Setting(Protocol):
    """A schedule or a limit in force."""

    @property
    def version(self) -> int: ...
    @property
    def operator(self) -> bool: ...


class Seen(NamedTuple):
    """What a change is conditional on: the version (None: any, 0: that there is none), and whether it was a person's."""

    version: int | None = None
    operator: bool | None = None


def etag(setting: Setting) -> tuple[bytes, bytes]:
    """The header of an answer that shows it."""
    return b"etag", f'"{"o" if setting.operator else "c"}{setting.version}"'.encode()


def seen(headers: Mapping[bytes, bytes], present: Setting | None) -> Seen:
    """What the headers If-Match and If-None-Match ask for, judged by what is there now."""
    match, none_match = headers.get(b"if-match"), headers.get(b"if-none-match")
    if match is not None and none_match is not None:
        raise InvalidInput("both If-Match and If-None-Match are given", code="contradiction", field="If-Match", hint="send one of them")
    if none_match is not None:
        return _must_be_new(none_match, present)
    return Seen() if match is None else _must_be(match.decode("latin-1"), present)


def seen_version(headers: Mapping[bytes, bytes], present: Setting | None) -> int | None:
    """Of a deletion, which only If-Match can be a condition of."""
    match = headers.get(b"if-match")
    return None if match is None else _must_be(match.decode("latin-1"), present).version


def _must_be_new(header: bytes, present: Setting | None) -> Seen:
    if header.strip() != b"*":
        raise InvalidInput("only * is understood here", code="invalid_value", field="If-None-Match", hint="* for one that must be new, or use If-Match")
    if present is not None:
        raise PreconditionFailed("there is one already", field="If-None-Match", hint="read it, and change it with If-Match")
    return Seen(0)


def _must_be(header: str, present: Setting | None) -> Seen:
    if present is None:
        raise PreconditionFailed("there is none", field="If-Match", hint="make it with If-None-Match: *")
    if header.strip() == "*":
        return Seen(present.version, present.operator)
    named = {(whose == "o", int(version)) for whose, version in TAG.findall(header.replace('W/"', "weak"))}
    if (present.operator, present.version) not in named:
        raise PreconditionFailed(f"it is {etag(present)[1].decode()} by now", field="If-Match", hint="read it again, then change it")
    return Seen(present.version, present.operator)


async def held(change: Awaitable[Done]) -> Done:
    """The change, or that somebody else came between the look and the step."""
    try:
        return await change
    except StaleVersion as error:
        raise PreconditionFailed(error.message, field="If-Match", hint="read it again, then change it") from error
