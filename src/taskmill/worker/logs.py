"""The log of our programs: one line a record on stderr, with nothing in it that could draw on a terminal or fake a second line.

Lines that are written while a handler runs, its own and those of the libraries it calls, say which task it is: the attempt is in a context variable, and
whoever formats the line looks there. As JSON they say more: tenant, idempotency key, worker and trace. Payloads, results and headers are in no line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

from taskmill import tracing
from taskmill.engine import Claimed

__all__ = ["ATTEMPT", "JsonLines", "Lines", "configure", "use", "visible"]

ATTEMPT: ContextVar[Claimed | None] = ContextVar("taskmill_attempt", default=None)
"""What runs here."""

_SHORT = ("task_id", "task_type", "attempt")
_FIELDS = (*_SHORT, "queue", "tenant", "idempotency_key", "worker", "trace_id")
_HIDDEN = re.compile(r"[^\x20-\x7e]")


class Lines(logging.Formatter):
    """Time, level, process, message; a traceback follows in indented lines."""

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s") -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        known = _of_record(record)
        fields = " ".join(f"{name}={known[name]}" for name in _SHORT if name in known)
        first, *rest = text.split("\n")
        lines = [visible(first) + (f" [{visible(fields)}]" if fields else ""), *("  " + visible(line) for line in rest)]
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if self._worker is not None:
            fields["worker"] = self._worker
        fields |= _of_record(record)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return _HIDDEN.sub(_escaped, json.dumps(fields, ensure_ascii=False, default=str))


def _of_record(record: logging.LogRecord) -> dict[str, object]:
    """What the line is about: as its record says, else as the attempt that runs here says."""
    claimed = ATTEMPT.get()
    known = {} if claimed is None else _of_attempt(claimed)
    trace = tracing.trace_id({} if claimed is None else claimed.headers)
    if trace is not None:
        known["trace_id"] = trace
    return known | {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}


def _of_attempt(claimed: Claimed) -> dict[str, object]:
    known: dict[str, object] = {
        "task_id": claimed.id, "task_type": claimed.type, "attempt": claimed.attempt, "queue": claimed.queue, "worker": claimed.worker,
    }  # fmt: skip
    if claimed.tenant:
        known["tenant"] = claimed.tenant
    if claimed.idempotency_key is not None:
        known["idempotency_key"] = claimed.idempotency_key
    return known


def visible(text: str) -> str:
    """With nothing in it that could draw on a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\t" else letter.encode("unicode_escape").decode() for letter in text)


def _escaped(match: re.Match[str]) -> str:
    """A letter that does not show, as JSON writes it; one that shows, as it is."""
    letter = match[0]
    return letter if letter.isprintable() else json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def configure(level: str | None, form: str | None = None, worker: str | None = None) -> None:
    """For the programs of ours; an app that has set up logging itself keeps what it has. `form` is `text` or `json`, `worker` who writes.

    A line that cannot be written is dropped: a handler may have closed the stream, and none of us is to fail for it.
    """
    logging.raiseExceptions = False
    if logging.root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(form, worker))
    logging.root.addHandler(handler)
    logging.root.setLevel((level or "info").upper())


def use(form: str) -> None:
    """Write on in this form, where the log is ours: a supervisor learns the app's settings only from its first child."""
    for handler in logging.root.handlers:
        if isinstance(handler.formatter, (Lines, JsonLines)) and isinstance(handler.formatter, JsonLines) != (form == "json"):
            handler.setFormatter(_formatter(form, None))


def _formatter(form: str | None, worker: str | None) -> logging.Formatter:
    return JsonLines(worker) if form == "json" else Lines()
