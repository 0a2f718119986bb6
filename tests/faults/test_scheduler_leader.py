"""The product's own loop of schedules in processes that are paused, killed and stopped: every fire time has one task, none is left out."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from taskmill.clock import SECOND
from taskmill.cron import Cron, Misfire
from taskmill.schedule import Schedule
from tests.faults.judging import judge
from tests.faults.processes import Program, started
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import Event

TERM = SECOND
BOUNDS = Bounds(lease=4 * SECOND, max_crashes=1_000)
EVERY_SECOND = Schedule(type="plain", cron=Cron.parse("* * * * * *"), payload=b'{"do":"complete"}', misfire=Misfire.ALL)


async def prepared(store: Path, history: Path) -> None:
    async with client_of(store, history) as client:
        await prepare(client)
        await client.engine.put("schedule", "tick", EVERY_SECOND.encode())


def scheduler(store: Path, history: Path, *options: object) -> AbstractAsyncContextManager[Program]:
    return started("schedule", store, history, "--term", TERM, *options, module="tests.faults.scheduler")


async def times_with_one_task(store: Path, history: Path) -> list[Event]:
    """All is worked off and judged; what was fired, by the history and by the store, is every second from the first to the last, once."""
    async with started("work", store, history) as worker:
        await worker.done()
    recorded, reads = await judge(store, history, BOUNDS)
    times = sorted(event.time for event in recorded if isinstance(event, events.Fire) and event.answer == "applied")
    assert times == list(range(times[0], times[-1] + 1, SECOND))
    assert len([read for read in reads.values() if read.state == "completed"]) == len(times)
    return recorded


async def test_a_leader_paused_between_the_clock_and_the_firing(tmp_path: Path) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    await prepared(store, history)
    async with scheduler(store, history, "--pause", 2) as first:
        (term,) = await first.hear("leading")
        await first.hear("pausing")
        async with scheduler(store, history) as second:
            (next_term,) = await second.hear("leading")
            await second.hear("fired")
            first.resume()
            await first.hear("refused")
            await first.hear("following")
            await second.hear("fired")
            await first.done()
            await second.done()
    recorded = await times_with_one_task(store, history)
    assert int(next_term) > int(term)
    refused = [event for event in recorded if isinstance(event, events.Fire) and event.answer == "refused"]
    assert {event.term for event in refused} == {int(term)}
    assert {event.time for event in refused} <= {event.time for event in recorded if isinstance(event, events.Fire) and event.term == int(next_term)}


async def test_a_leader_that_is_killed(tmp_path: Path) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    await prepared(store, history)
    async with scheduler(store, history) as second:
        await second.hear("leading")
        async with scheduler(store, history) as first:
            await first.hear("following")
            await second.hear("fired")
            second.process.kill()
            await first.hear("leading")
            await first.hear("fired")
            await first.done()
    await times_with_one_task(store, history)


async def test_a_leader_that_stops_leaves_its_place_at_once(tmp_path: Path) -> None:
    """The term is longer than anybody here waits: only a leader that resigns is followed."""
    store, history = tmp_path / "store.db", tmp_path / "history"
    await prepared(store, history)
    async with scheduler(store, history, "--term", 600 * SECOND) as first:
        await first.hear("leading")
        async with scheduler(store, history, "--term", 5 * SECOND) as second:
            await second.hear("following")
            await first.hear("fired")
            await first.done()
            await second.hear("leading")
            await second.hear("fired")
            await second.done()
    await times_with_one_task(store, history)
