"""Metrics: what a process counts, and what it reads from its store when somebody asks.

    engine ── watch() ──▶ every verb that this process calls: how long, which error; what it submitted, fired, recovered, leads
    children ── ended() ──▶ attempts by type and ending, durations
    store ── read at most every 5 s, when scraped ──▶ depth and lag of queues, dead letters, workers

`METRICS` is the one table: name, kind, labels and meaning; the page docs/guides/metrics.md is written from it. Values live here as plain
numbers and belong to one `Metrics`: nothing is global, two of them in a process do not know each other. Names of types, queues and schedules
come from outside, so each label takes only the first thousand; all others are counted together, for a store of a million names must not
become a million series.
"""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from msgspec import Struct

from taskmill.clock import SECOND, Clock, SystemClock
from taskmill.engine import (
    DEFAULT_RETENTION,
    Call,
    Count,
    Ending,
    Engine,
    Entry,
    Finished,
    Fired,
    Moved,
    Outcome,
    Retention,
    Status,
    Submitted,
    Term,
    WorkerInfo,
    observed,
)
from taskmill.errors import StaleTerm, TaskmillError
from taskmill.task import LIVE, NewTask, Priority, State
from taskmill.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

__all__ = ["CONTENT_TYPE", "METRICS", "OTHERS", "Counted", "Metric", "Metrics", "Processes"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH = 5 * SECOND
"""What was read from the store is good for this long, however often it is asked for."""
PATIENCE = 2.0
"""Seconds that a scrape waits for the store; without its answer the rest is told all the same."""
MOST_NAMES = 1_000
OTHERS = "(others)"
"""The label of all names beyond the first thousand; no type or queue can be called so."""
CALL_BOUNDS = (100, 500, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 30_000_000)


class Metric(Struct, frozen=True):
    """One line of the table."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


METRICS = (
    Metric("taskqueue_tasks_submitted_total", "counter", ("type", "priority"), "Tasks that this process stored; priority `default`: the type decides it"),
    Metric("taskqueue_tasks_completed_total", "counter", ("type", "status"), "Attempts that ended, by how: " + ", ".join(Ending)),
    Metric("taskqueue_task_retries_total", "counter", ("type",), "Attempts that failed and are tried again"),
    Metric("taskqueue_task_crashes_total", "counter", (), "Tasks whose process died under them, as reported by this supervisor"),
    Metric("taskqueue_task_duration_seconds", "histogram", ("type",), "How long an attempt's handler ran, whatever its ending"),
    Metric("taskqueue_queue_depth", "gauge", ("queue", "priority", "state"), "Tasks in the store that have not ended"),
    Metric("taskqueue_queue_lag_seconds", "gauge", ("queue", "priority"), "How long the oldest pending task has been ready; 0: none is pending"),
    Metric("taskqueue_no_worker_tasks", "gauge", ("queue",), "Pending tasks of types that no live worker knows"),
    Metric("taskqueue_dlq_size", "gauge", ("queue",), "Dead letters: dead tasks still in the store"),
    Metric("taskqueue_active_workers", "gauge", (), "Workers of the whole store that are alive"),
    Metric("taskqueue_workers_total", "gauge", (), "Workers of the whole store that are registered, alive or not yet found dead"),
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
    Metric("taskqueue_outbox_lag_seconds", "gauge", ("kind",), "Age of the oldest entry of the outbox not yet delivered, while this process leads there"),
    Metric("taskqueue_leader", "gauge", ("role",), "Whether this process leads: schedules, pruning, outbox"),
    Metric("taskqueue_leader_age_seconds", "gauge", ("role",), "How long this process has led in its present term; absent where it does not lead"),
    Metric("taskqueue_engine_call_duration_seconds", "histogram", ("engine", "verb"), "How long a call of the store took; `wait`: with the waiting asked for"),
    Metric("taskqueue_engine_errors_total", "counter", ("engine", "verb", "code"), "Calls of the store that ended in an error, by its code"),
    Metric("taskqueue_build_info", "gauge", ("version", "python", "engine"), "Always 1; the labels say what runs"),
)  # fmt: skip


class Counted(Protocol):
    """What a worker process counted of one type since it last told: endings, and durations in buckets (microseconds in `total`)."""

    @property
    def endings(self) -> Mapping[str, int]: ...
    @property
    def buckets(self) -> Sequence[int]: ...
    @property
    def total(self) -> int: ...


class Processes(Struct, frozen=True, kw_only=True):
    """The worker processes of a supervisor at this moment."""

    states: Mapping[str, int]
    concurrency: int
    running: int
    leases: int
    memory: int
    crashes: int


class Histogram:
    """Durations in buckets; the last has what is over every bound."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, duration: int) -> None:
        self.buckets[bisect_left(self.bounds, duration)] += 1
        self.total += duration

    def merge(self, buckets: Sequence[int], total: int) -> None:
        self.buckets = [mine + more for mine, more in zip(self.buckets, buckets, strict=True)]
        self.total += total

    def cumulative(self) -> list[tuple[str, float]]:
        """Each bound in seconds with how many were not above it, as scrapers want it."""
        bounds = [*(repr(bound / SECOND) for bound in self.bounds), "+Inf"]
        return [(bound, float(sum(self.buckets[: index + 1]))) for index, bound in enumerate(bounds)]


class Names:
    """The first thousand names are themselves, all later ones `(others)`."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHERS
            self._known.add(name)
        return name


class Read(Struct, frozen=True):
    """What the store said, and when."""

    counts: tuple[Count, ...]
    workers: tuple[WorkerInfo, ...]
    at: int


class Leading(Struct, frozen=True):
    """A term of this process's own, and since when it has had it."""

    number: int
    since: int


Sample = tuple[str, tuple[str, ...], float]


class Metrics:
    """The metrics of one process. `bounds` are those of the buckets that `ended` is given, `processes` what a supervisor has to tell."""

    def __init__(
        self,
        bounds: Sequence[int],
        *,
        clock: Clock | None = None,
        processes: Callable[[], Processes] | None = None,
        most_names: int = MOST_NAMES,
    ) -> None:
        from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry()
        self.registry.register(cast("Any", self))
        self._clock = clock or SystemClock()
        self._processes = processes
        self._bounds = tuple(bounds)
        self.term = 4 * SECOND
        """How long a leader that is not heard of may still count as one."""
        self._types, self._queues, self._schedules, self._kinds = (Names(most_names) for _ in range(4))
        counters = (metric for metric in METRICS if metric.kind == "counter")
        self._counters: dict[str, dict[tuple[str, ...], int]] = {metric.name: {} if metric.labels else {(): 0} for metric in counters}
        self._durations: dict[tuple[str, ...], Histogram] = {}
        self._calls: dict[tuple[str, ...], Histogram] = {}
        self._led: dict[str, tuple[int, Leading | None]] = {}
        """By role: when this was heard, and of which term."""
        self._lags: dict[str, int] = {}
        self._engine: Engine | None = None
        self._read: Read | None = None
        self._asked_at: int | None = None
        self._reading = asyncio.Lock()

    # Counting

    def watch(self, engine: Engine) -> Engine:
        """The same engine, whose calls are counted here; it is also the store whose queues are shown."""
        self._engine = cast("Engine", _Watched(observed(engine, self.tell), self))
        return self._engine

    def tell(self, call: Call) -> None:
        """One call of the store, as `engine.observed` tells it. A caller that gave up is no error of the store."""
        labels = (call.engine, call.verb)
        histogram = self._calls.get(labels)
        if histogram is None:
            histogram = self._calls[labels] = Histogram(CALL_BOUNDS)
        histogram.add(call.duration)
        if call.code is not None and call.code != asyncio.CancelledError.__name__:
            self.count("taskqueue_engine_errors_total", (*labels, call.code))

    def ended(self, counted: Mapping[str, Counted]) -> None:
        """What the worker processes counted since they last told, by type."""
        for name, one in counted.items():
            type = self._types(name)
            for ending, times in one.endings.items():
                self.count("taskqueue_tasks_completed_total", (type, ending), times)
            if retries := one.endings.get(Ending.RETRY, 0):
                self.count("taskqueue_task_retries_total", (type,), retries)
            self._durations.setdefault((type,), Histogram(self._bounds)).merge(one.buckets, one.total)

    def submitted(self, tasks: Iterable[NewTask], answers: Iterable[Submitted]) -> None:
        """Those that are new in the store; what was there already, or was refused, is not counted."""
        for task, answer in zip(tasks, answers, strict=False):
            if answer.status in (Status.CREATED, Status.REPLACED):
                priority = "default" if task.priority is None else Priority(task.priority).name.lower()
                self.count("taskqueue_tasks_submitted_total", (self._types(task.type), priority))

    def fired(self, schedule: str, tasks: Sequence[NewTask], fired: Fired) -> None:
        self.submitted(tasks, fired.tasks)
        made = sum(answer.status is Status.CREATED for answer in fired.tasks)
        if made:
            self.count("taskqueue_schedules_fired_total", (self._schedules(schedule),), made)

    def leads(self, role: str, term: Term | None) -> None:
        """What the store last said of this process in this role."""
        now = self._clock.monotonic()
        before = self._led.get(role, (now, None))[1]
        same = before is not None and term is not None and before.number == term.number
        self._led[role] = (now, before if same else None if term is None else Leading(term.number, now))

    def outbox(self, kind: str, entries: Sequence[Entry]) -> None:
        self._lags[self._kinds(kind)] = max(0, self._clock.now() - entries[0].at) if entries else 0

    def count(self, name: str, labels: tuple[str, ...] = (), times: int = 1) -> None:
        values = self._counters[name]
        values[labels] = values.get(labels, 0) + times

    # Telling

    async def scrape(self) -> bytes:
        """Everything, as the text format has it (`CONTENT_TYPE`)."""
        from prometheus_client import generate_latest

        await self._refresh()
        return generate_latest(self.registry)

    async def _refresh(self) -> None:
        """Ask the store, unless somebody did a moment ago, also in vain: many scrapers must not cost more than one."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._engine is None or (self._asked_at is not None and now - self._asked_at < FRESH):
                return
            self._asked_at, self._read = now, None
            try:
                async with asyncio.timeout(PATIENCE):
                    self._read = Read(await self._engine.counts(), await self._engine.workers(), self._clock.now())
            except (TaskmillError, TimeoutError):
                return

    def collect(self) -> Iterator[Family]:
        """For the registry: the families of the table that have values."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        gauges = self._by_name()
        for metric in METRICS:
            match metric.kind:
                case "histogram":
                    histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
                    for labels, one in list(self._histograms(metric.name).items()):
                        histogram.add_metric(labels, one.cumulative(), one.total / SECOND)
                    family: Family = histogram
                case kind:
                    plain = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(metric.name, metric.meaning, labels=metric.labels)
                    values = self._counters[metric.name] if kind == "counter" else gauges.get(metric.name, {})
                    for labels, value in list(values.items()):
                        plain.add_metric(labels, value)
                    family = plain
            if family.samples:
                yield family

    def _histograms(self, name: str) -> dict[tuple[str, ...], Histogram]:
        return self._durations if name == "taskqueue_task_duration_seconds" else self._calls

    def _by_name(self) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for name, labels, value in (*self._own(), *self._of_processes(), *self._of_store()):
            found.setdefault(name, {})[labels] = value
        return found

    def _own(self) -> Iterator[Sample]:
        engine = "" if self._engine is None else self._engine.features.name
        yield "taskqueue_build_info", (__version__, platform.python_version(), engine), 1
        now = self._clock.monotonic()
        for role, (heard, term) in self._led.items():
            leading = term is not None and now - heard < self.term
            yield "taskqueue_leader", (role,), leading
            if term is not None and leading:
                yield "taskqueue_leader_age_seconds", (role,), (now - term.since) / SECOND
            if role == "outbox" and leading:
                for kind, lag in self._lags.items():
                    yield "taskqueue_outbox_lag_seconds", (kind,), lag / SECOND

    def _of_processes(self) -> Iterator[Sample]:
        if self._processes is None:
            return
        now = self._processes()
        for state, processes in now.states.items():
            yield "taskqueue_worker_processes", (state,), processes
        yield "taskqueue_worker_concurrency", (), now.concurrency
        yield "taskqueue_worker_running", (), now.running
        yield "taskqueue_worker_leases", (), now.leases
        yield "taskqueue_worker_memory_bytes", (), now.memory
        self._counters["taskqueue_worker_crashes_total"][()] = now.crashes

    def _of_store(self) -> Iterator[Sample]:
        read = self._read
        if self._engine is not None:
            yield "taskqueue_store_up", (), read is not None
        if read is None:
            return
        yield "taskqueue_active_workers", (), sum(worker.alive for worker in read.workers)
        yield "taskqueue_workers_total", (), len(read.workers)
        sums: dict[tuple[str, tuple[str, ...]], float] = {}
        for count in read.counts:
            for name, labels, value in self._of_queue(count):
                sums[name, labels] = sums.get((name, labels), 0) + value
        yield from ((name, labels, value) for (name, labels), value in sums.items())
        yield from self._lag(read)

    def _of_queue(self, count: Count) -> Iterator[Sample]:
        """What one line of the counts adds to the figures of its queue."""
        queue = self._queues(count.queue)
        yield "taskqueue_dlq_size", (queue,), count.tasks if count.state is State.DEAD else 0
        yield "taskqueue_no_worker_tasks", (queue,), count.tasks if count.no_worker else 0
        priority = Priority(count.priority).name.lower()
        yield "taskqueue_queue_depth", (queue, priority, State.PENDING.value), 0  # so that an empty queue reads as empty, not as unknown
        if count.state in LIVE:
            yield "taskqueue_queue_depth", (queue, priority, count.state.value), count.tasks

    def _lag(self, read: Read) -> Iterator[Sample]:
        oldest: dict[tuple[str, str], int] = {}
        for count in read.counts:
            key = (self._queues(count.queue), Priority(count.priority).name.lower())
            ready_at = read.at if count.oldest is None or count.state is not State.PENDING else count.oldest
            oldest[key] = min(oldest.get(key, read.at), ready_at)
        for key, ready_at in oldest.items():
            yield "taskqueue_queue_lag_seconds", key, max(0, read.at - ready_at) / SECOND


class _Watched:
    """An engine whose answers are counted: here pass all that a process submits, fires, recovers and leads."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def submit(self, tasks: Sequence[NewTask], **options: Any) -> tuple[Submitted, ...]:
        answers = await self._engine.submit(tasks, **options)
        self._metrics.submitted(tasks, answers)
        return answers

    async def finish(self, outcomes: Sequence[Outcome], **options: Any) -> Finished:
        finished = await self._engine.finish(outcomes, **options)
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
        self._metrics.fired(schedule, tasks, fired)
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
