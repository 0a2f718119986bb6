"""The table of metrics: name, kind, labels, meaning and buckets. The page docs/guides/metrics.md is written from it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from taskmill.engine import Ending

__all__ = ["METRICS", "QUEUE", "TASK", "Metric"]

# Upper bounds of buckets, in microseconds

CALL = (100, 500, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 30_000_000)
TASK = (1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 60_000_000, 600_000_000)
QUEUE = (5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000)


class Metric(Struct, frozen=True):
    """One line of the table."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    bounds: tuple[int, ...] = ()
    """Of a histogram: the upper bounds of its buckets, in microseconds; one bucket more has the rest."""


METRICS = (
    Metric("taskqueue_tasks_submitted_total", "counter", ("type", "priority"), "Tasks that this process stored, by the priority that they have in the store"),
    Metric("taskqueue_tasks_completed_total", "counter", ("type", "status"), "Attempts that ended, by how: " + ", ".join(Ending)),
    Metric("taskqueue_task_retries_total", "counter", ("type",), "Attempts that failed and are tried again"),
    Metric("taskqueue_task_crashes_total", "counter", (), "Tasks whose process died under them, as reported by this supervisor"),
    Metric("taskqueue_task_duration_seconds", "histogram", ("type",), "How long an attempt's handler ran, whatever its ending", TASK),
    Metric("taskqueue_time_in_queue_seconds", "histogram", ("type",),
           "How long tasks were ready before their handler began; one given back keeps its age", QUEUE),
    Metric("taskqueue_leases_lost_total", "counter", (),
           "Leases that were taken from workers which still held them: processes of this supervisor, or remote workers that this server told so"),
    Metric("taskqueue_finishes_refused_total", "counter", ("code",), "Ends of attempts that the store refused; `stale_lease`: the task is another's by now"),
    Metric("taskqueue_queue_depth", "gauge", ("queue", "priority", "state"), "Tasks in the store that have not ended"),
    Metric("taskqueue_queue_lag_seconds", "gauge", ("queue", "priority"), "How long the oldest pending task has been ready; 0: none is pending"),
    Metric("taskqueue_no_worker_tasks", "gauge", ("queue", "type"), "Pending tasks of types that no live worker knows"),
    Metric("taskqueue_dlq_size", "gauge", ("queue",), "Dead letters: dead tasks still in the store"),
    Metric("taskqueue_active_workers", "gauge", (), "Workers of the whole store that are alive"),
    Metric("taskqueue_registered_workers", "gauge", (), "Workers of the whole store that are registered, alive or not yet found dead"),
    Metric("workers_total", "gauge", (), "The same as `taskqueue_registered_workers`, under the name that some dashboards ask for"),
    Metric("taskqueue_store_up", "gauge", (), "Whether the store answered when last read; while it is 0, the figures of queues and workers are absent"),
    Metric("taskqueue_worker_processes", "gauge", ("state",), "Worker processes of this supervisor: starting, ready, draining"),
    Metric("taskqueue_worker_concurrency", "gauge", (), "Tasks that the worker processes of this supervisor may run at once"),
    Metric("taskqueue_worker_running", "gauge", (), "Handlers that run now under this supervisor"),
    Metric("taskqueue_worker_leases", "gauge", (), "Leases held under this supervisor: running, waiting for a slot, or for the store to take their end"),
    Metric("taskqueue_worker_memory_bytes", "gauge", (), "Resident memory of the worker processes of this supervisor"),
    Metric("taskqueue_worker_crashes_total", "counter", (), "Worker processes of this supervisor that died or were killed for a handler that did not end"),
    Metric("taskqueue_tasks_recovered_total", "counter", (), "Tasks that this process's recovery moved: those of lost workers, and expired ones"),
    Metric("taskqueue_workers_lost_total", "counter", (), "Workers that this process's recovery found dead"),
    Metric("taskqueue_tasks_pruned_total", "counter", (), "Ended tasks that this process removed when their retention was over"),
    Metric("taskqueue_schedules_fired_total", "counter", ("schedule",), "Tasks that this process made for a schedule"),
    Metric("taskqueue_schedule_lag_seconds", "histogram", (), "How long after their time the tasks of schedules were made by this process", QUEUE),
    Metric("taskqueue_outbox_lag_seconds", "gauge", ("kind",), "Age of the oldest outbox entry not delivered, while this process leads there"),
    Metric("taskqueue_leader", "gauge", ("role",), "Whether this process leads: schedules, pruning, outbox"),
    Metric("taskqueue_leader_age_seconds", "gauge", ("role",), "How long this process has led in its present term; absent where it does not lead"),
    Metric("taskqueue_leader_changes_total", "counter", ("role",), "Terms that this process began; summed over processes: how often the leader changed"),
    Metric("taskqueue_engine_call_duration_seconds", "histogram", ("engine", "verb"),
           "How long a call of the store took; `wait`: with the waiting asked for", CALL),
    Metric("taskqueue_engine_errors_total", "counter", ("engine", "verb", "code"), "Calls of the store that ended in an error, by its code"),
    Metric("taskqueue_request_duration_seconds", "histogram", ("surface", "route", "status"),
           "How long this process took to answer; surface: `http` or `grpc`, route: its template, never a path", CALL),
    Metric("taskqueue_build_info", "gauge", ("version", "python", "engine"), "Always 1; the labels say what runs"),
)  # fmt: skip
