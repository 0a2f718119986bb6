"""The log: one line a record, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from taskmill.worker import logs
from taskmill.worker.logs import ATTEMPT, JsonLines, Lines
from tests.unit.worker.parts import claimed


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


# As JSON


def told(message: str, *args: object, worker: str | None = None, **fields: object) -> dict[str, object]:
    text = JsonLines(worker).format(logging.makeLogRecord({"msg": message, "args": args, "name": "shop", "levelname": "WARNING", "created": 0.25, **fields}))
    assert text.isprintable(), "one line, and nothing that a terminal obeys"
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_line_is_one_object() -> None:
    found = told("%d orders", 3, process=7)
    assert found == {"time": "1970-01-01T00:00:00.250000Z", "level": "warning", "logger": "shop", "process": 7, "message": "3 orders"}


@pytest.mark.parametrize("message", ["a\nb\r\x1b[2J", "\x00\x7f\x85\u2028\u202e\ud800", 'quotes " and \\', "é 漢 🦆"])
def test_nothing_is_lost_and_nothing_draws(message: str) -> None:
    assert told(message)["message"] == message


def test_an_error_comes_with_its_traceback_in_the_same_line() -> None:
    try:
        raise ValueError("wrong\nagain")
    except ValueError as error:
        found = told("failed", exc_info=(ValueError, error, error.__traceback__))
    assert str(found["exception"]).endswith("ValueError: wrong\nagain")


def test_a_line_of_a_handler_says_whose_it_is() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    one = claimed("mail", tenant="acme", idempotency_key="order-7", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01", "secret": "s3"})
    token = ATTEMPT.set(one)
    try:
        found, shown = told("hello", worker="w1"), line("hello")
    finally:
        ATTEMPT.reset(token)
    fields = {name: found[name] for name in found if name not in {"time", "level", "logger", "process", "message"}}
    assert fields == {
        "task_id": one.id, "task_type": "mail", "attempt": 1, "queue": "default", "worker": "anna", "tenant": "acme", "idempotency_key": "order-7",
        "trace_id": trace,
    }  # fmt: skip
    assert shown == f"hello [task_id={one.id} task_type=mail attempt=1]"


def test_a_line_of_nobody_s_says_which_worker_wrote_it() -> None:
    found = told("joined", worker="w1")
    assert found["worker"] == "w1"
    assert "task_id" not in found


def test_what_a_record_says_goes_before_what_runs() -> None:
    token = ATTEMPT.set(claimed("mail"))
    try:
        assert told("x", task_id="another")["task_id"] == "another"
    finally:
        ATTEMPT.reset(token)


def test_headers_that_name_no_trace() -> None:
    for parent in ("", "nonsense", "00-1-2-01"):
        token = ATTEMPT.set(claimed("mail", headers={"traceparent": parent}))
        try:
            assert "trace_id" not in told("x")
        finally:
            ATTEMPT.reset(token)


def test_the_form_can_change_where_the_log_is_ours() -> None:
    with bare_root() as root:
        logs.configure("info", "text")
        logs.use("json")
        assert isinstance(root.handlers[0].formatter, JsonLines)
        logs.use("text")
        assert isinstance(root.handlers[0].formatter, Lines)
        own = logging.StreamHandler()
        root.handlers = [own]
        logs.use("json")
        assert own.formatter is None
