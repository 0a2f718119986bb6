"""Drains on PostgreSQL: from the first no-op until the database holds no unfinished task, with one process and with two, beside peers and the raw loop."""

from __future__ import annotations

import asyncio
import statistics

from bench.contenders import Contender
from bench.contenders_postgres import ALL, GRAPHILE, PGQUEUER, RIVER, TASKMILL, TASKMILL_ASYNC
from bench.drain import SECTION, Found, each_of, measured, processes_in_words
from bench.report import Figure, Plan, each, over_best, rates

__all__ = ["figures", "run"]

RAW = 100_000
OWN = "async def"


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(measured, ALL, RAW, plan))


def figures(words: dict[Contender, str], floor: list[float], found: Found) -> list[Figure]:
    """Judged is the asynchronous function, as those of the peers are. What was not measured is left out."""
    rates_of = {one: [run.rate for run in runs] for one, runs in found.items()}
    return [
        *(figure for processes in (1, 2) if (TASKMILL_ASYNC, processes) in found for figure in _beside(rates_of, processes)),
        *_beside_raw(rates_of, floor),
        each(SECTION, "raw loop: one connection", floor, "claim 500, complete 500, update in place", typical=statistics.median),
        *each_of(words, found),
    ]


def _beside(rates_of: dict[tuple[Contender, int], list[float]], processes: int) -> list[Figure]:
    """The fastest of other languages, and the fastest of Python, which runs as many processes."""
    own = rates_of[TASKMILL_ASYNC, processes]
    how = f"tasks/s, committed, {processes_in_words(processes)}"
    added = ", two processes" if processes == 2 else ""
    best = {one.name: rates_of[one, processes] for one in (*RIVER, GRAPHILE) if (one, processes) in rates_of}
    figures = []
    if best:
        figures.append(over_best(SECTION, f"{OWN} / best of River and Graphile{added}", 1.3, own, best, how, typical=statistics.median))
    if (PGQUEUER, processes) in rates_of:
        sides = {OWN: own, PGQUEUER.name: rates_of[PGQUEUER, processes]}
        figures.append(rates(SECTION, f"{OWN} / PgQueuer{added}", 2.0, sides, how, typical=statistics.median))
    return figures


def _beside_raw(rates_of: dict[tuple[Contender, int], list[float]], floor: list[float]) -> list[Figure]:
    figures = []
    for contender, kind, target in ((TASKMILL_ASYNC, OWN, 0.5), (TASKMILL, "def", None)):
        if (contender, 1) in rates_of:
            sides = {kind: rates_of[contender, 1], "raw": floor}
            figures.append(rates(SECTION, f"{kind} / raw loop", target, sides, "tasks/s, one process", typical=statistics.median))
    if (TASKMILL_ASYNC, 2) in rates_of:
        sides = {"two": rates_of[TASKMILL_ASYNC, 2], "one": rates_of[TASKMILL_ASYNC, 1]}
        figures.append(rates(SECTION, f"{OWN}, two processes / one", None, sides, "tasks/s", typical=statistics.median))
    return figures
