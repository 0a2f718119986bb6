"""Submits on Redis: many at once beside BullMQ's addBulk, single ones from 64 callers beside asynq's, and one by one beside Huey's."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

from bench.contenders_redis import ALL, ASYNQ, BULLMQ, HUEY, TASKMILL, TASKMILL_ASYNC
from bench.report import Figure, Plan, each, rates
from bench.submit import SECTION, Submits, measured

__all__ = ["figures", "run"]

MANY = 100_000


async def run(plan: Plan) -> list[Figure]:
    """Which kind of function is submitted is nothing to a submit."""
    return figures(await asyncio.to_thread(measured, tuple(one for one in ALL if one != TASKMILL_ASYNC), plan, MANY))


def figures(found: Submits) -> list[Figure]:
    """What was not measured is left out."""
    ways = {"many at once": found.bulk, "64 callers": found.concurrent, "one by one": found.single}
    return [
        *_beside(found),
        *(
            each(SECTION, f"{one.name.split(',')[0]}: {way}", rates, found.words[one], typical=statistics.median)
            for way, side in ways.items()
            for one, rates in side.items()
        ),
    ]


def _beside(found: Submits) -> Iterator[Figure]:
    for name, side, peer, how in (
        ("submit_many / BullMQ's addBulk", found.bulk, BULLMQ, "tasks/s"),
        ("64 callers / asynq's", found.concurrent, ASYNQ, "tasks/s; each a submit of its own"),
        ("64 callers / BullMQ's", found.concurrent, BULLMQ, "tasks/s; each a submit of its own"),
        ("single submits / Huey's", found.single, HUEY, "tasks/s; each answered before the next"),
    ):
        if TASKMILL in side and peer in side:
            yield rates(SECTION, name, None, {"own": side[TASKMILL], peer.name: side[peer]}, how, typical=statistics.median)
