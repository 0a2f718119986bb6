"""Somebody holds a snapshot open for the whole run: no dead row can be removed behind it, and everything is found, counted and told as without it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from taskmill.clock import SECOND
from taskmill.engine import Retention, Term
from tests.faults.judging import judge
from tests.faults.postgres_tools import Session, plain_session
from tests.faults.recorded import Recorded
from tests.faults.workload import Worker, batch, client_of, prepare
from tests.history import Bounds, events
from tests.history.events import TERMINAL

LEASE = 4 * SECOND
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)
CLAIMERS = 8
FAILED_ONLY = Retention(dead=0, cancelled=0)
TABLES = ("task", "body", "ended", "lane", "counter", "edge", "stir", "outbox", "workers")
SEEN = " UNION ALL ".join(f"SELECT '{table}', count(*), min(ctid::text), max(ctid::text) FROM taskmill.{table}" for table in TABLES)


class Upkeep:
    """Reads the outbox as it grows, lets go of what it has read, and prunes what failed."""

    def __init__(self, client: Recorded, term: Term) -> None:
        self._client = client
        self._term = term
        self._after = ""
        self.told: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(0.02)

    async def round(self) -> int:
        """How many entries there were."""
        entries = await self._client.outbox("ended", self._after, 200, self._term)
        for entry in entries:
            self._after = entry.cursor
            self.told[entry.subject] += 1
        await self._client.prune(50, self._term, FAILED_ONLY)
        return len(entries)


class Claimer(Worker):
    """A worker beside others in one process."""

    def __init__(self, client: Recorded, number: int) -> None:
        super().__init__(client, LEASE)
        self._names = (f"claimer-{number}-{n}" for n in range(1_000))


async def work(url: str, history: Path, number: int, batches: int) -> None:
    """Submit, claim, and end in every way what is given, until nothing lives; over connections of its own."""
    random = Random(number)
    async with client_of(f"{url}?pool=4", history, lease=LEASE) as client:
        claimer = Claimer(client, number)
        await claimer.join()
        beats = asyncio.create_task(claimer.beat_on())
        for _ in range(batches):
            await client.submit(batch(random))
            await claimer.turn()
        await claimer.drain()
        beats.cancel()
        await asyncio.wait([beats])
        await client.leave(claimer.name)


async def age(holder: Session) -> int:
    """How many transactions have begun since its snapshot."""
    return int(await holder.fetchval("SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid = pg_backend_pid()"))


async def snapshot_held(tmp_path: Path, url: str, batches: int) -> None:
    history = tmp_path / "history"
    async with client_of(url, history) as client, plain_session(url) as holder, holder.transaction(isolation="repeatable_read"):
        await prepare(client)
        await client.submit(batch(Random(99)))
        seen = await holder.fetch(SEEN)
        term = await client.lead("upkeep", "upkeep", LEASE)
        assert term is not None
        upkeep = Upkeep(client, term)
        keeping = asyncio.create_task(upkeep.run())
        async with asyncio.TaskGroup() as claimers:
            for number in range(CLAIMERS):
                claimers.create_task(work(url, history, number, batches))
        keeping.cancel()
        await asyncio.wait([keeping])
        while await upkeep.round():
            pass
        recorded, reads = await judge(url, history, BOUNDS)
        assert await holder.fetch(SEEN) == seen
        assert await age(holder) > CLAIMERS * batches
    assert upkeep.told == Counter(task for task, read in reads.items() if read.state in TERMINAL | {"expired"})
    claims = [event for event in recorded if isinstance(event, events.Claim) and event.given]
    assert {event.worker.rpartition("-")[0] for event in claims} == {f"claimer-{number}" for number in range(CLAIMERS)}


async def test_a_snapshot_is_held_open(tmp_path: Path, postgres_url: str) -> None:
    """While eight race: under limits, in lanes and in order, over edges and keys, with an outbox that is read and cut and records that are pruned."""
    await snapshot_held(tmp_path, postgres_url, 8)


@pytest.mark.chaos
async def test_a_snapshot_is_held_open_for_long(tmp_path: Path, postgres_url: str) -> None:
    await snapshot_held(tmp_path, postgres_url, 60)
