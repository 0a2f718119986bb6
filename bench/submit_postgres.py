"""Submits on PostgreSQL: many at once beside River's checked insert and beside Python's peers, single ones from 64 callers beside River's."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

from bench.contenders_postgres import GRAPHILE, PYTHON, RIVER, TASKMILL
from bench.report import Figure, Plan, each, over_best, rates
from bench.submit import SECTION, Found, Submits, measured

__all__ = ["figures", "run"]

MANY = 100_000
SENDER = RIVER[0]
"""How many workers River has is nothing to a submit."""


async def run(plan: Plan) -> list[Figure]:
    return figures(await asyncio.to_thread(measured, (TASKMILL, SENDER, GRAPHILE, *PYTHON), plan, MANY))


def figures(found: Submits) -> list[Figure]:
    """What was not measured is left out."""
    ways = {"many at once": found.bulk, "many, unchecked": found.copy, "one by one": found.single, "64 callers": found.concurrent}
    return [
        *_beside(found),
        *(
            each(SECTION, f"{one.name.split(',')[0]}: {way}", rates, found.words[one], typical=statistics.median)
            for way, side in ways.items()
            for one, rates in side.items()
        ),
    ]


def _beside(found: Submits) -> Iterator[Figure]:
    bulk, single, concurrent = found.bulk, found.single, found.concurrent
    if TASKMILL not in bulk:
        return
    if SENDER in bulk:
        yield _pair("submit_many / River's InsertMany", 1.0, bulk, bulk)
        yield _pair("submit_many / River's InsertManyFast", None, bulk, found.copy, "tasks/s; a COPY that checks and answers nothing")
        yield _pair("64 callers / River's", 5.0, concurrent, concurrent, "tasks/s; each a submit of its own")
        yield _pair("single submits / River's", None, single, single, "tasks/s; a commit each")
    python = {one.name: bulk[one] for one in PYTHON if one in bulk}
    if python:
        yield over_best(SECTION, "submit_many / best Python peer", 1.5, bulk[TASKMILL], python, "tasks/s", typical=statistics.median)


def _pair(name: str, target: float | None, own: Found, other: Found, how: str = "tasks/s") -> Figure:
    return rates(SECTION, name, target, {"own": own[TASKMILL], "River": other[SENDER]}, how, typical=statistics.median)
