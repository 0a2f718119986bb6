"""Metrics: what is counted at the seam of the engine, what children count, what is read from the store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from taskmill.app import App
from taskmill.clock import SECOND, ManualClock
from taskmill.engine import DEFAULT_RETENTION, Call, Count, Ending, Engine, Item, Joining, Outcome, Room, Term
from taskmill.engines import create
from taskmill.errors import Conflict, StaleTerm, StoreError
from taskmill.schedule import Schedule, tasks_for
from taskmill.task import NewTask, Priority, TypeSettings, new_id
from taskmill.telemetry import FRESH, METRICS, OTHERS, Metrics, Processes
from taskmill.telemetry import metrics as module
from taskmill.worker.stats import Stats
from tests.surfaces.maintenance import schedule

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """A scrape as Prometheus reads it."""

    def __init__(self, text: bytes) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text.decode())}
        self.series: Series = {(sample.name, frozenset(sample.labels.items())): sample.value for family in self.families.values() for sample in family.samples}

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.series.get((name, frozenset(labels.items())))

    def named(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self.series if found == name]


async def scraped(metrics: Metrics) -> Scrape:
    return Scrape(await metrics.scrape())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return Metrics(clock=clock)


@pytest.fixture
async def engine(clock: ManualClock, metrics: Metrics) -> AsyncIterator[Engine]:
    engine = metrics.watch(create("sqlite://:memory:", clock=clock))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


async def join(engine: Engine, *types: str, worker: str = "w1") -> None:
    await engine.join(Joining(worker=worker, queues=("default",), types={name: TypeSettings() for name in types}))


# The table


def test_the_names_of_the_metrics_are_well_formed_and_given_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert [name for name in names if not name.startswith("taskqueue_")] == ["workers_total"]
    assert {metric.name for metric in METRICS if metric.name.endswith("_total") and metric.kind != "counter"} == {"workers_total"}
    assert all(metric.name.endswith("_total") for metric in METRICS if metric.kind == "counter")
    assert all(metric.name.endswith("_seconds") for metric in METRICS if metric.kind == "histogram")


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("taskqueue_tasks_submitted_total", {"type", "priority"}),
        ("taskqueue_tasks_completed_total", {"type", "status"}),
        ("taskqueue_task_duration_seconds", {"type"}),
        ("taskqueue_queue_depth", {"priority"}),
        ("taskqueue_active_workers", set()),
        ("taskqueue_dlq_size", set()),
        ("taskqueue_registered_workers", set()),
        ("workers_total", set()),
    ],
)
def test_the_metrics_that_were_asked_for_are_there(name: str, labels: set[str]) -> None:
    found = [metric for metric in METRICS if metric.name == name]
    assert found
    assert labels <= set(found[0].labels)


async def test_every_metric_of_the_table_can_be_scraped(engine: Engine, metrics: Metrics) -> None:
    processes = Processes(states={"ready": 1}, concurrency=10, running=1, leases=2, memory=3, crashes=4)
    watched = Metrics(clock=engine.clock, processes=lambda: processes)
    engine = watched.watch(engine)
    await join(engine, "work")
    await engine.submit([NewTask(type="work")])
    with pytest.raises(StaleTerm):
        await engine.prune(10, Term("pruning", "nobody", 1))
    await fire(engine, "nightly")
    await engine.finish([Outcome(task=new_id(), worker="w1", token=1, ending=Ending.COMPLETED)])
    term = await engine.lead("outbox", "me")
    assert term is not None
    await engine.outbox("archive", "", 10, term)
    stats = Stats()
    stats.count("work", Ending.RETRY, 1)
    stats.lose("work")
    watched.ended(stats.take() or {})
    watched.request("http", "/api/v1/tasks", "202", 900)
    scrape = await scraped(watched)
    for metric in METRICS:
        family = scrape.families[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert family.type == metric.kind
        assert family.documentation == metric.meaning
        assert family.samples
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


# Submits, and what maintenance does


async def test_new_tasks_are_counted_by_type_and_priority(engine: Engine, metrics: Metrics) -> None:
    await join(engine, "mail")
    tasks = [NewTask(type="mail", priority=Priority.HIGH), NewTask(type="mail", priority=Priority.HIGH), NewTask(type="mail"), NewTask(type="unheard")]
    await engine.submit(tasks)
    await engine.submit(tasks)  # known by their ids: nothing new
    scrape = await scraped(metrics)
    assert scrape("taskqueue_tasks_submitted_total", type="mail", priority="high") == 2
    assert scrape("taskqueue_tasks_submitted_total", type="mail", priority="normal") == 1
    assert len(scrape.named("taskqueue_tasks_submitted_total")) == 2


async def fire(engine: Engine, name: str) -> Item:
    item = await engine.put("schedule", name, schedule("* * * * *"))
    term = await engine.lead("schedules", "me")
    assert term is not None
    now = engine.clock.now()
    await engine.fire(name, item.version, tasks_for(name, Schedule.decode(item.value), [now]), now + 60 * SECOND, term)
    return item


async def test_tasks_of_a_schedule_are_counted_once(engine: Engine, metrics: Metrics) -> None:
    await join(engine, "work")
    await fire(engine, "nightly")
    scrape = await scraped(metrics)
    assert scrape("taskqueue_schedules_fired_total", schedule="nightly") == 1
    assert [labels["type"] for labels in scrape.named("taskqueue_tasks_submitted_total")] == ["work"]


async def test_leading_is_told_for_as_long_as_it_is_renewed(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    term = await engine.lead("schedules", "me")
    assert term is not None
    assert (await scraped(metrics))("taskqueue_leader", role="schedules") == 1
    clock.advance(metrics.term / SECOND)
    assert (await scraped(metrics))("taskqueue_leader", role="schedules") == 0


async def test_the_age_of_a_leader_counts_from_its_term(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    term = await engine.lead("schedules", "me")
    assert term is not None
    for _ in range(3):
        clock.advance("2s")
        assert await engine.lead("schedules", "me") == term
    assert (await scraped(metrics))("taskqueue_leader_age_seconds", role="schedules") == 6
    await engine.resign(term)
    assert not (await scraped(metrics)).named("taskqueue_leader_age_seconds")
    await engine.lead("schedules", "me")
    assert (await scraped(metrics))("taskqueue_leader_age_seconds", role="schedules") == 0


async def test_who_resigns_leads_no_more(engine: Engine, metrics: Metrics) -> None:
    term = await engine.lead("pruning", "me")
    assert term is not None
    await engine.resign(term)
    assert (await scraped(metrics))("taskqueue_leader", role="pruning") == 0


async def test_who_is_deposed_leads_no_more(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    term = await engine.lead("pruning", "me")
    assert term is not None
    metrics.term = 3_600 * SECOND
    with pytest.raises(StaleTerm):
        await engine.prune(10, Term("pruning", "me", term.number - 1), DEFAULT_RETENTION)
    assert (await scraped(metrics))("taskqueue_leader", role="pruning") == 0


async def test_another_s_lead_is_not_ours(engine: Engine, metrics: Metrics) -> None:
    other = Metrics(clock=engine.clock)
    await other.watch(engine).lead("outbox", "the other")
    mine = Metrics(clock=engine.clock)
    assert await mine.watch(engine).lead("outbox", "me") is None
    assert (await scraped(mine))("taskqueue_leader", role="outbox") == 0


async def test_recovered_tasks_and_lost_workers_are_counted(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await join(engine, "work")
    await engine.submit([NewTask(type="work"), NewTask(type="work")])
    assert len((await engine.claim("w1", 1, ["default"], Room(5))).tasks) == 2
    for _ in range(20):
        clock.advance("500ms")
        await engine.recover_lost()
    scrape = await scraped(metrics)
    assert scrape("taskqueue_tasks_recovered_total") == 2
    assert scrape("taskqueue_workers_lost_total") == 1


async def test_crashes_that_were_taken_are_counted(engine: Engine, metrics: Metrics) -> None:
    await join(engine, "work")
    await engine.submit([NewTask(type="work"), NewTask(type="work")])
    first, second = (await engine.claim("w1", 1, ["default"], Room(5))).tasks
    crash = Outcome(task=first.id, worker="w1", token=first.token, ending=Ending.CRASHED)
    stale = Outcome(task=second.id, worker="w1", token=second.token - 1_000, ending=Ending.CRASHED)
    assert len((await engine.finish([crash, stale])).refused) == 1
    assert (await scraped(metrics))("taskqueue_task_crashes_total") == 1


async def test_the_lag_of_the_outbox_is_its_oldest_entry_s_age(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await engine.put("outbox", "dead", b"{}", operator=False)
    await join(engine, "work")
    await engine.submit([NewTask(type="work")])
    (task,) = (await engine.claim("w1", 1, ["default"], Room(5))).tasks
    await engine.finish([Outcome(task=task.id, worker="w1", token=task.token, ending=Ending.DEAD)])
    clock.advance("3s")
    term = await engine.lead("outbox", "me")
    assert term is not None
    entries = await engine.outbox("dead", "", 10, term)
    assert len(entries) == 1
    assert (await scraped(metrics))("taskqueue_outbox_lag_seconds", kind="dead") == 3
    await engine.outbox("dead", entries[-1].cursor, 10, term)
    assert (await scraped(metrics))("taskqueue_outbox_lag_seconds", kind="dead") == 0


# Calls of the store


async def test_calls_are_measured_by_verb(engine: Engine, metrics: Metrics) -> None:
    await engine.items("limit")
    await engine.items("limit")
    assert (await scraped(metrics))("taskqueue_engine_call_duration_seconds_count", engine="sqlite", verb="items") == 2


async def test_errors_are_counted_by_their_code(engine: Engine, metrics: Metrics) -> None:
    with pytest.raises(Conflict) as refused:
        await engine.claim("nobody", 1, ["default"], Room(1))
    codes = [labels for labels in (await scraped(metrics)).named("taskqueue_engine_errors_total") if labels["verb"] == "claim"]
    assert len(codes) == 1
    assert codes[0]["code"] == refused.value.code


async def test_a_caller_that_gave_up_is_no_error(metrics: Metrics) -> None:
    metrics.tell(Call("sqlite", "wait", 1, 5, "CancelledError"))
    scrape = await scraped(metrics)
    assert scrape("taskqueue_engine_call_duration_seconds_count", engine="sqlite", verb="wait") == 1
    assert not scrape.named("taskqueue_engine_errors_total")


@pytest.mark.parametrize(("duration", "bound"), [(100, "0.0001"), (101, "0.0005"), (30_000_001, "+Inf")])
async def test_a_duration_falls_into_its_bucket(metrics: Metrics, duration: int, bound: str) -> None:
    metrics.tell(Call("sqlite", "get", 1, duration, None))
    samples = (await scraped(metrics)).families["taskqueue_engine_call_duration_seconds"].samples
    buckets = [sample for sample in samples if sample.name.endswith("_bucket") and sample.value]
    assert buckets[0].labels["le"] == bound
    assert buckets[-1].labels["le"] == "+Inf"


# What children tell


async def test_endings_and_durations_of_children_add_up(metrics: Metrics) -> None:
    stats = Stats()
    for duration in (900, 1_000, 2_000_000):
        stats.count("mail", Ending.COMPLETED, duration)
    metrics.ended(stats.take() or {})
    stats.count("mail", Ending.RETRY, 900_000_000)
    metrics.ended(stats.take() or {})
    scrape = await scraped(metrics)
    assert scrape("taskqueue_tasks_completed_total", type="mail", status="completed") == 3
    assert scrape("taskqueue_tasks_completed_total", type="mail", status="retry") == 1
    assert scrape("taskqueue_task_retries_total", type="mail") == 1
    assert scrape("taskqueue_task_duration_seconds_bucket", type="mail", le="0.001") == 2
    assert scrape("taskqueue_task_duration_seconds_bucket", type="mail", le="5.0") == 3
    assert scrape("taskqueue_task_duration_seconds_bucket", type="mail", le="+Inf") == 4
    assert scrape("taskqueue_task_duration_seconds_sum", type="mail") == pytest.approx(902.0019)


async def test_processes_are_told_as_they_are_now(clock: ManualClock) -> None:
    now = Processes(states={"starting": 0, "ready": 2, "draining": 1}, concurrency=30, running=4, leases=7, memory=1_000, crashes=3)
    scrape = await scraped(Metrics(clock=clock, processes=lambda: now))
    assert scrape("taskqueue_worker_processes", state="ready") == 2
    assert scrape("taskqueue_worker_concurrency") == 30
    assert scrape("taskqueue_worker_running") == 4
    assert scrape("taskqueue_worker_leases") == 7
    assert scrape("taskqueue_worker_memory_bytes") == 1_000
    assert scrape("taskqueue_worker_crashes_total") == 3


async def test_names_beyond_the_bound_are_counted_together(clock: ManualClock) -> None:
    metrics = Metrics(clock=clock, most_names=2)
    stats = Stats()
    for name in ("a", "b", "c", "d", "a"):
        stats.count(name, Ending.COMPLETED, 1)
    metrics.ended(stats.take() or {})
    scrape = await scraped(metrics)
    assert {labels["type"] for labels in scrape.named("taskqueue_tasks_completed_total")} == {"a", "b", OTHERS}
    assert scrape("taskqueue_tasks_completed_total", type=OTHERS, status="completed") == 2


async def test_a_name_full_of_signs_stays_one_label(metrics: Metrics) -> None:
    stats = Stats()
    stats.count('a"b\\c\nd{}', Ending.COMPLETED, 1)
    metrics.ended(stats.take() or {})
    assert (await scraped(metrics))("taskqueue_tasks_completed_total", type='a"b\\c\nd{}', status="completed") == 1


# What is read from the store


async def test_depth_lag_and_dead_letters_of_queues(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await join(engine, "work")
    await engine.submit([NewTask(type="work", priority=Priority.HIGH)])
    clock.advance("2s")
    await engine.submit(
        [NewTask(type="work", priority=Priority.HIGH), NewTask(type="other", queue="slow", delay=3_600 * SECOND), NewTask(type="other", queue="slow")]
    )
    (task,) = (await engine.claim("w1", 1, ["default"], Room(1))).tasks
    await engine.finish([Outcome(task=task.id, worker="w1", token=task.token, ending=Ending.DEAD)])
    clock.advance("5s")
    scrape = await scraped(metrics)
    assert scrape("taskqueue_queue_depth", queue="default", priority="high", state="pending") == 1
    assert scrape("taskqueue_queue_lag_seconds", queue="default", priority="high") == 5
    assert scrape("taskqueue_queue_depth", queue="slow", priority="normal", state="scheduled") == 1
    assert scrape("taskqueue_dlq_size", queue="default") == 1
    assert scrape("taskqueue_dlq_size", queue="slow") == 0
    assert scrape("taskqueue_no_worker_tasks", queue="slow", type="other") == 1
    assert scrape("taskqueue_no_worker_tasks", queue="default", type="work") == 0
    assert not [labels for labels in scrape.named("taskqueue_queue_depth") if labels["state"] == "dead"]


async def test_an_empty_queue_reads_as_empty(engine: Engine, metrics: Metrics) -> None:
    await join(engine, "work")
    await engine.submit([NewTask(type="work")])
    (task,) = (await engine.claim("w1", 1, ["default"], Room(1))).tasks
    await engine.finish([Outcome(task=task.id, worker="w1", token=task.token, ending=Ending.COMPLETED)])
    scrape = await scraped(metrics)
    assert scrape("taskqueue_queue_depth", queue="default", priority="normal", state="pending") == 0
    assert scrape("taskqueue_queue_lag_seconds", queue="default", priority="normal") == 0


async def test_workers_of_the_store(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await join(engine, "work", worker="w1")
    clock.advance("10s")
    await join(engine, "work", worker="w2")
    scrape = await scraped(metrics)
    assert scrape("taskqueue_active_workers") == 1
    assert scrape("taskqueue_registered_workers") == 2
    assert scrape("taskqueue_store_up") == 1


async def test_a_task_is_counted_with_the_priority_of_its_type(engine: Engine, metrics: Metrics) -> None:
    await engine.join(Joining(worker="w1", queues=("default",), types={"urgent": TypeSettings(priority=Priority.CRITICAL), "plain": TypeSettings()}))
    await engine.submit([NewTask(type="urgent"), NewTask(type="plain"), NewTask(type="urgent", priority=Priority.LOW)])
    await engine.put("type", "plain", msgspec.json.encode(TypeSettings(priority=Priority.HIGH)))
    await engine.submit([NewTask(type="plain")])
    scrape = await scraped(metrics)
    counted = {(labels["type"], labels["priority"]) for labels in scrape.named("taskqueue_tasks_submitted_total")}
    assert counted == {("urgent", "critical"), ("urgent", "low"), ("plain", "normal"), ("plain", "high")}


async def test_slow_counts_do_not_make_the_store_look_absent(engine: Engine, metrics: Metrics, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    await join(engine, "work")
    await engine.submit([NewTask(type="work")])
    counted = asyncio.Event()

    class Slow:
        """The engine, but counting takes as long as it is told to."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        async def counts(self) -> tuple[Count, ...]:
            await counted.wait()
            return await engine.counts()

    monkeypatch.setattr(module, "PATIENCE", 0.05)
    slow = Metrics(clock=clock)
    slow.watch(cast("Engine", Slow()))
    scrape = await scraped(slow)
    assert (scrape("taskqueue_store_up"), scrape("workers_total")) == (1, 1)
    assert not scrape.named("taskqueue_queue_depth")
    counted.set()
    clock.advance(FRESH / SECOND)
    monkeypatch.setattr(module, "PATIENCE", 30.0)
    assert (await scraped(slow))("taskqueue_queue_depth", queue="default", priority="normal", state="pending") == 1


async def test_an_app_tells_what_it_has_submitted() -> None:
    app = App("sqlite:///:memory:")

    @app.task(priority="high")
    def mail() -> None: ...

    async with app:
        await app.metrics()
        await mail.submit()
        text = (await app.metrics()).decode()
    assert 'taskqueue_tasks_submitted_total{priority="high",type="mail"} 1.0' in text
    assert "taskqueue_store_up 1.0" in text


async def test_the_store_is_read_at_most_every_5_seconds(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await asyncio.gather(*(metrics.scrape() for _ in range(5)))
    assert (await scraped(metrics))("taskqueue_engine_call_duration_seconds_count", engine="sqlite", verb="counts") == 1
    clock.advance(FRESH / SECOND)
    assert (await scraped(metrics))("taskqueue_engine_call_duration_seconds_count", engine="sqlite", verb="counts") == 2


async def test_without_the_store_the_rest_is_told(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await join(engine, "work")
    assert (await scraped(metrics))("taskqueue_active_workers") == 1
    await engine.close()
    clock.advance(FRESH / SECOND)
    with pytest.raises(StoreError):
        await engine.counts()
    scrape = await scraped(metrics)
    assert scrape("taskqueue_store_up") == 0
    assert scrape("taskqueue_active_workers") is None
    assert scrape.named("taskqueue_build_info")


# Nothing global


async def test_two_of_them_do_not_know_each_other(clock: ManualClock) -> None:
    first, second = Metrics(clock=clock), Metrics(clock=clock)
    first.count("taskqueue_tasks_pruned_total", times=7)
    assert (await scraped(second))("taskqueue_tasks_pruned_total") == 0
    assert not [family for family in REGISTRY.collect() if family.name.startswith("taskqueue_")]


@pytest.mark.parametrize("module", ["taskmill.telemetry", "taskmill.worker.child", "taskmill.worker.supervisor"])
def test_the_library_is_loaded_only_where_metrics_are_wanted(module: str) -> None:
    program = f"import sys, {module}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
