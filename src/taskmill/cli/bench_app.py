"""The app of `taskmill bench`: tasks that do nothing, in a queue of their own. Its workers find their store by TASKMILL_URL."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from taskmill.app import App
from taskmill.tasks import TaskType

__all__ = ["NAME", "QUEUE", "TARGET", "Declared", "app", "declare"]

NAME = "taskmill-bench"
QUEUE = "taskmill-bench"
TARGET = "taskmill.cli.bench_app:app"


class Declared(NamedTuple):
    """The app with its two types."""

    app: App
    noop: TaskType[[], None, Any]
    begun: TaskType[[], int, Any]


def declare(url: str | None = None) -> Declared:
    """An app on this store; under a name of its own, so that nothing a user's app has declared is touched."""
    made = App(url, name=NAME, version=0)

    @made.task(name="taskmill.bench.noop", queue=QUEUE)
    async def noop() -> None:
        """Nothing."""

    @made.task(name="taskmill.bench.begun", queue=QUEUE)
    async def begun() -> int:
        """When it began, by the clock that all processes of a machine share."""
        return time.monotonic_ns()

    return Declared(made, noop, begun)


app = declare().app
