"""Submits through `taskmill.Client`, one task a call, from a second process: what callers that wait reach, and a steady rate whether or not they wait.

An acknowledgement lasts from the moment at which its submit was due, so a program that falls behind does not look faster for it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, TypeVar

from bench.report import Figure, Plan, percentile
from bench.serving import served
from taskmill import Client
from taskmill.errors import TaskmillError

__all__ = ["run"]

Found = TypeVar("Found")

SECTION = "client"
CALLERS = (64, 256, 1_000)
LOAD = 10_000
SECONDS = 5
"""Times as long as other measurements of a time: 20 s, where `--hold` says nothing else."""
TICK = 0.001
PAYLOAD = {"user_id": 42, "name": "Ada", "tags": ["a", "b"]}


class Offered(NamedTuple):
    """Milliseconds of each acknowledgement, submits that failed, and acknowledgements in a second."""

    took: list[float]
    failed: list[str]
    rate: float


async def run(plan: Plan) -> list[Figure]:
    load, seconds = plan.load or LOAD, plan.hold or SECONDS * plan.seconds
    peaks: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    rounds: list[Offered] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {plan.seconds:g} s with each number of callers, then {load:,}/s for {seconds:g} s")
        for callers in CALLERS:
            with plan.stores.fresh() as url, served(url, plan) as api:
                peaks[callers].append(await _elsewhere(_peak, f"http://{api.host}:{api.port}", callers, plan.seconds))
        with plan.stores.fresh() as url, served(url, plan) as api:
            rounds.append(await _elsewhere(_offer, f"http://{api.host}:{api.port}", load, seconds))
    return _figures(plan, peaks, rounds, load)


def _figures(plan: Plan, peaks: dict[int, list[float]], rounds: list[Offered], load: int) -> list[Figure]:
    def part(which: float) -> list[float]:
        return [percentile(one.took, which) for one in rounds]

    failed = [float(len(one.failed)) for one in rounds]
    why = "; ".join(sorted({text for one in rounds for text in one.failed})[:3])
    offered = f"{load:,}/s offered"
    how = f"p50 {min(part(0.5)):.1f} ms, {sum(len(one.took) for one in rounds):,} in all, answered {min(one.rate for one in rounds):,.0f}/s"
    return [
        Figure(SECTION, f"{offered}: failed", sum(failed), "", "<=", 0, how=why, rounds=failed),
        Figure(SECTION, f"{offered}: acknowledged, p95", max(part(0.95)), "ms", "<", 150, how=how, rounds=part(0.95)),
        Figure(SECTION, f"{offered}: acknowledged, p99", max(part(0.99)), "ms", "<", 300, rounds=part(0.99)),
        *(
            Figure(SECTION, f"client.submit, {callers:,} callers", plan.stores.typical(found), "/s", how="one task a call", rounds=found)
            for callers, found in peaks.items()
        ),
    ]


async def _elsewhere(part: Callable[[str, int, float], Found], url: str, number: int, seconds: float) -> Found:
    """In a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, part, url, number, seconds)


def _peak(url: str, callers: int, seconds: float) -> float:
    return asyncio.run(_peaking(url, callers, seconds))


async def _peaking(url: str, callers: int, seconds: float) -> float:
    async with Client(url) as client:
        await client.submit("bench", PAYLOAD, queue="bench")
        began = time.perf_counter()

        async def calls() -> int:
            done = 0
            while time.perf_counter() - began < seconds:
                await client.submit("bench", PAYLOAD, queue="bench")
                done += 1
            return done

        done = sum(await asyncio.gather(*(calls() for _ in range(callers))))
        return done / (time.perf_counter() - began)


def _offer(url: str, load: int, seconds: float) -> Offered:
    return asyncio.run(_offering(url, load, seconds))


async def _offering(url: str, load: int, seconds: float) -> Offered:
    took: list[float] = []
    failed: list[str] = []

    async def one(due: float) -> None:
        try:
            await client.submit("bench", PAYLOAD, queue="bench")
        except TaskmillError as error:
            failed.append(f"{error.code}: {error.message}")
        else:
            took.append((time.perf_counter() - due) * 1e3)

    async with Client(url) as client, asyncio.TaskGroup() as group:
        await client.submit("bench", PAYLOAD, queue="bench")  # its connections are there
        began = time.perf_counter()
        sent = 0
        while (now := time.perf_counter()) - began < seconds:
            while sent < (now - began) * load:
                group.create_task(one(began + sent / load))
                sent += 1
            await asyncio.sleep(TICK)
    return Offered(took, failed, len(took) / (time.perf_counter() - began))
