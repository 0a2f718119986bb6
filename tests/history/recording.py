"""Writing a history from many processes, and reading it back as one.

Each event is one line of JSON appended by a single write to a file opened with O_APPEND, so processes share the file without a lock. A call
is written before it is made, answer `lost`, and again when it is answered: a process that is killed in between leaves the right thing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import msgspec

from taskmill.clock import SystemClock
from taskmill.errors import AnswerLost, TaskmillError
from tests.history.events import Call, Event

__all__ = ["Open", "Recorder", "load"]

C = TypeVar("C", bound=Call)

_encoder = msgspec.json.Encoder()
_numbers = itertools.count(1)
_decoder = msgspec.json.Decoder(Event)


class Open(Generic[C]):
    """A call under way; `answer` says what came of it."""

    def __init__(self, call: C) -> None:
        self.call = call
        self.answered = False

    def answer(self, answer: str, **what: object) -> None:
        self.call = msgspec.structs.replace(self.call, answer=answer, **what)
        self.answered = True


class Recorder:
    """Appends the calls of this process to a history; safe to use from all its threads and tasks. After a fork make a new one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._process = os.getpid()
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def calling(self, *calls: C) -> Iterator[list[Open[C]]]:
        """The calls of one batch: written now, and with their answers at the end. One without an answer is `lost` where the step may have been
        applied, `error` where a TaskmillError other than AnswerLost says that it was not."""
        opened = [Open(self._begin(call)) for call in calls]
        failed = False
        try:
            yield opened
        except AnswerLost:
            raise
        except TaskmillError:
            failed = True
            raise
        finally:
            ended = self._clock.monotonic()
            for each in opened:
                if failed and not each.answered:
                    each.answer("error")
                self._append(msgspec.structs.replace(each.call, ended=ended))

    def now(self) -> int:
        """The moment to hand to `note` as the beginning of a read."""
        return self._clock.monotonic()

    def note(self, call: C, began: int | None = None) -> None:
        """Something known only when it is over: a read (say when it began, or it seems younger than it is), a worker that was killed."""
        stamped = self._stamp(call)
        self._append(msgspec.structs.replace(stamped, began=stamped.began if began is None else began, ended=stamped.began))

    def _begin(self, call: C) -> C:
        begun = self._stamp(call)
        self._append(begun)
        return begun

    def _stamp(self, call: C) -> C:
        return msgspec.structs.replace(call, process=self._process, number=next(_numbers), began=self._clock.monotonic())

    def _append(self, call: Call) -> None:
        line = _encoder.encode(call) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError("the history was cut short: the disk is full")


def load(*paths: Path) -> list[Event]:
    """All events in the order they began, each call once; what a killed process left unanswered is `lost`."""
    calls: dict[tuple[int, int, int], Event] = {}
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                event = cast("Event", _decoder.decode(line))
                calls[event.process, event.number, event.began] = event
    return sorted(calls.values(), key=lambda event: event.began)
