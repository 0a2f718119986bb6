"""How soon an idle worker on Redis starts what another process submits; the submit itself is part of it."""

from __future__ import annotations

import asyncio

from bench import latency
from bench.contenders import Contender
from bench.contenders_redis import ALL, TASKMILL
from bench.report import Figure, Plan

__all__ = ["figures", "run"]


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(latency.measured, ALL, plan))


def figures(words: dict[Contender, str], found: latency.Found) -> list[Figure]:
    return [*latency.figures(words, found, TASKMILL, None), *latency.nearly_all(found, TASKMILL, None)]
