"""How soon an idle worker on PostgreSQL starts what another process submits; the submit's own commit is part of it."""

from __future__ import annotations

import asyncio

from bench import latency
from bench.contenders import Contender
from bench.contenders_postgres import GRAPHILE, PYTHON, RIVER, TASKMILL, TASKMILL_ASYNC
from bench.report import Figure, Plan, percentile

__all__ = ["figures", "run"]

MEDIAN = 2.5
NEARLY_ALL = 7.0


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(latency.measured, (TASKMILL, TASKMILL_ASYNC, RIVER[0], GRAPHILE, *PYTHON), plan))


def figures(words: dict[Contender, str], found: latency.Found) -> list[Figure]:
    """Median and the 99th percentile are judged, over all rounds."""
    return [*latency.figures(words, found, TASKMILL, MEDIAN), *([_nearly_all(found)] if TASKMILL in found else [])]


def _nearly_all(found: latency.Found) -> Figure:
    rounds = [percentile(waits.starts, 0.99) for waits in found[TASKMILL]]
    value = percentile([one for waits in found[TASKMILL] for one in waits.starts], 0.99)
    return Figure(latency.SECTION, f"{TASKMILL.name}: idle to start, p99", value, "ms", "<=", NEARLY_ALL, rounds=rounds)
