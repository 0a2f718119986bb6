"""The log of a worker's processes: one line a record on stderr, with nothing in it that could draw on a terminal or fake a second line."""

from __future__ import annotations

import logging
import sys

__all__ = ["configure"]

_FIELDS = ("task_id", "task_type", "attempt")


class Lines(logging.Formatter):
    """Time, level, process, message; a traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        fields = " ".join(f"{name}={getattr(record, name)}" for name in _FIELDS if hasattr(record, name))
        first, *rest = text.split("\n")
        lines = [_visible(first) + (f" [{_visible(fields)}]" if fields else ""), *("  " + _visible(line) for line in rest)]
        return "\n".join(lines)


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\t" else letter.encode("unicode_escape").decode() for letter in text)


def configure(level: str | None) -> None:
    """For the programs of ours; an app that has set up logging itself keeps what it has.

    A line that cannot be written is dropped: a handler may have closed the stream, and none of us is to fail for it.
    """
    logging.raiseExceptions = False
    if logging.root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines("%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"))
    logging.root.addHandler(handler)
    logging.root.setLevel((level or "info").upper())
