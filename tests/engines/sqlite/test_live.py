"""The live file: beats that nobody's transaction holds up, and a file that may be lost, damaged, or of another boot: then every lease gets one lease more."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import Any

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Term
from taskmill.engines.sqlite import live as live_module
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.engines.sqlite.live import Live
from taskmill.task import State
from tests.conformance.tools import Worker, record, submit_one, worker
from tests.engines.sqlite.conftest import Opened

SOON = 20.0
"""Seconds after which an answer never comes; nothing is judged by it."""


def live_files(engine: SQLiteEngine) -> list[Path]:
    return sorted(engine.path.parent.glob(f"{engine.path.name}-live*"))


async def running(engine: SQLiteEngine) -> tuple[Worker, str]:
    """A worker with a task in hand."""
    one = await worker(engine)
    id = await submit_one(engine, {"of": one.id})
    await one.claim()
    return one, id


async def lost_after(engine: SQLiteEngine, clock: ManualClock, silent: Worker, *alive: Worker) -> int:
    """How many seconds of regular looks it takes until the silent one is found dead."""
    for second in range(1, 20):
        clock.advance(1)
        for each in alive:
            await each.beat()
        if silent.id in (await engine.recover_lost()).lost:
            return second
    raise AssertionError("never found")


async def test_beats_count_while_a_users_transaction_is_open(opened: Opened, clock: ManualClock) -> None:
    """Recovery waits for the lock; when it gets it, it sees the beats that came meanwhile, and whose did not."""
    engine, recoverer, user = await opened(), await opened(), await opened()
    (alive, kept), (dead, lost) = await running(engine), await running(engine)
    for _ in range(3):
        await recoverer.recover_lost()
        clock.advance(1)
    context = contextvars.copy_context()
    async with user.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
        recovery = asyncio.get_running_loop().create_task(recoverer.recover_lost(), context=context)
        await asyncio.sleep(0)
        await recoverer._in(recoverer._live_thread, lambda: None)  # its mark is made
        for _ in range(3):
            clock.advance(1)
            async with asyncio.timeout(SOON):
                assert (await alive.beat()).known
        assert not recovery.done()
    async with asyncio.timeout(SOON):
        moved = await recovery
    assert moved.lost == (dead.id,)
    assert (await record(engine, kept)).state is State.RUNNING
    assert (await record(engine, lost)).crashes == 1


async def test_a_silent_worker_is_found_after_its_lease(opened: Opened, clock: ManualClock) -> None:
    """What the tests below compare with."""
    engine = await opened()
    silent, _ = await running(engine)
    await engine.recover_lost()
    assert await lost_after(engine, clock, silent) == 5


GARBAGE: dict[str, Any] = {
    "garbage": lambda path: path.write_bytes(b"not a database at all" * 1_000),
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "removed": lambda path: path.unlink(),
    "scribbled": lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" * (path.stat().st_size - 100)),
}


@pytest.mark.parametrize("how", GARBAGE)
async def test_a_live_file_that_was_damaged_while_nobody_had_it_open(opened: Opened, clock: ManualClock, how: str) -> None:
    before = await opened()
    silent, id = await running(before)
    await before.recover_lost()
    clock.advance(3)
    await before.recover_lost()
    await before.close()
    GARBAGE[how](live_files(before)[0])
    engine = await opened()
    beating = await worker(engine)
    assert await lost_after(engine, clock, silent, beating) == 6, "one look to make a mark, then a whole lease"
    assert (await record(engine, id)).crashes == 1
    assert (await beating.beat()).known


def put_in_place_of(path: Path, content: bytes) -> None:
    """As a tool that restores or synchronises files does it: another file takes over the name."""
    other = path.with_suffix(".new")
    other.write_bytes(content)
    other.rename(path)


IN_USE: dict[str, Any] = {
    "garbage": lambda path: put_in_place_of(path, b"not a database at all" * 1_000),
    "empty": lambda path: put_in_place_of(path, b""),
    "copy": lambda path: put_in_place_of(path, path.read_bytes()),
    "removed": lambda path: path.unlink(),
    "untouched": lambda path: None,
    "scribbled": lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" * (path.stat().st_size - 100)),
}


@pytest.mark.parametrize("beside", [True, False], ids=["alone", "with-its-wal"])
@pytest.mark.parametrize("how", IN_USE)
async def test_a_live_file_that_is_damaged_in_use(opened: Opened, clock: ManualClock, how: str, beside: bool) -> None:
    """Whoever meets the damage makes the file anew: beats go on, nobody who beats is lost, and who does not is found."""
    engine, recoverer = await opened(busy_timeout=SECOND), await opened(busy_timeout=SECOND)
    (alive, kept), (silent, _) = await running(engine), await running(engine)
    await recoverer.recover_lost()
    main, *others = live_files(engine)
    IN_USE[how](main)
    for path in others if not beside else ():
        path.unlink()
    found = await lost_after(recoverer, clock, silent, alive)
    assert 5 <= found <= 11
    assert (await alive.beat()).known
    assert (await record(engine, kept)).crashes == 0


async def test_beats_of_another_boot_mean_nothing(opened: Opened, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was started anew: its monotonic clock began anew too, and every lease is given one lease more."""
    before = await opened()
    silent, id = await running(before)
    await before.recover_lost()
    await before.close()
    monkeypatch.setattr(live_module, "_boot_id", lambda: "another boot")
    reset = ManualClock(now=clock.now() + 60 * SECOND, monotonic=5 * SECOND)
    engine = await opened(clock=reset)
    assert await lost_after(engine, reset, silent) == 6
    assert (await record(engine, id)).crashes == 1


async def test_a_term_of_another_boot_is_over(opened: Opened, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await opened()
    old = await before.lead("scheduler", "old")
    assert isinstance(old, Term)
    assert await before.lead("scheduler", "new") is None
    await before.close()
    monkeypatch.setattr(live_module, "_boot_id", lambda: "another boot")
    engine = await opened()
    term = await engine.lead("scheduler", "new")
    assert isinstance(term, Term)
    assert term.number > old.number
    assert await engine.lead("scheduler", "old") is None


async def test_a_term_whose_live_file_is_lost_is_over(opened: Opened) -> None:
    engine = await opened()
    old = await engine.lead("scheduler", "old")
    assert isinstance(old, Term)
    for path in live_files(engine):
        path.unlink()
    term = await engine.lead("scheduler", "new")
    assert isinstance(term, Term)
    assert term.number > old.number


def test_the_boot_has_a_name() -> None:
    assert live_module._boot_id() == live_module._boot_id()


def test_a_worker_that_left_leaves_no_beat(tmp_path: Path, clock: ManualClock) -> None:
    live = Live(tmp_path / "live", clock, SECOND, None)
    fair = live.mark(4 * SECOND)
    live.beat("a")
    live.beat("b")
    live.forget("a")
    clock.advance(4)
    assert live.silent({"a": 4 * SECOND, "b": 4 * SECOND}, fair) == []
    clock.advance("1us")
    assert live.silent({"a": 4 * SECOND, "b": 4 * SECOND}, fair) == ["a", "b"]
    live.beat("b")
    assert live.silent({"a": 4 * SECOND, "b": 4 * SECOND}, fair) == ["a"]
    live.close()
