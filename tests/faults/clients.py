"""Clients of a store on a server that submit, claim, finish and beat until they are told to come to an end, and the verdict on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec

from taskmill.clock import SECOND
from taskmill.engines.postgres.target import parse
from tests.faults.growing import took_part
from tests.faults.invariants_redis import dumps
from tests.faults.judging import judge
from tests.faults.processes import Program, started
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import TERMINAL, Event, Read

__all__ = ["BOUNDS", "LEASE", "at_work", "judged"]

LEASE = 2 * SECOND
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)
"""A lease counts from the last beat, which lies up to a quarter of it before a claim; the rest is for a slow machine."""
KINDS = (events.Submit, events.Claim, events.Finish, events.Beat)


@contextlib.asynccontextmanager
async def at_work(url: str, history: Path, n: int = 2) -> AsyncIterator[list[Program]]:
    """Clients that submit, claim, finish and beat; in the end they come to their own, and nothing lives any more."""
    async with client_of(url, history) as client:
        await prepare(client)
    async with contextlib.AsyncExitStack() as stack:
        options = ("--lease", LEASE, "--batches", -1, "--wait")
        programs = [await stack.enter_async_context(started("work", url, history, *options, "--seed", k)) for k in range(n)]
        for program in programs:
            await program.hear("ready")
        yield programs
        await took_part(history, [program.process.pid for program in programs], KINDS)
        await asyncio.gather(*(program.done() for program in programs))


async def judged(url: str, history: Path, programs: list[Program]) -> list[Event]:
    """No promise is broken; every client took part to the end; what broke under way was never told as if it had not been done."""
    recorded, reads = await judge(url, history, BOUNDS)
    await owed_once(url, reads)
    for kind in KINDS:
        asked = [event for event in recorded if isinstance(event, kind)]
        assert {event.process for event in asked} >= {program.process.pid for program in programs}
        assert {event.answer for event in asked}.isdisjoint({"error", "rejected"})
    return recorded


async def owed_once(url: str, reads: dict[str, Read]) -> None:
    """Every task that ended owes its outbox entry, exactly one."""
    subjects = owed_by_redis(url) if url.startswith("redis") else await owed_by_postgres(url)
    assert sorted(subjects) == sorted(task for task, read in reads.items() if read.state in TERMINAL)


async def owed_by_postgres(url: str) -> list[str]:
    db = await asyncpg.connect(**parse(url).arguments())
    entries = await db.fetch("SELECT subject FROM taskmill.outbox WHERE kind = 'ended'")
    await db.close()
    return [subject for (subject,) in entries]


def owed_by_redis(url: str) -> list[str]:
    return [msgspec.msgpack.decode(raw)[1] for each in dumps(url).values() for raw, _ in each.keys.get("outbox:ended", ())]
