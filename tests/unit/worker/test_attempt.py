"""One attempt: what comes of what a handler does, and of what was done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from taskmill import Context, Fail, RetryAfter
from taskmill.clock import MINUTE, SECOND
from taskmill.engine import Ending, Outcome
from taskmill.errors import InvalidInput
from taskmill.retry import Retry, Rule
from taskmill.worker.attempt import CANCELLED, LEASE_LOST, STOPPING, TIMEOUT, attempt_async, attempt_sync, failed, unbegun
from tests.unit.worker.parts import running

ONCE = Retry(max_retries=0)


async def came_of(function: Callable[..., Any], mode: str, **fields: Any) -> Outcome:
    """The outcome of this handler, as a plain function or on the loop."""
    if mode == "sync":
        return attempt_sync(*running(function, **fields))

    async def on_loop() -> Any:
        return function()

    return await attempt_async(*running(on_loop, **fields))


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def handler() -> NoReturn:
        raise error

    return handler


class Leaving(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def nothing() -> None:
    pass


# What the handler does


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_what_is_returned_is_a_completion(mode: str) -> None:
    outcome = await came_of(lambda: {"a": 1}, mode)
    assert (outcome.ending, outcome.result, outcome.error) == (Ending.COMPLETED, b'{"a":1}', None)
    assert (outcome.worker, outcome.token, outcome.started_after) == ("anna", 1, SECOND)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException, MemoryError], ids=lambda error: error.__name__
)
async def test_whatever_is_raised_is_an_outcome(mode: str, error: type[BaseException]) -> None:
    outcome = await came_of(raising(error("no")), mode)
    assert (outcome.ending, outcome.after > 0) == (Ending.RETRY, True)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == (error.__name__, "no")
    assert "in handler" in outcome.error.traceback
    assert "/attempt.py" not in outcome.error.traceback


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("failures", "ending"), [(0, Ending.RETRY), (1, Ending.RETRY), (2, Ending.DEAD)])
async def test_retries_come_to_an_end(mode: str, failures: int, ending: Ending) -> None:
    outcome = await came_of(raising(ValueError("no")), mode, retry=Retry(max_retries=2), failures=failures)
    assert outcome.ending == ending


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_the_handlers_own_word(mode: str) -> None:
    outcome = await came_of(raising(Fail("no such user", code="no_user")), mode)
    assert outcome.ending == Ending.DEAD
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("no_user", "no such user")
    outcome = await came_of(raising(RetryAfter("10s", "busy")), mode)
    assert (outcome.ending, outcome.after) == (Ending.RETRY, 10 * SECOND)
    outcome = await came_of(raising(RetryAfter("10s")), mode, retry=ONCE)
    assert outcome.ending == Ending.DEAD


def test_snooze() -> None:
    def handler(ctx: Context) -> None:
        ctx.snooze("5m")

    outcome = attempt_sync(*running(handler))
    assert (outcome.ending, outcome.after, outcome.error) == (Ending.SNOOZED, 5 * MINUTE, None)


def test_an_error_that_cannot_be_written_is_told_without() -> None:
    outcome = attempt_sync(*running(raising(Leaving())))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("Leaving", "(its text cannot be written)")


def test_what_a_store_cannot_hold_is_escaped_and_cut() -> None:
    outcome = attempt_sync(*running(raising(ValueError("a\0\ud800" + "x" * 100_000))))
    assert outcome.error is not None
    assert outcome.error.message.startswith("a\\0\\ud800xxx")
    assert len(outcome.error.message) < 2_100
    assert len(outcome.error.traceback) <= 16_001
    assert "\0" not in outcome.error.traceback


# Arguments and results


@pytest.mark.parametrize(
    "payload", [b"{}", b'{"n":"x"}', b'{"n":1,"m":2}', b"[1]", b"{", b"\xff", b""], ids=["missing", "type", "unknown", "list", "cut", "bytes", "empty"]
)
def test_arguments_that_do_not_fit_are_hopeless(payload: bytes) -> None:
    called: list[int] = []

    def handler(n: int) -> None:
        called.append(n)

    outcome = attempt_sync(*running(handler, payload=payload))
    assert outcome.ending == Ending.DEAD
    assert outcome.error is not None
    assert outcome.error.code == "invalid_arguments"
    assert not called


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_result_that_cannot_be_written_is_hopeless(mode: str) -> None:
    outcome = await came_of(lambda: {1, object()}, mode)
    assert outcome.ending == Ending.DEAD
    assert outcome.error is not None
    assert outcome.error.code == "result_encoding"


def test_a_bad_argument_of_the_handlers_own_calls_is_an_error_like_others() -> None:
    outcome = attempt_sync(*running(raising(InvalidInput("not a name", field="type"))))
    assert outcome.ending == Ending.RETRY


# What was done to it


@pytest.mark.parametrize(
    ("reason", "ending"), [(CANCELLED, Ending.CANCELLED), (STOPPING, Ending.RELEASED), (LEASE_LOST, Ending.RELEASED), (TIMEOUT, Ending.RETRY)]
)
def test_an_error_after_being_asked_to_end(reason: str, ending: Ending) -> None:
    _, attempt = running(nothing, timeout=MINUTE)
    attempt.reason, attempt.lease_lost = reason, reason == LEASE_LOST
    outcome = failed(attempt, RuntimeError("stopped"))
    assert outcome.ending == ending
    if reason == TIMEOUT:
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == ("timeout", "it took longer than its 1m")


def test_a_rule_for_timeouts_is_obeyed() -> None:
    _, attempt = running(nothing, retry=Retry(rules=(Rule(error="TimeoutError", action="fail"),)))
    assert failed(attempt, RuntimeError()).ending == Ending.RETRY
    attempt.reason = TIMEOUT
    assert failed(attempt, RuntimeError()).ending == Ending.DEAD


@pytest.mark.parametrize("reason", [CANCELLED, STOPPING, TIMEOUT])
def test_a_value_is_a_completion_however_late(reason: str) -> None:
    app, attempt = running(lambda: 1)
    attempt.reason = reason
    assert attempt_sync(app, attempt).ending == Ending.COMPLETED


def test_fail_and_snooze_stand_over_being_asked_to_end() -> None:
    _, attempt = running(nothing)
    attempt.reason = CANCELLED
    assert failed(attempt, Fail("no")).ending == Ending.DEAD


def test_one_that_never_began() -> None:
    _, attempt = running(nothing)
    outcome = unbegun(attempt, Ending.RELEASED)
    assert (outcome.ending, outcome.started_after) == (Ending.RELEASED, None)


class Odd:
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("code", "kept"),
    [("x" * 1_000, "x" * 128), ("a\x1b[2J\nb", "a?[2J?b"), ("half \ud800", "half ?"), ("", "failed"), (Odd(), "failed")],
    ids=["long", "escapes", "surrogate", "empty", "odd"],
)
async def test_the_code_of_an_error_is_a_bounded_line_of_text(code: Any, kept: str) -> None:
    outcome = await came_of(raising(Fail("no", code=code)), "sync")
    assert outcome.error is not None
    assert outcome.error.code == kept


async def test_the_name_of_an_exception_is_bounded_too() -> None:
    outcome = await came_of(raising(type("Very" * 100, (Exception,), {})("no")), "sync")
    assert outcome.error is not None
    assert outcome.error.code == ("Very" * 100)[:128]
