"""Records as rows of a table: what a task, a queue, a schedule and a worker look like on a terminal. `taskmill.views` has them as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from taskmill import codec
from taskmill.cli.output import age, when
from taskmill.clock import format_duration
from taskmill.engine import WorkerInfo
from taskmill.operations import LimitInfo, QueueInfo, QueueSettings, ScheduleInfo, TypeInfo
from taskmill.retry import Retry
from taskmill.task import LIVE, Attempt, EdgeResult, Priority, State, Task
from taskmill.views import JSON, priority_word, task_data

__all__ = [
    "attempt_row",
    "edge_row",
    "limit_row",
    "queue_row",
    "queue_settings_fields",
    "schedule_row",
    "task_fields",
    "task_row",
    "type_row",
    "worker_row",
]

TASK_COLUMNS = ("id", "type", "queue", "state", "attempts", "created", "note")
ATTEMPT_COLUMNS = ("number", "outcome", "started", "took", "worker", "error")
QUEUE_COLUMNS = ("queue", "state", *(state.value for state in State if state in LIVE), "dead", "oldest", "workers", "note")
SCHEDULE_COLUMNS = ("schedule", "state", "type", "cron", "timezone", "next", "last fired", "note")
EDGE_COLUMNS = ("task", "outcome", "on failure", "result")
LIMIT_COLUMNS = ("limit", "rate", "cap", "note")
TYPE_COLUMNS = ("type", "state", "queue", "priority", "retries", "timeout", "limits", "workers", "note")
WORKER_COLUMNS = ("worker", "state", "running", "queues", "types", "joined", "silent", "info")


def task_row(task: Task) -> tuple[object, ...]:
    return (task.id, task.type, task.queue, task.state, task.executions, when(task.created_at), _task_note(task))


def _task_note(task: Task) -> str:
    """What one asks next about a task in this state."""
    if task.cancel_requested:
        return "cancel requested"
    if task.error is not None and task.state in {State.DEAD, State.CANCELLED, State.RETRYING}:
        return f"{task.error.code}: {task.error.message}"[:120]
    if task.state in {State.SCHEDULED, State.RETRYING}:
        return f"at {when(task.run_at)}"
    if task.state is State.WAITING and task.open_edges:
        return f"for {task.open_edges} task{'' if task.open_edges == 1 else 's'}"
    if task.state is State.RUNNING and task.started_at is None:
        return "claimed, not begun"
    if task.state is State.RUNNING and task.progress is not None:
        return f"{task.progress.value:.0%} {task.progress.message}"[:120]
    return ""


def task_fields(task: Task) -> Iterator[tuple[str, object]]:
    """Every field that says something, in the order of the record."""
    data = task_data(task)
    error, progress = data.pop("error"), data.pop("progress")
    for name, value in data.items():
        if name in JSON and value is None and name == "result" and task.result is None:
            continue
        yield name, _field_text(name, value)
    if task.progress is not None and progress:
        yield "progress", f"{task.progress.value:.0%} {task.progress.message}".strip()
    if task.error is not None and error:
        yield "error", f"{task.error.code}: {task.error.message}"
        yield "traceback", task.error.traceback


def _field_text(name: str, value: object) -> object:
    if name in JSON:
        return codec.encode(value).decode()
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or None
    if isinstance(value, list):
        return ", ".join(map(str, value)) or None
    return None if value is False or value is None or value == "" else "yes" if value is True else value


def attempt_row(attempt: Attempt) -> tuple[object, ...]:
    took = None if attempt.ended_at is None else max(0, attempt.ended_at - attempt.started_at)
    error = f"{attempt.error.code}: {attempt.error.message}"[:200] if attempt.error else ""
    return (attempt.number, attempt.outcome or "running", when(attempt.started_at), age(took), attempt.worker, error)


def edge_row(edge: EdgeResult) -> tuple[object, ...]:
    return (edge.task, edge.outcome or "open", edge.on_failure, "" if edge.result is None else edge.result.decode("utf-8", "replace")[:200])


def limit_row(info: LimitInfo) -> tuple[str, ...]:
    rate = "" if info.limit.rate is None else f"{info.limit.rate} in {format_duration(info.limit.window)}"
    cap = "" if info.limit.cap is None else f"{info.limit.cap} at once"
    return (info.name, rate, cap, "put by hand" if info.operator else "")


def queue_row(queue: QueueInfo) -> tuple[object, ...]:
    live = (queue.counts.get(state, 0) for state in State if state in LIVE)
    notes = [queue.reason if queue.paused else "", f"{queue.no_worker} without a worker" if queue.no_worker else ""]
    state = "paused" if queue.paused else "open"
    return (queue.name, state, *live, queue.counts.get(State.DEAD, 0), age(queue.oldest), queue.workers, ", ".join(filter(None, notes)))


def queue_settings_fields(settings: QueueSettings) -> Iterator[tuple[str, object]]:
    """How it shares itself out; defaults are left out."""
    yield "fair", settings.fair
    yield "weights", ", ".join(f"{share}={weight}" for share, weight in sorted(settings.weights.items()))
    words = [each.name.lower() for each in sorted(Priority)]
    yield "priorities", ", ".join(f"{word}={turns}" for word, turns in reversed([*zip(words, settings.priorities or (), strict=False)]))
    yield "partitions", settings.partitions if settings.partitions > 1 else None


def schedule_row(info: ScheduleInfo) -> tuple[object, ...]:
    state = "paused" if info.paused else "error" if info.error else "open"
    made = (info.schedule.type, info.schedule.cron.expression, info.schedule.cron.timezone) if info.schedule else ("", "", "")
    return (info.name, state, *made, when(info.next_at), when(info.fired_at), info.error or info.reason or ("put by hand" if info.operator else ""))


def type_row(info: TypeInfo) -> tuple[object, ...]:
    of_type = info.settings
    retries = (of_type.retry or Retry()).max_retries
    state = "paused" if info.paused else "open"
    timeout = format_duration(of_type.timeout)
    return (info.name, state, of_type.queue, priority_word(of_type.priority), retries, timeout, ",".join(of_type.limits), info.workers, info.reason)


def worker_row(worker: WorkerInfo) -> tuple[object, ...]:
    state = (worker.command or "alive") if worker.alive else "lost"
    info = " ".join(f"{name}={value}" for name, value in worker.info.items())
    return (worker.id, state, worker.running, ",".join(worker.queues), len(worker.types), when(worker.joined_at), age(worker.silent), info)
