"""Many writers on one file, and one who does not let go of it: nobody fails, nobody starves, nobody loses a lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.task import NewTask
from tests.faults.judging import judge
from tests.faults.processes import Program, started
from tests.faults.recorded import Recorded
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import Event

PROCESSES = 8


async def crowd(tmp_path: Path, batches: int) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    async with client_of(store, history) as client:
        await prepare(client)
    async with contextlib.AsyncExitStack() as stack:
        programs = [await stack.enter_async_context(started("work", store, history, "--batches", batches, "--seed", n)) for n in range(PROCESSES)]
        await asyncio.gather(*(program.done() for program in programs))
        pids = {program.process.pid for program in programs}
    recorded, _ = await judge(store, history, Bounds(lease=2 * SECOND, max_crashes=1_000))
    assert {event.answer for event in recorded if isinstance(event, answered)} <= {"created", "duplicate", "replaced", "conflict", "given", "applied"}
    shares = Counter(event.process for event in recorded if isinstance(event, events.Submit) and event.process in pids)
    claims = {event.process for event in recorded if isinstance(event, events.Claim) and event.answer == "given"}
    assert claims == pids
    assert min(shares.values()) >= 12 * batches
    assert shares.keys() == pids


answered = events.Submit | events.Claim | events.Finish | events.Beat | events.Recover


async def test_eight_processes_write(tmp_path: Path) -> None:
    await crowd(tmp_path, 8)


@pytest.mark.chaos
async def test_eight_processes_write_for_long(tmp_path: Path) -> None:
    await crowd(tmp_path, 200)


def beats_within(history: list[Event], program: Program, began: int, ended: int) -> list[events.Beat]:
    pid = program.process.pid
    return [event for event in history if isinstance(event, events.Beat) and event.process == pid and began < event.began and (event.ended or ended) < ended]


async def long_transaction(tmp_path: Path, lease: int, seconds: float) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    tasks = [NewTask(type="plain", payload=codec.encode({"do": "complete", "n": n})) for n in range(6)]
    async with client_of(store, history) as user, client_of(store, history) as other:
        await prepare(user)
        await user.submit(tasks)
        async with (
            started("sit", store, history, "--lease", lease, "--batches", 3) as first,
            started("sit", store, history, "--lease", lease, "--batches", 3) as second,
        ):
            held = [*await first.hear("claimed"), *await second.hear("claimed")]
            async with started("work", store, history, "--lease", lease, "--batches", 20, "--wait") as busy:
                await busy.hear("ready")
                began, ended = await _hold(user, other, (first, second), seconds)
                for sitter in (first, second):
                    sitter.tell("finish")
                answers = [*await first.hear("answers"), *await second.hear("answers")]
                await first.done()
                await second.done()
                await busy.done()
    recorded, reads = await judge(store, history, Bounds(lease=lease // 2, max_crashes=1_000))
    assert answers == ["applied"] * 6
    assert {reads[task].crashes for task in held} == {0}
    sitting = {first.process.pid, second.process.pid}  # the one that works names leases whose finish is under way, which may be gone
    assert not any(isinstance(event, events.Beat) and event.gone and event.process in sitting for event in recorded)
    for sitter in (first, second):
        beats = beats_within(recorded, sitter, began, ended)
        assert len(beats) >= 4
        assert all(set(beat.kept) == set(beat.leases) and len(beat.kept) == 3 for beat in beats)


async def _hold(user: Recorded, other: Recorded, sitters: tuple[Program, ...], seconds: float) -> tuple[int, int]:
    """A transaction that stays open for so long; what others submit meanwhile waits for it and is then done."""
    async with user.engine.transaction() as tx:
        began = user.recorder.now()
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        tx.execute("INSERT INTO orders VALUES (1)")
        await user.submit([NewTask(type="plain", payload=codec.encode({"do": "complete"}))], tx=tx)
        waiting = asyncio.create_task(other.submit([NewTask(type="capped", payload=codec.encode({"do": "complete"}))]))
        while user.recorder.now() - began < seconds * SECOND:
            for sitter in sitters:
                await sitter.hear("beat")
        ended = user.recorder.now()
        assert not waiting.done()
    (answer,) = await waiting
    assert answer.status == "created"
    return began, ended


async def test_a_user_holds_the_write_lock(tmp_path: Path) -> None:
    await long_transaction(tmp_path, 2 * SECOND, 5.0)


@pytest.mark.chaos
async def test_a_user_holds_the_write_lock_for_ten_seconds(tmp_path: Path) -> None:
    await long_transaction(tmp_path, 4 * SECOND, 10.0)
