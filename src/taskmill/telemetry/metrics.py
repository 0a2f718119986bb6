"""The metrics of one process: counted as things happen, read from the store when somebody scrapes."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, cast

from msgspec import Struct

from taskmill.clock import SECOND, Clock, SystemClock
from taskmill.engine import Call, Count, Ending, Engine, Entry, Fired, Status, Submitted, Term, WorkerInfo, observed
from taskmill.errors import TaskmillError
from taskmill.task import LIVE, NewTask, Priority, State, TypeSettings
from taskmill.telemetry.samples import MOST_NAMES, Labels, Names, Sample, Samples
from taskmill.telemetry.table import Metric
from taskmill.telemetry.watching import Watched
from taskmill.version import __version__

__all__ = ["CONTENT_TYPE", "FRESH", "Counted", "Metrics", "Processes"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH = 5 * SECOND
"""What was read from the store is good for this long, however often it is asked for."""
PATIENCE = 2.0
"""Seconds that a scrape waits for the store; without its answer the rest is told all the same."""
_NEW = (Status.CREATED, Status.REPLACED)
_DEFAULTS = TypeSettings()
BOUNDED = ("type", "queue", "schedule", "kind", "route")
"""Labels whose values come from outside."""


class Counted(Protocol):
    """What a worker process counted of one type since it last told: endings, durations and times in queue in buckets (microseconds in sum), leases lost."""

    @property
    def endings(self) -> Mapping[str, int]: ...
    @property
    def buckets(self) -> Sequence[int]: ...
    @property
    def total(self) -> int: ...
    @property
    def waits(self) -> Sequence[int]: ...
    @property
    def waited(self) -> int: ...
    @property
    def lost(self) -> int: ...


class Processes(Struct, frozen=True, kw_only=True):
    """The worker processes of a supervisor at this moment."""

    states: Mapping[str, int]
    concurrency: int
    running: int
    leases: int
    memory: int
    crashes: int


class Read(Struct, frozen=True):
    """How many tasks the store said there are, and when it said so."""

    counts: tuple[Count, ...]
    at: int


class Leading(Struct, frozen=True):
    """A term of this process's own, and since when it has had it."""

    number: int
    since: int


class Metrics:
    """The metrics of one process; `processes` is what a supervisor has to tell of its own."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        processes: Callable[[], Processes] | None = None,
        most_names: int = MOST_NAMES,
    ) -> None:
        self._clock = clock or SystemClock()
        self._processes = processes
        self.term = 4 * SECOND
        """How long a leader that is not heard of may still count as one."""
        self._names = {label: Names(most_names) for label in BOUNDED}
        self._samples = Samples()
        self._led: dict[str, tuple[int, Leading | None]] = {}
        """By role: when this was heard, and of which term."""
        self._lags: dict[str, int] = {}
        self._engine: Engine | None = None
        self._workers: tuple[WorkerInfo, ...] | None = None
        """None: the store did not answer when it was last asked."""
        self._read: Read | None = None
        self._asked_at: int | None = None
        self._reading = asyncio.Lock()
        self._counting: asyncio.Task[None] | None = None

    # Counting

    def watch(self, engine: Engine) -> Engine:
        """The same engine, whose calls are counted here; it is also the store whose queues are shown."""
        self._engine = cast("Engine", Watched(observed(engine, self.tell), self))
        return self._engine

    def tell(self, call: Call) -> None:
        """One call of the store, as `engine.observed` tells it. A caller that gave up is no error of the store."""
        labels = (call.engine, call.verb)
        self._samples.histogram("taskqueue_engine_call_duration_seconds", labels).add(call.duration)
        if call.code is not None and call.code != asyncio.CancelledError.__name__:
            self.count("taskqueue_engine_errors_total", (*labels, call.code))

    def request(self, surface: str, route: str, status: str, duration: int) -> None:
        """One answer of a surface (`http`, `grpc`). `route` is the template of the route, never a path that somebody asked for; `duration` in microseconds."""
        self._samples.histogram("taskqueue_request_duration_seconds", (surface, self._names["route"](route), status)).add(duration)

    def ended(self, counted: Mapping[str, Counted]) -> None:
        """What the worker processes counted since they last told, by type."""
        for name, one in counted.items():
            type = self._names["type"](name)
            for ending, times in one.endings.items():
                self.count("taskqueue_tasks_completed_total", (type, ending), times)
            if retries := one.endings.get(Ending.RETRY, 0):
                self.count("taskqueue_task_retries_total", (type,), retries)
            self.count("taskqueue_leases_lost_total", times=one.lost)
            self._samples.histogram("taskqueue_task_duration_seconds", (type,)).merge(one.buckets, one.total)
            self._samples.histogram("taskqueue_time_in_queue_seconds", (type,)).merge(one.waits, one.waited)

    def submitted(self, tasks: Iterable[NewTask], answers: Iterable[Submitted], types: Mapping[str, TypeSettings]) -> None:
        """Those that are new in the store, with the priority that they have there; what was there already, or was refused, is not counted."""
        new = Counter([(task.type, task.priority) for task, answer in zip(tasks, answers, strict=False) if answer.status in _NEW])
        for (type, number), times in new.items():
            priority = types.get(type, _DEFAULTS).priority if number is None else number
            self.count("taskqueue_tasks_submitted_total", (self._names["type"](type), Priority(priority).name.lower()), times)

    def fired(self, schedule: str, tasks: Sequence[NewTask], fired: Fired, types: Mapping[str, TypeSettings]) -> None:
        self.submitted(tasks, fired.tasks, types)
        now = self._clock.now()
        lag = self._samples.histogram("taskqueue_schedule_lag_seconds", ())
        made = [task for task, answer in zip(tasks, fired.tasks, strict=False) if answer.status is Status.CREATED]
        for task in made:
            lag.add(max(0, now - (now if task.run_at is None else task.run_at)))
        if made:
            self.count("taskqueue_schedules_fired_total", (self._names["schedule"](schedule),), len(made))

    def leads(self, role: str, term: Term | None) -> None:
        """What the store last said of this process in this role."""
        now = self._clock.monotonic()
        before = self._led.get(role, (now, None))[1]
        if before is None or term is None or before.number != term.number:
            before = None if term is None else Leading(term.number, now)
            if term is not None:
                self.count("taskqueue_leader_changes_total", (role,))
        self._led[role] = (now, before)

    def outbox(self, kind: str, entries: Sequence[Entry]) -> None:
        self._lags[self._names["kind"](kind)] = max(0, self._clock.now() - entries[0].at) if entries else 0

    def count(self, name: str, labels: Labels = (), times: int = 1) -> None:
        self._samples.count(name, labels, times)

    # Between processes

    def take(self) -> bytes | None:
        """What was counted since it was last taken; from then on it is the other's who adds it. None when there is nothing."""
        if not any(self._samples.counters.values()) and not any(self._samples.histograms.values()):
            return None
        taken, self._samples = self._samples, Samples()
        return taken.encoded()

    def add(self, snapshot: bytes) -> None:
        """What another process has counted is counted here from now on."""
        self._samples.add(snapshot, self._bounded)

    def snapshot(self) -> bytes:
        """What this process has counted so far, and its own gauges, for `scrape` of another; nothing that stands in the store."""
        return self._told().encoded()

    def _told(self) -> Samples:
        """A copy, with the gauges of this moment."""
        told = Samples()
        told.add(self._samples.encoded(), lambda _, labels: labels)
        now = None if self._processes is None else self._processes()
        if now is not None:
            told.count("taskqueue_worker_crashes_total", times=now.crashes)
        for sample in (*self._leading(), *_of_processes(now)):
            told.gauge(*sample)
        return told

    def _bounded(self, metric: Metric, labels: Labels) -> Labels:
        return tuple(self._names[label](value) if label in self._names else value for label, value in zip(metric.labels, labels, strict=True))

    # Telling

    async def scrape(self, others: Sequence[bytes] = ()) -> bytes:
        """Everything, as the text format has it (`CONTENT_TYPE`), with the snapshots of other processes counted in."""
        await self._refresh()
        told = self._told()
        for snapshot in others:
            told.add(snapshot, self._bounded)
        for sample in (self._build(), *self._of_store()):
            told.gauge(*sample)
        return told.text()

    async def _refresh(self) -> None:
        """Ask the store, unless somebody did a moment ago, also in vain: many scrapers must not cost more than one."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._engine is None or (self._asked_at is not None and now - self._asked_at < FRESH):
                return
            self._asked_at, self._workers = now, None
            if self._counting is None or self._counting.done():
                self._counting = asyncio.create_task(self._count(self._engine))
            with suppress(TaskmillError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    self._workers = await self._engine.workers()
                    await asyncio.wait([self._counting])

    async def _count(self, engine: Engine) -> None:
        """Counting many tasks may take longer than a scrape waits. It goes on, and the next scrapes tell what came of it."""
        try:
            self._read = Read(await engine.counts(), self._clock.now())
        except TaskmillError:
            self._read = None

    def _build(self) -> Sample:
        engine = "" if self._engine is None else self._engine.features.name
        return "taskqueue_build_info", (__version__, platform.python_version(), engine), 1

    def _leading(self) -> Iterator[Sample]:
        now = self._clock.monotonic()
        for role, (heard, term) in self._led.items():
            leading = term is not None and now - heard < self.term
            yield "taskqueue_leader", (role,), leading
            if term is not None and leading:
                yield "taskqueue_leader_age_seconds", (role,), (now - term.since) / SECOND
            if role == "outbox" and leading:
                for kind, lag in self._lags.items():
                    yield "taskqueue_outbox_lag_seconds", (kind,), lag / SECOND

    def _of_store(self) -> Iterator[Sample]:
        workers, read = self._workers, self._read
        if self._engine is not None:
            yield "taskqueue_store_up", (), workers is not None
        if workers is None:
            return
        yield "taskqueue_active_workers", (), sum(worker.alive for worker in workers)
        yield "taskqueue_registered_workers", (), len(workers)
        yield "workers_total", (), len(workers)
        if read is None:
            return
        sums: dict[tuple[str, Labels], float] = {}
        for count in read.counts:
            for name, labels, value in self._of_queue(count):
                sums[name, labels] = sums.get((name, labels), 0) + value
        yield from ((name, labels, value) for (name, labels), value in sums.items())
        yield from self._lag(read)

    def _of_queue(self, count: Count) -> Iterator[Sample]:
        """What one line of the counts adds to the figures of its queue."""
        queue = self._names["queue"](count.queue)
        yield "taskqueue_dlq_size", (queue,), count.tasks if count.state is State.DEAD else 0
        yield "taskqueue_no_worker_tasks", (queue, self._names["type"](count.type)), count.tasks if count.no_worker else 0
        priority = Priority(count.priority).name.lower()
        yield "taskqueue_queue_depth", (queue, priority, State.PENDING.value), 0  # so that an empty queue reads as empty, not as unknown
        if count.state in LIVE:
            yield "taskqueue_queue_depth", (queue, priority, count.state.value), count.tasks

    def _lag(self, read: Read) -> Iterator[Sample]:
        oldest: dict[tuple[str, str], int] = {}
        for count in read.counts:
            key = (self._names["queue"](count.queue), Priority(count.priority).name.lower())
            ready_at = read.at if count.oldest is None or count.state is not State.PENDING else count.oldest
            oldest[key] = min(oldest.get(key, read.at), ready_at)
        for key, ready_at in oldest.items():
            yield "taskqueue_queue_lag_seconds", key, max(0, read.at - ready_at) / SECOND


def _of_processes(now: Processes | None) -> Iterator[Sample]:
    if now is None:
        return
    for state, processes in now.states.items():
        yield "taskqueue_worker_processes", (state,), processes
    yield "taskqueue_worker_concurrency", (), now.concurrency
    yield "taskqueue_worker_running", (), now.running
    yield "taskqueue_worker_leases", (), now.leases
    yield "taskqueue_worker_memory_bytes", (), now.memory
