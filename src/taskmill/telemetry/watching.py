"""An engine whose answers are counted: here pass all that a process submits, finishes, fires, recovers and leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from taskmill.batching import Shared
from taskmill.clock import SECOND
from taskmill.engine import DEFAULT_RETENTION, Ending, Engine, Entry, Finished, Fired, Item, Joining, Moved, Outcome, Retention, Submitted, Term
from taskmill.errors import StaleLease, StaleTerm, TaskmillError
from taskmill.task import NewTask, TypeSettings

if TYPE_CHECKING:
    from taskmill.telemetry.metrics import Metrics

__all__ = ["Watched"]

TYPES_AGE = 5 * SECOND


class Watched:
    """The engine of one process, and the metrics that hear of it."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._known: Mapping[str, TypeSettings] = {}
        self._types = Shared(self._read_types, engine.clock, TYPES_AGE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def submit(self, tasks: Sequence[NewTask], **options: Any) -> tuple[Submitted, ...]:
        answers = await self._engine.submit(tasks, **options)
        self._metrics.submitted(tasks, answers, await self._types_of(tasks))
        return answers

    async def _types_of(self, tasks: Sequence[NewTask]) -> Mapping[str, TypeSettings]:
        """The settings of their types, where one of them leaves its priority to its type. They are never read inside a transaction of the caller."""
        if all(task.priority is not None for task in tasks):
            return {}
        if not self._engine.in_transaction():
            with suppress(TaskmillError):
                self._known = await self._types.get()
        return self._known

    async def _read_types(self) -> Mapping[str, TypeSettings]:
        return {item.name: msgspec.json.decode(item.value, type=TypeSettings) for item in await self._engine.items("type")}

    async def put(self, kind: str, name: str, value: bytes, **options: Any) -> Item:
        self._types.forget()
        return await self._engine.put(kind, name, value, **options)

    async def join(self, joining: Joining) -> None:
        self._types.forget()
        await self._engine.join(joining)

    async def finish(self, outcomes: Sequence[Outcome], **options: Any) -> Finished:
        try:
            finished = await self._engine.finish(outcomes, **options)
        except StaleLease as error:  # in a transaction, a refusal is an error
            self._metrics.count("taskqueue_finishes_refused_total", (error.code,))
            raise
        for refusal in finished.refused:
            self._metrics.count("taskqueue_finishes_refused_total", (refusal.code,))
        refused = {(refusal.task, refusal.token) for refusal in finished.refused}
        crashed = sum(outcome.ending is Ending.CRASHED and (outcome.task, outcome.token) not in refused for outcome in outcomes)
        self._metrics.count("taskqueue_task_crashes_total", times=crashed)
        return finished

    async def recover_lost(self, n: int = 500) -> Moved:
        moved = await self._engine.recover_lost(n)
        self._metrics.count("taskqueue_tasks_recovered_total", times=moved.moved)
        self._metrics.count("taskqueue_workers_lost_total", times=len(moved.lost))
        return moved

    async def prune(self, n: int, term: Term, retention: Retention = DEFAULT_RETENTION) -> Moved:
        with _under(term, self._metrics):
            moved = await self._engine.prune(n, term, retention)
        self._metrics.count("taskqueue_tasks_pruned_total", times=moved.moved)
        return moved

    async def lead(self, role: str, holder: str) -> Term | None:
        term = await self._engine.lead(role, holder)
        self._metrics.leads(role, term)
        return term

    async def resign(self, term: Term) -> None:
        self._metrics.leads(term.role, None)
        await self._engine.resign(term)

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        with _under(term, self._metrics):
            fired = await self._engine.fire(schedule, version, tasks, next_at, term)
        self._metrics.fired(schedule, tasks, fired, await self._types_of(tasks))
        return fired

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        with _under(term, self._metrics):
            entries = await self._engine.outbox(kind, after, n, term)
        self._metrics.outbox(kind, entries)
        return entries


@contextmanager
def _under(term: Term, metrics: Metrics) -> Iterator[None]:
    """A write that is refused for its term says that another leads."""
    try:
        yield
    except StaleTerm:
        metrics.leads(term.role, None)
        raise
