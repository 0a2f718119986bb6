"""A leader that is paused for longer than its term: what it still writes is refused, and every fire time has made one task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskmill.clock import SECOND
from tests.faults.judging import judge
from tests.faults.leader import EVERY, prepare_schedule
from tests.faults.processes import started
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import Event

TERM = SECOND
BOUNDS = Bounds(lease=SECOND, max_crashes=1_000)


async def prepared(store: Path, history: Path) -> None:
    async with client_of(store, history) as client:
        await prepare(client)
        await prepare_schedule(client)


def fired_times(history: list[Event]) -> list[int]:
    return sorted(event.time for event in history if isinstance(event, events.Fire) and event.answer == "applied")


def refusals(history: list[Event], term: int) -> set[str]:
    """The verbs that were refused under this term."""
    fires = {"fire" for event in history if isinstance(event, events.Fire) and event.term == term and event.answer == "refused"}
    return fires | {event.verb for event in history if isinstance(event, events.Led) and event.term == term and event.answer == "refused"}


def once_each(history: list[Event]) -> bool:
    times = fired_times(history)
    return times == list(range(times[0], times[-1] + EVERY, EVERY))


@pytest.mark.parametrize("moment", ["fire", "deliver", "prune"])
async def test_a_leader_paused_past_its_term(tmp_path: Path, moment: str) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    await prepared(store, history)
    async with (
        started("work", store, history, "--wait") as worker,
        started("lead", store, history, "--lease", TERM, "--pause", moment) as first,
    ):
        (term,) = await first.hear("leading")
        await first.hear("pausing")
        async with started("lead", store, history, "--lease", TERM) as second:
            (next_term,) = await second.hear("leading")
            await second.hear("led")
            first.resume()
            await first.hear("refused")
            await second.hear("led")
            await first.done()
            await second.done()
        await worker.done()
    recorded, _ = await judge(store, history, BOUNDS)
    assert int(next_term) > int(term)
    assert refusals(recorded, int(term)) >= {moment.replace("deliver", "outbox")}
    assert once_each(recorded)


async def test_a_leader_paused_inside_its_transaction(tmp_path: Path) -> None:
    """It holds the write lock, so nobody can take its place: its write is good, and the next one leads after it."""
    store, history = tmp_path / "store.db", tmp_path / "history"
    await prepared(store, history)
    async with started("lead", store, history, "--lease", TERM, "--pause", "inside") as first:
        await first.hear("leading")
        async with started("lead", store, history, "--lease", TERM) as second:
            await second.hear("ready")
            await first.hear("pausing")
            await asyncio.sleep(1.5 * TERM / SECOND)  # the fault itself: a pause past the term in which nobody can do anything
            first.resume()
            await second.hear("led")
            await first.done()
            await second.done()
    async with started("work", store, history) as worker:
        await worker.done()
    recorded, _ = await judge(store, history, BOUNDS)
    assert once_each(recorded)
    assert {event.answer for event in recorded if isinstance(event, events.Fire) and event.ended and event.ended - event.began > TERM} == {"applied"}
    assert len({event.holder for event in recorded if isinstance(event, events.Lead) and event.answer == "applied"}) == 2
