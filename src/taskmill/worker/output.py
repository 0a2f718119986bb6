"""What handlers print, on its way to the terminal or the log: whole lines, nothing in them that could draw on a terminal, and only so many of one attempt.

Who prints is known by the attempt that runs here (`logs.ATTEMPT`). What a thread of a handler prints, which knows no attempt, is bounded for the process as a
whole, anew every minute. Programs that a handler starts write to the same files past this; of theirs nothing is bounded.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from typing import TextIO, cast

from typing_extensions import override

from taskmill.engine import Claimed
from taskmill.worker.logs import ATTEMPT, visible

__all__ = ["MOST_BYTES", "MOST_LINES", "Output", "ended", "install"]

log = logging.getLogger("taskmill")

MOST_LINES = 10_000
MOST_BYTES = 1 << 20
"""Of one attempt: lines and bytes, on both streams together."""
RENEWED = 60.0
"""Seconds after which what knows no attempt may print again."""


class Printed:
    """What one attempt has printed so far."""

    def __init__(self, open: dict[Output, str] | None = None) -> None:
        self.began = time.monotonic()
        self.lines, self.bytes = MOST_LINES, MOST_BYTES
        self.cut_lines = self.cut_bytes = 0
        self.open = open or {}
        """The line that has no end yet, of each stream."""

    def take(self, stream: Output, text: str) -> str:
        """The lines that are whole now, as far as they are within the bounds."""
        *whole, rest = (self.open.pop(stream, "") + text).split("\n")
        kept = [line for line in map(visible, whole) if self._fits(line)]
        if len(rest) > self.bytes:  # never to be shown, so not to be kept either
            self._cut(rest)
            rest = ""
        if rest:
            self.open[stream] = rest
        return "".join(f"{line}\n" for line in kept)

    def _fits(self, line: str) -> bool:
        size = len(line.encode("utf-8", "backslashreplace")) + 1
        if self.lines < 1 or self.bytes < size:
            self._cut(line)
            self.cut_lines += 1
            return False
        self.lines -= 1
        self.bytes -= size
        return True

    def _cut(self, text: str) -> None:
        self.cut_bytes += len(text) + 1
        self.lines = self.bytes = 0

    def tell(self, claimed: Claimed | None) -> None:
        if self.cut_bytes:
            who, extra = ("a thread of a handler", None) if claimed is None else (f"task {claimed.id}", {"task_id": claimed.id})
            log.warning("%s printed more than is kept: %d lines and %d characters of it are cut", who, self.cut_lines, self.cut_bytes, extra=extra)


_printed: dict[int, Printed] = {}
_NO_ATTEMPT = 0


def ended(claimed: Claimed) -> None:
    """The attempt is over: its last line is shown, and what was cut is told."""
    printed = _printed.pop(claimed.token, None) if _printed else None
    if printed is not None:
        for stream in list(printed.open):
            stream.show(printed.take(stream, "\n"))
        printed.tell(claimed)


def _of_now() -> Printed:
    claimed = ATTEMPT.get()
    token = _NO_ATTEMPT if claimed is None else claimed.token
    printed = _printed.get(token)
    if printed is None:
        printed = _printed[token] = Printed()
    elif claimed is None and time.monotonic() - printed.began > RENEWED:
        printed.tell(None)
        printed = _printed[token] = Printed(printed.open)
    return printed


class Output(io.TextIOBase):
    """Stands in the place of `sys.stdout` or `sys.stderr`. It cannot be closed: others print after this handler."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.buffer = _Bytes(self)

    @property
    @override
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    @override
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @override
    def write(self, text: str, /) -> int:
        self.show(_of_now().take(self, text))
        return len(text)

    def show(self, lines: str) -> None:
        if lines:
            self._stream.write(lines)
            self._stream.flush()

    @override
    def flush(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass

    @override
    def writable(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        return self._stream.fileno()


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`, for who prints bytes."""

    def __init__(self, text: Output) -> None:
        self._text = text

    @override
    def write(self, data: object, /) -> int:
        given = bytes(cast("bytes", data))
        self._text.write(given.decode("utf-8", "backslashreplace"))
        return len(given)

    @override
    def writable(self) -> bool:
        return True

    @override
    def close(self) -> None:
        pass


def install() -> None:
    """From now on what is printed in this process goes through here. A log that the app has set up before this writes on as it did."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Output):
            setattr(sys, name, Output(stream))
