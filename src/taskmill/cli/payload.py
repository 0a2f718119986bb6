"""Payloads on the command line: JSON as it is, `@file`, or `-` for stdin."""

from __future__ import annotations

import io
import sys

from taskmill import codec
from taskmill.errors import TaskmillError

__all__ = ["read_payload"]

_MOST = codec.MOST_PAYLOAD * 8 + 1  # more than any text that fits; a file without an end is read no further


def read_payload(given: str | None, field: str) -> bytes:
    """The payload to store. A file that cannot be read is a failure that names it; JSON that is wrong is refused with its column."""
    if given is None:
        return b"null"
    text: str | bytes = given
    if given == "-":
        text = _from_stdin()
    elif given.startswith("@"):
        with open(given[1:], "rb") as file:
            text = file.read(_MOST)
    return codec.encode(codec.parse(text, field=field), field=field)


def _from_stdin() -> bytes:
    try:
        if sys.stdin is None:
            raise TaskmillError("stdin is closed", code="no_stdin", field="-", hint="pipe JSON into it, or name a file: @payload.json")
        buffer = getattr(sys.stdin, "buffer", None)
        return buffer.read(_MOST) if buffer is not None else io.StringIO(sys.stdin.read(_MOST)).read().encode()
    except (OSError, ValueError) as error:
        raise TaskmillError(f"stdin cannot be read: {error}", code="no_stdin", field="-", hint="pipe JSON into it, or name a file: @payload.json") from None
