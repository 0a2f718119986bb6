"""What is not as it should be: the store's own findings, and those of the work in it, each with its remedy.

Nothing is kept between two checks: each finding is seen in the store as it is now.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from taskmill.clock import HOUR, SECOND, format_duration
from taskmill.engine import Count, Engine, Filter, Finding, Page, WorkerInfo
from taskmill.operations.model import QueueInfo, ScheduleInfo, TypeInfo
from taskmill.operations.queues import queues
from taskmill.operations.schedules import schedules
from taskmill.operations.types import types
from taskmill.task import State

__all__ = ["check"]

LEVELS = ("error", "warning", "info")
NEWEST = 500
"""Dead letters looked at for their time of death: enough to see that they come, however many there are."""


class _Seen(Struct, frozen=True):
    """The store at one glance."""

    now: int
    counts: tuple[Count, ...]
    workers: tuple[WorkerInfo, ...]
    queues: tuple[QueueInfo, ...]
    types: tuple[TypeInfo, ...]
    schedules: tuple[ScheduleInfo, ...]
    dead: Page


async def check(engine: Engine) -> tuple[Finding, ...]:
    own = await engine.check()
    counts, workers, of_queues, of_types, of_schedules, dead = await asyncio.gather(
        engine.counts(),
        engine.workers(),
        queues(engine),
        types(engine),
        schedules(engine),
        engine.list(Filter(states=frozenset({State.DEAD})), n=NEWEST),
    )
    seen = _Seen(engine.clock.now(), counts, workers, of_queues, of_types, of_schedules, dead)
    found = [*own, *(finding for look in (_workers, _queues, _types, _schedules, _dead_letters) for finding in look(seen))]
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level) if finding.level in LEVELS else 0))


def _workers(seen: _Seen) -> Iterator[Finding]:
    ready = sum(count.tasks for count in seen.counts if count.state is State.PENDING)
    if not any(worker.alive for worker in seen.workers):
        message = f"no live worker, and {_tasks(ready)} ready" if ready else "no live worker"
        yield Finding("warning" if ready else "info", "no_live_worker", message, "start one: taskmill worker app.py")
    for worker in seen.workers:
        if not worker.alive:
            ago = "at all since the machine started" if worker.silent is None else f"for {_about(worker.silent)}"
            hint = "recovery, which every live worker does, gives its tasks to others; `taskmill workers list` shows who lives"
            yield Finding("warning", "silent_worker", f"worker {worker.id} was not heard of {ago} and holds {_tasks(worker.running)}", hint)


def _queues(seen: _Seen) -> Iterator[Finding]:
    for queue in seen.queues:
        ready = queue.counts.get(State.PENDING, 0)
        if queue.paused:
            why = f" ({queue.reason})" if queue.reason else ""
            yield Finding("warning", "paused_queue", f"the queue {queue.name} is paused{why}; {_tasks(ready)} ready", f"taskmill queue resume {queue.name}")
        elif ready and not queue.workers and any(worker.alive for worker in seen.workers):
            hint = f"start a worker that claims from it: taskmill worker app.py --queue {queue.name}"
            yield Finding("warning", "unserved_queue", f"no live worker claims from the queue {queue.name}; {_tasks(ready)} ready", hint)


def _types(seen: _Seen) -> Iterator[Finding]:
    unknown: Counter[str] = Counter()
    for count in seen.counts:
        if count.no_worker:
            unknown[count.type] += count.tasks
    for name, tasks in sorted(unknown.items()):
        hint = "start a worker whose app has this type, or cancel them: they wait where they are"
        yield Finding("warning", "no_worker", f"no registered worker has the type {name}; {_tasks(tasks)} ready", hint)
    for info in seen.types:
        if info.paused:
            why = f" ({info.reason})" if info.reason else ""
            yield Finding("warning", "paused_type", f"the type {info.name} is paused{why}", f"taskmill type resume {info.name}")


def _schedules(seen: _Seen) -> Iterator[Finding]:
    known = {info.name for info in seen.types}
    for info in seen.schedules:
        if info.schedule is None:
            yield Finding("error", "invalid_schedule", f"the schedule {info.name} cannot be read: {info.error}", "put it again, or remove it")
        elif info.paused and info.reason == "orphaned":
            hint = "declare it again, or put it under another name if it should go on without the app"
            yield Finding("warning", "orphaned_schedule", f"the schedule {info.name} is paused: its app no longer declares it", hint)
        elif info.paused:
            yield Finding("info", "paused_schedule", f"the schedule {info.name} is paused", f"taskmill schedule resume {info.name}")
        elif info.schedule.queue is None and info.schedule.type not in known:
            hint = "start a worker whose app has this type: until then its fire times make no task"
            yield Finding(
                "warning", "unknown_type", f"the schedule {info.name} makes tasks of the type {info.schedule.type}, which nobody has registered", hint
            )


def _dead_letters(seen: _Seen) -> Iterator[Finding]:
    every = sum(count.tasks for count in seen.counts if count.state is State.DEAD)
    recent = Counter(task.type for task in seen.dead.tasks if task.finished_at is not None and seen.now - task.finished_at < HOUR)
    hint = "`taskmill dead list` shows them with their errors, `taskmill dead requeue` runs them again"
    if recent:
        most = ", ".join(f"{name} {number}" for name, number in recent.most_common(3))
        total = max(every, len(seen.dead.tasks))
        yield Finding("warning", "dead_letters", f"{_tasks(recent.total())} died in the last hour ({most}); {total} dead letters in all", hint)
    elif every:
        yield Finding("info", "dead_letters", f"{every} dead letters, none of the last hour", hint)


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def _about(micros: int) -> str:
    return format_duration(max(SECOND, micros // SECOND * SECOND))
