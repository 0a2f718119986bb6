"""What it costs to prune: half of a million finished tasks is beyond its retention and is removed in slices of 500, as the leader of a running system does it.

Side by side in one store and in turn: a worker's claims and finishes alone, and the same while another process prunes at its own pace (after each slice it
leaves the store to others for as long as the slice took). What is then left is pruned without a pause, and the store is looked at before and after
autovacuum has been through it. The history is made by plain SQL, as the engine writes it; pruned is by the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import asyncpg

from bench.held import SIZES, Size
from bench.report import Figure, Plan, percentile, rates
from bench.store import PAYLOAD, TYPE, fill, opened
from taskmill.engine import DEFAULT_RETENTION, Engine, Term

__all__ = ["SLICE", "run"]

SECTION = "pruning"
FINISHED = 1_000_000
TASKS = 60_000
"""Claimed and finished in each turn."""
SLICE = 500
TARGET = 0.8
PATIENCE = 120
"""Seconds for autovacuum to come round; it looks once a minute."""

HISTORY = f"""
WITH made AS (
  INSERT INTO taskmill.ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at)
  SELECT gen_random_uuid(), nextval('taskmill.seq'), 5, 0, 3, 1, 0, 0, 0, at, nextval('taskmill.token'), 'bench', at - 1000, at - 1000
  FROM generate_series($1::bigint, $2::bigint) n, LATERAL (SELECT $3::bigint + n * $4::bigint AS at) x RETURNING id, seq, finished_at)
INSERT INTO taskmill.body (id, seq, type, queue, tenant, priority, created_at, run_at, timeout, max_crashes, payload)
SELECT id, seq, '{TYPE}', 'default', '', 1, finished_at - 1000000, finished_at - 1000000, 3600000000, 3, '{PAYLOAD.decode()}' FROM made"""
VACUUMED = "SELECT count(*) FROM pg_stat_user_tables WHERE relname IN ('body', 'ended') AND n_dead_tup < 1000 AND last_autovacuum IS NOT NULL"


async def run(plan: Plan) -> list[Figure]:
    finished, tasks = plan.count(FINISHED, least=40 * SLICE), plan.count(TASKS)
    with plan.stores.fresh() as url:
        async with opened(url) as loop:
            await _history(url, finished, plan)
            before = await _sizes(url)
            found: dict[str, list[float]] = {"pruning": [], "alone": []}
            slices: list[float] = []
            for number in range(plan.rounds):
                plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {tasks:,} tasks each")
                await fill(loop.engine, tasks)
                with _pruning(url) as taken:
                    found["pruning"].append(await loop.timed_drain(tasks))
                slices += taken
                await fill(loop.engine, tasks)
                found["alone"].append(await loop.timed_drain(tasks))
            plan.say(f"{SECTION}: the rest, without a pause")
            alone = await _rest(loop.engine)
        after = await _sizes(url)
        await _vacuumed(url, plan)
        later = await _sizes(url)
    return [
        rates(SECTION, "claim+finish while pruning / alone", TARGET, found, f"tasks/s; {len(slices)} slices meanwhile", typical=plan.stores.typical),
        _slices("a slice beside claims and finishes", slices),
        _slices("a slice alone", alone),
        _tables("history before", before, 0),
        _tables("history after, not yet vacuumed", after, 2 * plan.rounds * tasks),
        _tables("history after autovacuum", later, 2 * plan.rounds * tasks),
    ]


async def _history(url: str, finished: int, plan: Plan) -> None:
    """Over twice the retention, so half of it is too old."""
    plan.say(f"{SECTION}: {finished:,} finished tasks")
    retention = DEFAULT_RETENTION.completed
    first, step = time.time_ns() // 1000 - 2 * retention, 2 * retention // finished
    connection: Any = await asyncpg.connect(url)
    try:
        for start in range(0, finished, 100_000):
            await connection.execute(HISTORY, start, min(start + 100_000, finished) - 1, first, step)
    finally:
        await connection.close()
    plan.stores.settle(url)


async def _slice(engine: Engine, term: Term) -> tuple[int, bool, float]:
    """How many it removed, whether there are more, and its seconds."""
    began = time.perf_counter()
    moved = await engine.prune(SLICE, term, DEFAULT_RETENTION)
    return moved.moved, moved.more, time.perf_counter() - began


async def _rest(engine: Engine) -> list[float]:
    taken = []
    more = True
    while more:
        term = await engine.lead("pruning", "bench")
        assert term is not None
        moved, more, seconds = await _slice(engine, term)
        if moved == SLICE:
            taken.append(seconds)
    return taken


# The other process


@contextlib.contextmanager
def _pruning(url: str) -> Iterator[list[float]]:
    """It has pruned its first slice when the block begins; the list has the seconds of each when it has ended."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    ours, theirs = context.Pipe()
    child = context.Process(target=_prune, args=(url, stop, theirs), daemon=True)
    taken: list[float] = []
    child.start()
    try:
        assert ours.recv() == "ready"
        yield taken
        stop.set()
        taken += ours.recv()
    finally:
        stop.set()
        child.join(timeout=30)
        if child.is_alive():
            child.terminate()
            child.join()


def _prune(url: str, stop: Event, answers: Connection) -> None:
    asyncio.run(_pace(url, stop, answers))


async def _pace(url: str, stop: Event, answers: Connection) -> None:
    async with opened(url, "bench-prunes") as loop:
        engine = loop.engine
        term = await engine.lead("pruning", "bench-prunes")
        assert term is not None
        await _slice(engine, term)
        answers.send("ready")
        taken = []
        led = time.monotonic()
        while not stop.is_set():
            moved, _, seconds = await _slice(engine, term)
            if moved == SLICE:
                taken.append(seconds)
            await asyncio.sleep(seconds)
            if time.monotonic() - led > 1:
                led = time.monotonic()
                await engine.lead("pruning", "bench-prunes")
        await engine.resign(term)
        answers.send(taken)


# What is left


async def _sizes(url: str) -> list[Size]:
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.fetch("SELECT pg_stat_clear_snapshot()")
        rows = await connection.fetch(SIZES)
    finally:
        await connection.close()
    return [Size(row["relname"], float(row["megabytes"]), int(row["dead"])) for row in rows if row["relname"] in ("body", "ended")]


async def _vacuumed(url: str, plan: Plan) -> None:
    """Until autovacuum has been here, which comes by itself; a run that is only to be seen does not wait for it."""
    connection: Any = await asyncpg.connect(url)
    try:
        for _ in range(PATIENCE if plan.scale >= 1 else 0):
            if await connection.fetchval(VACUUMED) == 2:
                break
            await asyncio.sleep(1)
    finally:
        await connection.close()


def _slices(name: str, taken: list[float]) -> Figure:
    how = f"median of {len(taken)} slices of {SLICE}; 99 of 100 within {percentile(taken, 0.99) * 1e3:.1f} ms, the longest {max(taken) * 1e3:.1f} ms"
    return Figure(SECTION, name, statistics.median(taken) * 1e3, "ms", how=f"{how}; {SLICE * len(taken) / sum(taken):,.0f} tasks/s")


def _tables(name: str, sizes: list[Size], added: int) -> Figure:
    how = "; ".join(f"{size.table} {size.megabytes:,.0f} MB, {size.dead:,} dead rows" for size in sizes)
    return Figure(SECTION, name, sum(size.megabytes for size in sizes), "MB", how=f"{how}; {added:,} tasks came to it meanwhile" if added else how)
