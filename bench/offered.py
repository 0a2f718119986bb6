"""Submits at a steady rate through the SDK, whether or not those before were answered, beside one worker that claims what comes.

A submit lasts from the moment at which it was due to its answer, so a program that falls behind does not look faster for it. The submits are those of one
process, one task each; another claims and finishes by the hundred, and does a worker's upkeep every second.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from bench.report import Figure, Plan, percentile
from bench.store import TYPE, Loop, opened
from taskmill import App

__all__ = ["Offered", "figures", "run"]

SECTION = "offered"
LOAD = 10_000
TICK = 0.001
PAUSE = 0.01
"""Seconds that a claimer rests when it found little."""
SECONDS = 4
"""Times as long as other measurements of a time."""


class Offered(NamedTuple):
    """Seconds of each submit and each claim, and submits answered in a second of the load."""

    submits: list[float]
    claims: list[float]
    rate: float


async def run(plan: Plan) -> list[Figure]:
    load = plan.load or LOAD
    rounds = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {load:,}/s for {SECONDS * plan.seconds:g} s")
        with plan.stores.fresh() as url:
            async with opened(url) as loop:
                rounds.append(await _loaded(loop, url, load, SECONDS * plan.seconds))
    return figures(rounds, load)


def figures(rounds: list[Offered], load: int) -> list[Figure]:
    def part(name: str, of: list[list[float]]) -> Figure:
        every = [one * 1e3 for values in of for one in values]
        how = f"p50 {percentile(every, 0.5):.1f} ms, p99 {percentile(every, 0.99):.1f} ms, {len(every):,} in all"
        return Figure(
            SECTION, f"{load:,}/s offered: {name}, p95", percentile(every, 0.95), "ms", how=how, rounds=[percentile(values, 0.95) * 1e3 for values in of]
        )

    reached = [one.rate for one in rounds]
    return [
        part("a submit", [one.submits for one in rounds]),
        part("a claim", [one.claims for one in rounds]),
        Figure(SECTION, f"{load:,}/s offered: answered", min(reached), "/s", how="the slowest round", rounds=reached),
    ]


async def _loaded(loop: Loop, url: str, load: int, seconds: float) -> Offered:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        submits = asyncio.get_running_loop().run_in_executor(pool, _submit, url, load, seconds)
        claims: list[float] = []
        upkeep = time.monotonic()
        while not submits.done():
            began = time.perf_counter()
            tasks = await loop.claim()
            claims.append(time.perf_counter() - began)
            if tasks:
                await loop.finish(tasks)
            if len(tasks) < loop.batch // 5:
                await asyncio.sleep(PAUSE)
            if time.monotonic() - upkeep > 1:
                upkeep = time.monotonic()
                await loop.engine.heartbeat(loop.worker, loop.request, ())
                await loop.engine.recover_lost()
        waits, taken = await submits
    return Offered(waits, claims, len(waits) / taken)


def _submit(url: str, load: int, seconds: float) -> tuple[list[float], float]:
    return asyncio.run(_submits(url, load, seconds))


async def _submits(url: str, load: int, seconds: float) -> tuple[list[float], float]:
    """How long each took, and how long all of them."""
    app = App(url)
    noop = app.task(name=TYPE)(_noop)
    waits: list[float] = []

    async def one(due: float) -> None:
        await noop.submit()
        waits.append(time.perf_counter() - due)

    async with app, asyncio.TaskGroup() as group:
        await noop.submit()  # its connections are there
        began = time.perf_counter()
        sent = 0
        while (now := time.perf_counter()) - began < seconds:
            while sent < (now - began) * load:
                group.create_task(one(began + sent / load))
                sent += 1
            await asyncio.sleep(TICK)
    return waits, time.perf_counter() - began


async def _noop() -> None:
    """It is claimed by a worker that runs nothing."""
