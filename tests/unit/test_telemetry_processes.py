"""Metrics that come from several processes, and those of leases, leaders, schedules and requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Ending, Engine, Outcome, Room
from taskmill.engines import create
from taskmill.errors import StaleLease
from taskmill.schedule import Schedule, tasks_for
from taskmill.task import NewTask
from taskmill.telemetry import METRICS, OTHERS, Metrics, Processes
from taskmill.worker.stats import Stats
from tests.surfaces.maintenance import schedule
from tests.unit.test_telemetry import Scrape, join, scraped


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return Metrics(clock=clock)


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Engine]:
    engine = create("sqlite://:memory:", clock=clock)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def engine(store: Engine, metrics: Metrics) -> Engine:
    return metrics.watch(store)


def processes(running: int, crashes: int = 0) -> Processes:
    return Processes(states={"ready": 1}, concurrency=10, running=running, leases=running, memory=1_000, crashes=crashes)


# What is counted


async def test_ends_that_the_store_refuses_are_counted_by_their_code(engine: Engine, metrics: Metrics) -> None:
    await join(engine, "work")
    await engine.submit([NewTask(type="work")])
    (task,) = (await engine.claim("w1", 1, ["default"], Room(5))).tasks
    stale = Outcome(task=task.id, worker="w1", token=task.token - 1_000, ending=Ending.COMPLETED)
    assert len((await engine.finish([stale])).refused) == 1
    with pytest.raises(StaleLease):
        async with engine.transaction() as tx:
            await engine.finish([stale], tx=tx)
    assert (await scraped(metrics))("taskqueue_finishes_refused_total", code="stale_lease") == 2


async def test_each_new_term_is_a_change_of_leader(store: Engine, engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    other = Metrics(clock=clock)
    for _ in range(3):
        assert await engine.lead("pruning", "me") is not None
        clock.advance("1s")
    clock.advance("1h")
    assert await other.watch(store).lead("pruning", "you") is not None
    assert await engine.lead("pruning", "me") is None
    clock.advance("1h")
    assert await engine.lead("pruning", "me") is not None
    assert (await scraped(metrics))("taskqueue_leader_changes_total", role="pruning") == 2
    assert (await scraped(other))("taskqueue_leader_changes_total", role="pruning") == 1


async def test_the_lag_of_a_schedule_is_how_late_its_tasks_were_made(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    await join(engine, "work")
    item = await engine.put("schedule", "nightly", schedule("* * * * *"))
    term = await engine.lead("schedules", "me")
    assert term is not None
    due = clock.now()
    clock.advance("3s")
    tasks = tasks_for("nightly", Schedule.decode(item.value), [due])
    fired = await engine.fire("nightly", item.version, tasks, due + 60 * SECOND, term)
    await engine.fire("nightly", fired.version, tasks, due + 60 * SECOND, term)  # again: nothing new is made
    scrape = await scraped(metrics)
    assert scrape("taskqueue_schedule_lag_seconds_count") == 1
    assert scrape("taskqueue_schedule_lag_seconds_sum") == 3


async def test_requests_by_surface_route_and_status(metrics: Metrics) -> None:
    metrics.request("http", "/api/v1/tasks/{id}", "200", 400)
    metrics.request("http", "/api/v1/tasks/{id}", "404", 2 * SECOND)
    metrics.request("grpc", "taskmill.v1.Tasks/Submit", "OK", 600)
    scrape = await scraped(metrics)
    labels = {"surface": "http", "route": "/api/v1/tasks/{id}", "status": "200"}
    assert scrape("taskqueue_request_duration_seconds_bucket", **labels, le="0.0005") == 1
    assert scrape("taskqueue_request_duration_seconds_sum", **(labels | {"status": "404"})) == 2
    assert len(scrape.named("taskqueue_request_duration_seconds_count")) == 3


async def test_routes_beyond_the_bound_are_counted_together(clock: ManualClock) -> None:
    metrics = Metrics(clock=clock, most_names=2)
    for number in range(5):
        metrics.request("http", f"/{number}", "200", 1)
    assert {labels["route"] for labels in (await scraped(metrics)).named("taskqueue_request_duration_seconds_count")} == {"/0", "/1", OTHERS}


async def test_times_in_queue_and_lost_leases_of_children(metrics: Metrics) -> None:
    stats = Stats()
    stats.count("a", Ending.COMPLETED, 1_000, 2 * SECOND)
    stats.count("a", Ending.RELEASED, 1_000)  # of one whose age nobody knows
    stats.lose("a")
    metrics.ended(stats.take() or {})
    scrape = await scraped(metrics)
    assert scrape("taskqueue_time_in_queue_seconds_count", type="a") == 1
    assert scrape("taskqueue_time_in_queue_seconds_bucket", type="a", le="1.0") == 0
    assert scrape("taskqueue_time_in_queue_seconds_bucket", type="a", le="5.0") == 1
    assert scrape("taskqueue_leases_lost_total") == 1


# Several processes


async def test_what_is_taken_is_told_by_whoever_adds_it(engine: Engine, metrics: Metrics) -> None:
    supervisor = Metrics(clock=engine.clock)
    await join(engine, "work")
    for _ in range(2):
        await engine.submit([NewTask(type="work")])
        taken = metrics.take()
        assert taken is not None
        supervisor.add(taken)
    assert metrics.take() is None
    scrape = await scraped(supervisor)
    assert scrape("taskqueue_tasks_submitted_total", type="work", priority="normal") == 2
    assert scrape("taskqueue_engine_call_duration_seconds_count", engine="sqlite", verb="submit") == 2
    assert not (await scraped(metrics)).named("taskqueue_tasks_submitted_total")


async def test_one_scrape_has_every_family_once_and_all_numbers(engine: Engine, metrics: Metrics, clock: ManualClock) -> None:
    workers = [Metrics(clock=clock, processes=lambda: processes(2, crashes=1)), Metrics(clock=clock, processes=lambda: processes(3))]
    stats = Stats()
    stats.count("a", Ending.RETRY, 1_000, 1_000)
    counted = stats.take() or {}
    for one in workers:
        one.ended(counted)
        one.leads("pruning", None)
    metrics.request("http", "/api/v1/tasks", "202", 100)
    await engine.lead("pruning", "me")
    text = await metrics.scrape([one.snapshot() for one in workers])
    scrape = Scrape(text)
    assert text.count(b"# TYPE taskqueue_task_duration_seconds histogram") == 1
    assert scrape("taskqueue_tasks_completed_total", type="a", status="retry") == 2
    assert scrape("taskqueue_task_duration_seconds_count", type="a") == 2
    assert scrape("taskqueue_worker_running") == 5
    assert scrape("taskqueue_worker_processes", state="ready") == 2
    assert scrape("taskqueue_worker_crashes_total") == 1
    assert scrape("taskqueue_leader", role="pruning") == 1
    assert scrape("taskqueue_store_up") == 1
    assert scrape("taskqueue_request_duration_seconds_count", surface="http", route="/api/v1/tasks", status="202") == 1
    headers = [line for line in text.decode().splitlines() if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))
    assert Scrape(await metrics.scrape())("taskqueue_worker_running") is None, "a snapshot is of one scrape"


async def test_a_snapshot_has_nothing_of_the_store(engine: Engine, metrics: Metrics) -> None:
    await join(engine, "work")
    await metrics.scrape()
    told = msgspec.json.decode(metrics.snapshot())
    assert {sample[0] for sample in told["histograms"]} == {"taskqueue_engine_call_duration_seconds"}
    assert "gauges" not in told


async def test_names_of_other_processes_are_bounded_here(clock: ManualClock) -> None:
    child, parent = Metrics(clock=clock), Metrics(clock=clock, most_names=2)
    for name in "abcd":
        child.count("taskqueue_task_retries_total", (name,))
    parent.add(child.snapshot())
    scrape = await scraped(parent)
    assert scrape("taskqueue_task_retries_total", type=OTHERS) == 2
    assert len(scrape.named("taskqueue_task_retries_total")) == 3


async def test_a_snapshot_of_another_version_is_taken_as_far_as_it_is_understood(metrics: Metrics) -> None:
    strange = {
        "counters": [["taskqueue_of_tomorrow_total", [], 7], ["taskqueue_tasks_pruned_total", [], 7]],
        "histograms": [["taskqueue_schedule_lag_seconds", [], [1, 2], 3]],
        "gauges": [["taskqueue_of_tomorrow", [], 7]],
    }
    scrape = Scrape(await metrics.scrape([msgspec.json.encode(strange)]))
    assert scrape("taskqueue_tasks_pruned_total") == 7
    assert not scrape.named("taskqueue_schedule_lag_seconds_count")


def test_every_histogram_has_bounds_and_nothing_else_has() -> None:
    assert all(bool(metric.bounds) == (metric.kind == "histogram") for metric in METRICS)
    assert all(metric.bounds == tuple(sorted(metric.bounds)) for metric in METRICS)
