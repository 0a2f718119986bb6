"""The engine reads its clock only when it holds its locks: whoever had to wait was not there at the time at which it asked.

A step that goes by the time at which it began counts a start in a window that is over, takes the later starts of others for a clock that was set back, and
promises terms that have run out. Another session holds what the step needs, so no luck is needed to make it wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from taskmill.clock import HOUR, SECOND
from taskmill.engine import Claimed, Joining, Room
from taskmill.task import NewTask, OnLimit, TypeSettings
from tests.faults.postgres_tools import Session, blocked_by, blocks, moment, plain_session
from tests.faults.recorded import Recorded
from tests.faults.workload import client_of
from tests.history import check, load

WINDOW = SECOND
TYPES = {"plain": TypeSettings(), "paced": TypeSettings(limits=("pace",)), "capped": TypeSettings(limits=("one",))}
GATE = "SELECT gate()"
WORKER = "SELECT FROM workers WHERE id = 'worker' FOR UPDATE"
TERM = "SELECT FROM term WHERE role = 'upkeep' FOR UPDATE"


@pytest.fixture
async def client(postgres_url: str, tmp_path: Path) -> AsyncIterator[Recorded]:
    async with client_of(postgres_url, tmp_path / "history") as client:
        await client.put_limit("pace", rate=1, window=WINDOW)
        await client.put_limit("one", cap=1)
        await client.join(Joining(worker="worker", queues=("default",), types=TYPES))
        yield client
    assert check(load(tmp_path / "history")) == []


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Session]:
    """Another session, which calls the store's functions as the store does."""
    async with plain_session(postgres_url) as session:
        await session.execute("SET search_path TO taskmill")
        yield session


async def claim(client: Recorded, request: int, worker: str = "worker") -> tuple[Claimed, ...]:
    return (await client.claim(worker, request, ("default",), Room(1))).tasks


@asynccontextmanager
async def made_to_wait(other: Session, lock: str, step: Callable[[], Awaitable[object]]) -> AsyncIterator[list[int]]:
    """The step runs, and waits for this lock while the block does; when the lock was given back, on the store's clock, and the step is over, is in the list."""
    released: list[int] = []
    async with other.transaction():
        await other.execute(lock)
        asked = asyncio.ensure_future(step())
        await blocked_by(other)
        yield released
        released.append(await moment(other))
    await asked


@pytest.mark.parametrize(("kind", "lock"), [("paced", GATE), ("capped", GATE), ("paced", WORKER), ("plain", WORKER)])
async def test_a_claim_that_waited(client: Recorded, other: Session, kind: str, lock: str) -> None:
    await client.submit([NewTask(type=kind, payload=b"{}")])
    claimed: list[Claimed] = []

    async def step() -> None:
        claimed.extend(await claim(client, 1))

    async with made_to_wait(other, lock, step) as released:
        pass
    assert [task.type for task in claimed] == [kind]
    assert claimed[0].claimed_at >= released[0]


async def test_a_take_that_waited(client: Recorded, other: Session) -> None:
    async with made_to_wait(other, GATE, lambda: client.engine.take("pace", 1, "first")) as released:
        pass
    second = await client.engine.take("pace", 1, "second")
    assert not second.granted
    assert second.retry_at is not None
    assert second.retry_at >= released[0] + WINDOW


async def test_a_submit_that_waited_to_be_counted(client: Recorded, other: Session) -> None:
    """With `on_limit="reject"` a start is counted when the task is submitted."""
    new = NewTask(type="paced", payload=b"{}", on_limit=OnLimit.REJECT)
    async with made_to_wait(other, GATE, lambda: client.submit([new])) as released:
        pass
    second = await client.engine.take("pace", 1, "second")
    assert not second.granted
    assert second.retry_at is not None
    assert second.retry_at >= released[0] + WINDOW


async def test_a_leader_that_waited(client: Recorded, other: Session) -> None:
    """Its term begins when it is given."""
    term = await client.engine.lead("upkeep", "before")
    assert term is not None
    await client.engine.resign(term)
    async with made_to_wait(other, TERM, lambda: client.lead("upkeep", "leader", 4 * SECOND)) as released:
        pass
    row = await other.fetchrow("SELECT holder, until FROM term WHERE role = 'upkeep'")
    assert row is not None
    assert row["holder"] == "leader"
    assert row["until"] >= released[0] + 4 * SECOND


async def test_a_window_is_not_exceeded_by_one_that_waited(client: Recorded, other: Session) -> None:
    """Somebody starts a task while a claim waits for the gate. By the time at which it began to wait, that start lies ahead, as if the clock had been set
    back: the window would move with it, and the third start come too soon."""
    await client.put_limit("pace", rate=2, window=WINDOW)
    await client.join(Joining(worker="other", queues=("default",), types=TYPES))
    await client.submit([NewTask(type="paced", payload=b"{}") for _ in range(3)])
    started: list[Claimed] = []

    async def step() -> None:
        started.extend(await claim(client, 1))

    async with made_to_wait(other, GATE, step):
        await asyncio.sleep(0.4)  # the fault itself: it waits for a good part of the window
        rows = await other.fetch("SELECT * FROM claim('other', 1, ARRAY['default'], 1, NULL, 0, 1000000, NULL)")
        first: int = rows[0]["claimed_at"]
    assert len(started) == 1
    for request in itertools.count(2):
        started.extend(await claim(client, request))
        if len(started) == 2:
            break
        await asyncio.sleep(0.005)
    assert started[1].claimed_at >= first + WINDOW


WAITS = """
CREATE OR REPLACE FUNCTION next_plain(p picking, queue_number bigint, most integer) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(42);
  RETURN '{}';
END $$"""
"""What a claim without the gate looks at first; here it waits there, and finds nothing."""


async def test_nothing_under_a_limit_is_claimed_without_the_gate(client: Recorded, other: Session, postgres_url: str) -> None:
    """A claim that sees no open lane goes without the gate. A lane that opens while it looks is not for it: others count there at the same time."""
    await client.engine.submit([NewTask(type="capped", payload=b"{}", delay=HOUR)])  # not for the history, which knows no other way to be due
    await other.execute(WAITS)
    await other.execute("SELECT settle()")  # nothing is owed that it would take the gate for
    async with plain_session(postgres_url) as keeper, keeper.transaction():
        await keeper.execute("SET search_path TO taskmill")
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(42)")
            asked = asyncio.ensure_future(claim(client, 1))
            await blocked_by(other)
            await other.execute("UPDATE task SET ready_at = 0")  # its time has come
            await other.execute("SELECT settle()")
            assert await other.fetchval("SELECT count(*) FROM share WHERE top IS NOT NULL") == 1
            keeping = asyncio.ensure_future(keeper.execute(GATE))
            await blocked_by(other, n=2)
        await keeping
        while not asked.done() and not await blocks(keeper):  # noqa: ASYNC110 - it happens in the server
            await asyncio.sleep(0.01)
        assert not asked.done() or asked.result() == ()
    found = await asked or await claim(client, 2)
    assert [task.type for task in found] == ["capped"]
