"""Processes killed at any statement, and at any other moment, while others go on: nothing is lost, nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from taskmill.clock import SECOND
from tests.faults.judging import judge
from tests.faults.processes import started
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import TERMINAL, Read

LEASE = 2 * SECOND
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)
"""A lease counts from the last beat, which lies up to a quarter of it before a claim; the rest is for a slow machine."""


def owed_once(store: Path, reads: dict[str, Read]) -> None:
    """Every task that ended owes its outbox entry, exactly one."""
    connection = apsw.Connection(str(store))
    entries = [subject for (subject,) in connection.execute("SELECT subject FROM taskmill_outbox WHERE kind = 'ended'")]
    connection.close()
    assert sorted(entries) == sorted(task for task, read in reads.items() if read.state in TERMINAL)


async def run(tmp_path: Path, what: str, *options: object) -> list[str]:
    store, history = tmp_path / "store.db", tmp_path / "history"
    async with client_of(store, history) as client:
        await prepare(client)
    async with (
        started("work", store, history, "--lease", LEASE, "--wait") as survivor,
        started(what, store, history, "--lease", LEASE, *options) as dying,
    ):
        await survivor.hear("ready")
        said = await dying.done()
        await survivor.done()
    recorded, reads = await judge(store, history, BOUNDS)
    owed_once(store, reads)
    assert any(isinstance(event, events.Submit | events.Claim | events.Finish) and event.answer == "lost" for event in recorded)
    return said


async def test_killed_at_any_statement(tmp_path: Path) -> None:
    points = [*range(1, 60, 7), *range(60, 2_400, 53)]
    said = await run(tmp_path, "killed-at-statements", "--points", ",".join(map(str, points)))
    assert sum(line.startswith("killed") for line in said) >= 40


async def test_killed_at_any_moment(tmp_path: Path) -> None:
    said = await run(tmp_path, "killed-at-random", "--batches", 25, "--seed", 1)
    assert sum(line.startswith("killed") for line in said) == 25


async def test_killed_while_the_store_is_made(tmp_path: Path) -> None:
    """Each child finds what the one before it left of a first start, and dies a little later."""
    store, history = tmp_path / "store.db", tmp_path / "history"
    points = ",".join(map(str, range(1, 240, 4)))
    async with started("killed-at-statements", store, history, "--lease", LEASE, "--points", points) as dying:
        said = await dying.done()
    assert sum(line.startswith("killed") for line in said) >= 40
    async with client_of(store, history) as client:
        await prepare(client)
    async with started("work", store, history, "--lease", LEASE, "--batches", 1) as survivor:
        await survivor.done()
    await judge(store, history, BOUNDS)


@pytest.mark.chaos
async def test_killed_at_every_third_statement(tmp_path: Path) -> None:
    said = await run(tmp_path, "killed-at-statements", "--points", ",".join(map(str, range(1, 2_400, 3))))
    assert sum(line.startswith("killed") for line in said) >= 500


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
async def test_killed_at_many_moments(tmp_path: Path, seed: int) -> None:
    said = await run(tmp_path, "killed-at-random", "--batches", 100, "--seed", seed)
    assert sum(line.startswith("killed") for line in said) == 100
