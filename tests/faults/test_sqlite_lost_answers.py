"""Done, but the answer is an error, for one call in twenty: clients ask again, and everything is done once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from taskmill.clock import SECOND
from tests.faults.judging import judge
from tests.faults.processes import started
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events

LEASE = 4 * SECOND


async def run(tmp_path: Path, batches: int, lose: float) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    async with client_of(store, history) as client:
        await prepare(client)
    async with contextlib.AsyncExitStack() as stack:
        options = ("--batches", batches, "--lose", lose, "--lease", LEASE)
        programs = [await stack.enter_async_context(started("work", store, history, *options, "--seed", n)) for n in range(3)]
        await asyncio.gather(*(program.done() for program in programs))
    recorded, reads = await judge(store, history, Bounds(lease=LEASE // 2, max_crashes=1_000))
    for kind in (events.Submit, events.Claim, events.Finish):
        assert any(event.answer == "lost" for event in recorded if isinstance(event, kind)), f"no answer of {kind} was lost"
    assert not [event for event in recorded if isinstance(event, events.Submit) and event.answer == "error"]
    made = {event.id or event.task for event in recorded if isinstance(event, events.Submit) and event.answer != "lost"}
    assert made <= {task for task, read in reads.items() if read.state in {"completed", "dead", "cancelled"}}


async def test_every_twentieth_answer_is_lost(tmp_path: Path) -> None:
    await run(tmp_path, 25, 0.05)


async def test_every_second_answer_is_lost(tmp_path: Path) -> None:
    await run(tmp_path, 4, 0.5)


@pytest.mark.chaos
async def test_answers_are_lost_for_long(tmp_path: Path) -> None:
    await run(tmp_path, 400, 0.05)
