"""One attempt, from payload to outcome, as a straight line: read the arguments, call the handler, write the result, or judge the error.

Whatever a handler raises, SystemExit and its like included, becomes an outcome; nothing of it reaches the worker. What the worker did to
the attempt (a cancel, a timeout, a lost lease, a stop) stands in `Run.reason` and decides what an error means; a value that was returned
is a completion, however late.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskmill import tracing
from taskmill.clock import format_duration
from taskmill.context import Context, Fail, RetryAfter, Run, Snooze
from taskmill.engine import Claimed, Ending, Outcome
from taskmill.errors import InvalidPayload
from taskmill.retry import decide, error_names
from taskmill.task import ErrorInfo
from taskmill.worker import output
from taskmill.worker.logs import ATTEMPT

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.tasks import TaskType

__all__ = ["CANCELLED", "LEASE_LOST", "STOPPING", "TIMEOUT", "Running", "attempt_async", "attempt_sync", "committed", "ended", "failed", "no_copy", "unbegun"]

log = logging.getLogger("taskmill")

CANCELLED = "cancelled"
TIMEOUT = "timeout"
LEASE_LOST = "lease_lost"
STOPPING = "stopping"

_CODE_LENGTH = 128
_MESSAGE_LENGTH = 2_000
_TRACEBACK_LENGTH = 16_000

_HOPELESS = frozenset({"invalid_arguments", "result_encoding"})
"""The same payload and the same value would fail again, the second after all its effects."""

_forks: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forks.append(True))


class Running(Run):
    """An attempt in this process, from its claim to its end; `received` is when the claim was answered."""

    __slots__ = ("claimed", "declared", "task")

    def __init__(self, claimed: Claimed, declared: TaskType[..., Any, Any], received: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(received=received, loop=loop)
        self.claimed = claimed
        self.declared = declared
        self.task: asyncio.Task[None] | None = None

    def judge(self, error: BaseException) -> Outcome:
        """What an exception of the handler means."""
        return failed(self, error)


async def attempt_async(app: App, running: Running) -> Outcome:
    """An attempt on the loop."""
    claimed, declared = running.claimed, running.declared
    known = ATTEMPT.set(claimed)
    span = tracing.process(claimed)
    try:
        binding = declared.binding
        arguments, named = binding.arguments(claimed.payload)
        first = (Context(app, claimed, running),) if binding.wants_context else ()
        value = await declared.function(*first, *arguments, **named)
        result = binding.result(value, app.settings.payload_limit)
        outcome = ended(running, Ending.COMPLETED, result=result) if running.ending is None else committed(running, running.ending, result)
    except BaseException as error:
        outcome = running.judge(error) if running.ending is None else committed(running, running.ending, error)
    if span is not None:
        span.end(outcome)
    output.ended(claimed)
    ATTEMPT.reset(known)
    return outcome


def attempt_sync(app: App, running: Running) -> Outcome:
    """An attempt in a thread, or in a process of its own."""
    claimed, declared = running.claimed, running.declared
    known = ATTEMPT.set(claimed)
    span = tracing.process(claimed)
    try:
        binding = declared.binding
        arguments, named = binding.arguments(claimed.payload)
        first = (Context(app, claimed, running),) if binding.wants_context else ()
        value = declared.function(*first, *arguments, **named)
        result = binding.result(value, app.settings.payload_limit)
        outcome = ended(running, Ending.COMPLETED, result=result) if running.ending is None else committed(running, running.ending, result)
    except BaseException as error:
        outcome = running.judge(error) if running.ending is None else committed(running, running.ending, error)
    if span is not None:
        span.end(outcome)
    output.ended(claimed)
    ATTEMPT.reset(known)
    return outcome


def ended(running: Running, ending: Ending, *, result: bytes | None = None, error: ErrorInfo | None = None, after: int = 0) -> Outcome:
    """The outcome of an attempt that began."""
    if _forks:
        os._exit(0)  # a handler that forked comes back twice; the copy must not go on as a second worker
    claimed = running.claimed
    return Outcome(
        task=claimed.id, worker=claimed.worker, token=claimed.token, ending=ending, result=result, error=error, after=after,
        started_after=max(0, running.started - running.received),
    )  # fmt: skip


def committed(running: Running, ending: Outcome, after: bytes | BaseException) -> Outcome:
    """The outcome of an attempt that ended its task itself, in its transaction. What came after it cannot change that."""
    if _forks:
        os._exit(0)
    if isinstance(after, BaseException):
        why = f"{type(after).__name__}: {_message(after)}"
        log.warning("task %s has ended, in its transaction; after that its handler failed: %s", running.claimed.id, why)
    elif after not in (b"null", ending.result):
        log.warning("task %s has ended, in its transaction; what its handler returned after that is not kept: use ctx.complete(value)", running.claimed.id)
    return ending


def no_copy() -> None:
    """This process was forked before its attempts began (a test in a process of its own), so it is no handler's copy."""
    _forks.clear()


def unbegun(running: Running, ending: Ending) -> Outcome:
    """The outcome of one whose handler was never called."""
    claimed = running.claimed
    return Outcome(task=claimed.id, worker=claimed.worker, token=claimed.token, ending=ending)


def failed(running: Running, error: BaseException, chance: Callable[[], float] = random.random) -> Outcome:
    """What an exception means: the handler's own word first, then what the worker did to it, then the retry policy."""
    if isinstance(error, Snooze):
        return ended(running, Ending.SNOOZED, after=error.after)
    if isinstance(error, Fail):
        return ended(running, Ending.DEAD, error=ErrorInfo(_code(error.code), _message(error), _traceback(error)))
    if running.lease_lost or running.reason == STOPPING:
        return ended(running, Ending.RELEASED)
    if running.reason == CANCELLED:
        return ended(running, Ending.CANCELLED)
    if isinstance(error, InvalidPayload) and error.code in _HOPELESS:
        return ended(running, Ending.DEAD, error=ErrorInfo(error.code, _message(error)))
    claimed = running.claimed
    names = error_names(type(error))
    if running.reason == TIMEOUT:
        names = error_names(TimeoutError)
        info = ErrorInfo(TIMEOUT, f"it took longer than its {format_duration(claimed.timeout)}", _traceback(error))
    else:
        info = ErrorInfo(_code(type(error).__name__), _message(error), _traceback(error))
    decision = decide(claimed.retry, claimed.failures + 1, names, chance(), after=error.after if isinstance(error, RetryAfter) else None)
    if decision.after is None:
        return ended(running, Ending.DEAD, error=info)
    return ended(running, Ending.RETRY, error=info, after=decision.after)


def _code(code: object) -> str:
    """As for workers in other languages: bounded, and a line of text. It is a label of metrics and a column of lists."""
    try:
        text = str(code)[:_CODE_LENGTH]
    # A handler may have given anything for it.
    except BaseException:
        text = ""
    return _storable("".join(letter if letter.isprintable() else "?" for letter in text), _CODE_LENGTH) or "failed"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    # The handler's own class may fail to write itself out, or try to leave.
    except BaseException:
        text = "(its text cannot be written)"
    return _storable(text, _MESSAGE_LENGTH)


def _traceback(error: BaseException) -> str:
    """Where it happened, without our own frame; the end matters most."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next, limit=-50)
    # Formatting calls the exception's own code, and reads source files that may be gone.
    except BaseException:
        return ""
    text = "".join(lines)
    return _storable(text if len(text) <= _TRACEBACK_LENGTH else "…" + text[-_TRACEBACK_LENGTH:], _TRACEBACK_LENGTH + 1)


def _storable(text: str, length: int) -> str:
    """What every store can hold: no NUL, no half of a surrogate pair."""
    return text[:length].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
