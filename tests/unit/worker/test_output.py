"""What handlers print: whole lines that show, and only so many of one attempt."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskmill.worker import output as module
from taskmill.worker.attempt import attempt_sync
from taskmill.worker.logs import ATTEMPT
from taskmill.worker.output import MOST_BYTES, MOST_LINES, Output
from tests.unit.worker.parts import claimed, running


class Terminal:
    """What comes to the terminal while a handler prints to `sys.stdout`; in the test itself, since pytest has its own stream there before that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._shown = io.StringIO()
        self._output = Output(self._shown)

    def attempt(self, work: Callable[[], None], **fields: Any) -> str:
        """The id of the task whose handler this is."""
        app, attempt = running(work, **fields)
        with self:
            attempt_sync(app, attempt)
        return attempt.claimed.id

    def __enter__(self) -> None:
        self._monkeypatch.setattr(sys, "stdout", self._output)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()

    def getvalue(self) -> str:
        return self._shown.getvalue()


@pytest.fixture
def shown() -> Iterator[Terminal]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Terminal(monkeypatch)
    module._printed.clear()


def test_lines_show_as_they_are(shown: Terminal) -> None:
    def work() -> None:
        print("one", 2)
        print("über\tzwei")
        print("an end that is not there", end="")

    shown.attempt(work)
    assert shown.getvalue() == "one 2\nüber\tzwei\nan end that is not there\n"
    assert module._printed == {}


def test_nothing_draws_on_a_terminal(shown: Terminal) -> None:
    def work() -> None:
        print("\x1b[2Jgone\rWARNING all is well\x00\u202e")

    shown.attempt(work)
    assert shown.getvalue() == "\\x1b[2Jgone\\rWARNING all is well\\x00\\u202e\n"


def test_bytes_are_printed_too(shown: Terminal) -> None:
    def work() -> None:
        sys.stdout.buffer.write(b"caf\xc3\xa9 \xff\n")
        sys.stdout.flush()
        sys.stdout.close()
        print("still there", file=sys.stdout)

    shown.attempt(work)
    assert shown.getvalue() == "café \\xff\nstill there\n"


@pytest.mark.parametrize("end", ["\n", ""])
def test_two_hundred_megabytes(shown: Terminal, caplog: pytest.LogCaptureFixture, end: str) -> None:
    megabyte = "x" * (1_000_000 - len(end))

    def work() -> None:
        for _ in range(200):
            print(megabyte, end=end)

    with caplog.at_level(logging.WARNING, "taskmill"):
        task = shown.attempt(work)
    assert len(shown.getvalue()) <= MOST_BYTES
    assert task in caplog.text
    assert "characters of it are cut" in caplog.text


def test_very_many_lines(shown: Terminal, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        for number in range(MOST_LINES + 5):
            print(number)

    with caplog.at_level(logging.WARNING, "taskmill"):
        shown.attempt(work)
    assert shown.getvalue().splitlines() == [str(number) for number in range(MOST_LINES)]
    assert "5 lines" in caplog.text


def test_each_attempt_has_its_own_share(shown: Terminal) -> None:
    def work() -> None:
        print("x" * (MOST_BYTES - 1))

    for token in (1, 2):
        shown.attempt(work, token=token)
    assert len(shown.getvalue()) == 2 * MOST_BYTES


def test_two_that_print_at_once_keep_their_lines_apart(shown: Terminal) -> None:
    for token, text in ((1, "one "), (2, "two "), (1, "goes on\n"), (2, "too\n")):
        known = ATTEMPT.set(claimed(token=token))
        with shown:
            print(text, end="")
        ATTEMPT.reset(known)
    assert shown.getvalue() == "one goes on\ntwo too\n"


def test_what_knows_no_attempt_is_bounded_by_the_minute(shown: Terminal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with shown:
        for _ in range(3):
            print("x" * (MOST_BYTES - 1))
    assert len(shown.getvalue()) == MOST_BYTES
    monkeypatch.setattr(module, "RENEWED", -1.0)
    with caplog.at_level(logging.WARNING, "taskmill"), shown:
        print("and on")
    assert shown.getvalue().endswith("\nand on\n")
    assert "2 lines" in caplog.text
