"""Workers that are paused, and files beside the store that vanish: who comes back too late has empty hands, and everybody else goes on."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from taskmill import codec
from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Joining, Room
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import NewTask
from tests.faults.judging import judge
from tests.faults.processes import started
from tests.faults.workload import TYPES, client_of, prepare
from tests.history import Bounds, events

LEASE = SECOND


@pytest.mark.parametrize("meanwhile", ["done", "running"])
async def test_a_worker_paused_past_its_lease(tmp_path: Path, meanwhile: str) -> None:
    """When it comes back, another has done its tasks, or is at it."""
    store, history = tmp_path / "store.db", tmp_path / "history"
    tasks = [NewTask(type=kind, payload=codec.encode({"do": "complete", "user": "ann"})) for kind in ("plain", "capped", "lined")]
    async with client_of(store, history) as client:
        await prepare(client)
        await client.submit(tasks)
    options = ("--lease", LEASE, "--batches", 3)
    async with started("sit", store, history, *options) as paused:
        held = await paused.hear("claimed")
        paused.tell("pause")
        await paused.hear("pausing")
        async with started("sit", store, history, *options) as other:
            assert sorted(await other.hear("claimed")) == sorted(held)
            if meanwhile == "done":
                other.tell("finish")
                assert await other.hear("answers") == ["applied"] * 3
            paused.resume()
            answers = await paused.hear("answers")
            await paused.done()
            if meanwhile == "running":
                other.tell("finish")
                assert await other.hear("answers") == ["applied"] * 3
            await other.done()
    recorded, reads = await judge(store, history, Bounds(lease=LEASE // 2, max_crashes=1_000))
    assert sorted(held) == sorted(task.id for task in tasks)
    assert answers == ["stale_lease"] * 3
    assert len([event for event in recorded if isinstance(event, events.Finish) and event.answer == "stale"]) == 6
    assert {(read.state, read.crashes, read.executions) for read in reads.values()} == {("completed", 1, 2)}


async def test_a_beat_that_comes_before_the_verdict_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker was silent for too long, then beats and is told that it holds its leases: a recovery that judged it before must not take them."""
    clock = ManualClock()
    worker, recoverer = (SQLiteEngine(tmp_path / "store.db", clock=clock) for _ in range(2))
    await worker.open()
    await recoverer.open()
    await worker.join(Joining(worker="w", queues=("default",), types=TYPES))
    await worker.submit([NewTask(type="plain", payload=b'{"do": "complete"}')])
    (claimed,) = (await worker.claim("w", 1, ("default",), Room(1))).tasks
    await recoverer.recover_lost()
    for _ in range(2):
        clock.advance("3s")
        if clock.monotonic() - 1_000 * SECOND < 5 * SECOND:
            await recoverer.recover_lost()
    judged, go_on = asyncio.Event(), asyncio.Event()
    write = recoverer._write

    async def wait_for_the_lock(step: Any) -> Any:
        judged.set()
        await go_on.wait()
        return await write(step)

    monkeypatch.setattr(recoverer, "_write", wait_for_the_lock)
    recovery = asyncio.create_task(recoverer.recover_lost())
    await judged.wait()
    beat = await worker.heartbeat("w", 1, [claimed.token])
    go_on.set()
    await recovery
    after = await worker.heartbeat("w", 1, [claimed.token])
    await worker.close()
    await recoverer.close()
    assert not beat.known or (after.known and after.lost == beat.lost)


async def test_a_writer_paused_in_the_queue_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever is next for the write lock keeps the others in line. Paused there, it writes nothing, so nothing is a reason to wait for it."""
    async with client_of(tmp_path / "store.db", tmp_path / "history") as client:
        await prepare(client)
        turn = os.open(tmp_path / "store.db-run", os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            (answer,) = await client.submit([NewTask(type="plain", payload=b'{"do": "complete"}')])
        finally:
            os.close(turn)
    assert answer.status == "created"


async def test_the_run_folder_is_removed(tmp_path: Path) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    async with client_of(store, history) as client, client_of(store, history) as other:
        await prepare(client)
        shutil.rmtree(tmp_path / "store.db-run")
        for each in (client, other, client):
            (answer,) = await each.submit([NewTask(type="plain", payload=b'{"do": "complete"}')])
            assert answer.status == "created"
    await judge(store, history, Bounds(), all_ended=False)


async def test_the_live_file_is_removed(tmp_path: Path) -> None:
    """Everybody is given one lease more, and beats count again."""
    clock = ManualClock()
    worker, recoverer = (SQLiteEngine(tmp_path / "store.db", clock=clock) for _ in range(2))
    await worker.open()
    await recoverer.open()
    await worker.join(Joining(worker="w", queues=("default",), types=TYPES))
    await worker.submit([NewTask(type="plain", payload=b'{"do": "complete"}')])
    (claimed,) = (await worker.claim("w", 1, ("default",), Room(1))).tasks
    await recoverer.recover_lost()
    _unlink(tmp_path, "store.db-live*")
    moved = 0
    for _ in range(12):
        clock.advance("1s")
        await worker.heartbeat("w", 1, [claimed.token])
        moved += (await recoverer.recover_lost()).moved
    beat = await worker.heartbeat("w", 1, [claimed.token])
    await worker.close()
    await recoverer.close()
    assert (moved, beat.known, beat.lost) == (0, True, ())


def _unlink(directory: Path, pattern: str) -> None:
    for file in directory.glob(pattern):
        file.unlink()
