"""Drains on Redis: from the first no-op until the store holds no unfinished task, with one process and with two, beside peers and the raw loop."""

from __future__ import annotations

import asyncio
import statistics

from bench.contenders import Contender
from bench.contenders_redis import ALL, OTHERS, PYTHON, TASKMILL, TASKMILL_ASYNC
from bench.drain import SECTION, Found, each_of, measured, processes_in_words
from bench.report import Figure, Plan, each, over_best, rates

__all__ = ["figures", "run"]

RAW = 100_000
OWN = "async def"

Rates = dict[tuple[Contender, int], list[float]]


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(measured, ALL, RAW, plan))


def figures(words: dict[Contender, str], floor: list[float], found: Found) -> list[Figure]:
    """What was not measured is left out."""
    rates_of = {one: [run.rate for run in runs] for one, runs in found.items()}
    return [
        *(figure for processes in (1, 2) if (TASKMILL_ASYNC, processes) in found for figure in _beside(rates_of, processes)),
        *_beside_raw(rates_of, floor),
        each(SECTION, "raw loop: one connection", floor, "claim 100, finish 100; a list, strings, a hash of leases", typical=statistics.median),
        *each_of(words, found),
    ]


def _beside(rates_of: Rates, processes: int) -> list[Figure]:
    """Each of other languages, and the fastest of Python."""
    own = rates_of[TASKMILL_ASYNC, processes]
    how = f"tasks/s, committed, {processes_in_words(processes)}"
    added = ", two processes" if processes == 2 else ""
    figures = [
        rates(SECTION, f"{OWN} / {one.name}{added}", None, {OWN: own, one.name: rates_of[one, processes]}, how, typical=statistics.median)
        for one in OTHERS
        if (one, processes) in rates_of
    ]
    python = {one.name: rates_of[one, processes] for one in PYTHON if (one, processes) in rates_of}
    if python:
        figures.append(over_best(SECTION, f"{OWN} / best Python peer{added}", None, own, python, how, typical=statistics.median))
    return figures


def _beside_raw(rates_of: Rates, floor: list[float]) -> list[Figure]:
    figures = []
    for contender, kind in ((TASKMILL_ASYNC, OWN), (TASKMILL, "def")):
        if (contender, 1) in rates_of:
            sides = {kind: rates_of[contender, 1], "raw": floor}
            figures.append(rates(SECTION, f"{kind} / raw loop", None, sides, "tasks/s, one process", typical=statistics.median))
    if (TASKMILL_ASYNC, 2) in rates_of:
        sides = {"two": rates_of[TASKMILL_ASYNC, 2], "one": rates_of[TASKMILL_ASYNC, 1]}
        figures.append(rates(SECTION, f"{OWN}, two processes / one", None, sides, "tasks/s", typical=statistics.median))
    return figures
