"""A thousand clients that wait for results over HTTP: what the store is asked meanwhile, and what an idle server costs."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from bench.report import Figure, Plan
from bench.serving import Api, served
from taskmill.engines import create
from taskmill.task import NewTask

__all__ = ["run"]

SECTION = "waiting"
CLIENTS = 1_000
SECONDS = 20.0


async def run(plan: Plan) -> list[Figure]:
    seconds = max(3.0, SECONDS * min(1.0, plan.scale * 10))
    clients = plan.count(CLIENTS, least=100)
    with plan.stores.fresh() as url:
        sent = plan.stores.trace(url)
        with served(url, plan) as api:
            figures = await _idle(api, seconds, plan)
            ids = await _filled(url, clients)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                plan.say(f"{SECTION}: {clients:,} clients wait for {seconds:g} s")
                waiting = [asyncio.create_task(_wait(session, api, id)) for id in ids]
                await asyncio.sleep(3)
                before, used, began = sent() if sent else 0, api.group.usage().cpu, time.monotonic()
                await asyncio.sleep(seconds)
                taken = time.monotonic() - began
                asked, cpu = (sent() if sent else 0) - before, api.group.usage().cpu - used
                for one in waiting:
                    one.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
    figures.append(Figure(SECTION, f"{clients:,} waiting clients, of one core", cpu / taken * 100, "%", how=f"over {taken:.0f} s"))
    if sent is not None:
        figures.append(Figure(SECTION, f"{clients:,} waiting clients, asked of the store", asked / taken, "/s", "<=", 5.0, how="statements or commands"))
    return figures


async def _idle(api: Api, seconds: float, plan: Plan) -> list[Figure]:
    await asyncio.sleep(3)
    plan.say(f"{SECTION}: {seconds:g} s of nothing")
    before, began = api.group.usage(), time.monotonic()
    await asyncio.sleep(seconds)
    after = api.group.usage()
    return [
        Figure(SECTION, "idle API, of one core", (after.cpu - before.cpu) / (time.monotonic() - began) * 100, "%", "<=", 1.0),
        Figure(SECTION, "API process, resident", after.memory / 1e6, "MB", "<", 120.0, how=f"{after.processes} process"),
    ]


async def _filled(url: str, tasks: int) -> list[str]:
    engine = create(url)
    await engine.open()
    try:
        answers = await engine.submit([NewTask(type="bench", queue="bench") for _ in range(tasks)])
    finally:
        await engine.close()
    return [answer.id for answer in answers]


async def _wait(session: aiohttp.ClientSession, api: Api, id: str) -> None:
    while True:
        async with session.get(f"http://{api.host}:{api.port}/api/v1/tasks/{id}?wait=60s") as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
