"""The log: one line a record, whatever is in it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from taskmill.worker import logs
from taskmill.worker.logs import Lines


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root as a new process finds it; a fixture would come before pytest's own handlers."""
    root = logging.root
    handlers, level, raising = root.handlers, root.level, logging.raiseExceptions
    root.handlers = []
    try:
        yield root
    finally:
        root.handlers = handlers
        root.setLevel(level)
        logging.raiseExceptions = raising


def line(message: str, **fields: object) -> str:
    record = logging.makeLogRecord({"msg": message, **fields})
    return Lines("%(message)s").format(record)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("plain", "plain"),
        ("a\tb é 漢", "a\tb é 漢"),
        ("one\r\n\x1b[2J fake", "one\\r\n  \\x1b[2J fake"),
        ("\x00\x7f\x85\u2028\u202e\ud800", "\\x00\\x7f\\x85\\u2028\\u202e\\ud800"),
        ("a\n2026-01-01 ERROR fake", "a\n  2026-01-01 ERROR fake"),
    ],
    ids=["plain", "letters", "terminal", "controls", "lines"],
)
def test_nothing_draws_or_fakes_a_line(message: str, shown: str) -> None:
    assert line(message) == shown


def test_fields_of_a_task_stand_behind_the_first_line() -> None:
    assert line("a\nb", task_id="1", task_type="x\ny", attempt=2) == "a [task_id=1 task_type=x\\ny attempt=2]\n  b"


def test_an_app_keeps_its_own_logging() -> None:
    with bare_root() as root:
        own = logging.NullHandler()
        root.addHandler(own)
        logs.configure("debug")
        assert root.handlers == [own]


def test_the_level_is_as_told() -> None:
    with bare_root() as root:
        logs.configure("warning")
        assert (root.level, len(root.handlers)) == (logging.WARNING, 1)


def test_a_stream_that_is_closed_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    with bare_root() as root:
        logs.configure(None)
        root.warning("nobody reads this")
