"""How soon an idle worker on PostgreSQL starts what another process submits; the submit's own commit is part of it."""

from __future__ import annotations

import asyncio

from bench import latency
from bench.contenders import Contender
from bench.contenders_postgres import GRAPHILE, PYTHON, RIVER, TASKMILL, TASKMILL_ASYNC
from bench.report import Figure, Plan

__all__ = ["figures", "run"]

MEDIAN = 2.5
NEARLY_ALL = 7.0


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(latency.measured, (TASKMILL, TASKMILL_ASYNC, RIVER[0], GRAPHILE, *PYTHON), plan))


def figures(words: dict[Contender, str], found: latency.Found) -> list[Figure]:
    """Median and the 99th percentile are judged, over all rounds."""
    return [*latency.figures(words, found, TASKMILL, MEDIAN), *latency.nearly_all(found, TASKMILL, NEARLY_ALL)]
