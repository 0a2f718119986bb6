"""Drains: a full store and `taskmill worker`, beside the workers of peers and beside the raw loop, which has neither handlers nor leases."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from bench import raw
from bench.contenders import HUEY, LOCAL, PEERS, TASKMILL, TASKMILL_ASYNC, Contender, Drained, available, drained
from bench.report import Figure, Plan, each, rates

__all__ = ["Found", "cpu", "each_of", "figures", "measured", "processes_in_words", "run"]

SECTION = "drain"
RAW = 50_000

Found = dict[tuple[Contender, int], list[Drained]]


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(measured, (TASKMILL, TASKMILL_ASYNC, LOCAL, *PEERS), RAW, plan))


def measured(contenders: Sequence[Contender], jobs: int, plan: Plan) -> tuple[dict[Contender, str], list[float], Found]:
    """Every contender that is here, with one process and with two, and so many jobs in a raw loop, in turns: their words, the raw loop's rates, and theirs."""
    known = available(contenders, plan)
    found: Found = {(contender, processes): [] for contender in known for processes in (1, 2)}
    floor: list[float] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, raw loop")
        with plan.stores.fresh() as url:
            floor.append(raw.claim_and_finish(url, plan.count(jobs)))
        for contender, processes in found:
            n = plan.count(contender.drain, least=500)
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {contender.name}, {n:,} tasks, {processes_in_words(processes)}")
            found[contender, processes].append(drained(contender, processes, n, plan))
    return {contender: words for contender, (words, _) in known.items()}, floor, found


def figures(words: dict[Contender, str], floor: list[float], found: Found) -> list[Figure]:
    """Judged: the plain function beside both settings of Huey, the asynchronous one beside the raw loop; one process each. What is not here is left out."""

    def of(contender: Contender, processes: int = 1) -> list[float]:
        return [one.rate for one in found[contender, processes]]

    def beside(own: Contender, other: Contender, processes: int, target: float | None) -> Figure:
        name = f"{_short(own)} / {other.name}" + (", two processes" if processes == 2 else "")
        return rates(SECTION, name, target, {_short(own): of(own, processes), other.name: of(other, processes)}, "tasks/s")

    def beside_raw(own: Contender, target: float | None) -> Figure:
        return rates(SECTION, f"{_short(own)} / raw loop", target, {_short(own): of(own), "raw": floor}, "tasks/s, one process, both at FULL")

    here = {contender for contender, _ in found}
    peers = [peer for peer in PEERS if peer in here]
    plain, asynchronous, local = (own in here for own in (TASKMILL, TASKMILL_ASYNC, LOCAL))
    return [
        *(beside(TASKMILL, peer, processes, 5 if peer in HUEY and processes == 1 else None) for processes in (1, 2) for peer in peers if plain),
        *(beside(TASKMILL_ASYNC, peer, 1, None) for peer in peers if asynchronous and peer in HUEY),
        *(beside(LOCAL, peer, 1, None) for peer in peers if local and peer not in HUEY[:1]),
        *([beside_raw(TASKMILL_ASYNC, 0.22)] if asynchronous else []),
        *([beside_raw(TASKMILL, None)] if plain else []),
        *(rates(SECTION, "async def, two processes / one", None, {"two": of(one, 2), "one": of(one)}, "tasks/s") for one in here if one == TASKMILL_ASYNC),
        *(each(SECTION, f"{one.name}: {processes_in_words(processes)}", of(one, processes), cpu(runs, words[one])) for (one, processes), runs in found.items()),
    ]


def each_of(words: dict[Contender, str], found: Found) -> list[Figure]:
    """Every system by itself, where a server does things at its own times: medians."""
    return [
        each(SECTION, f"{one.name}: {processes_in_words(processes)}", [run.rate for run in runs], cpu(runs, words[one]), typical=statistics.median)
        for (one, processes), runs in found.items()
    ]


def _short(contender: Contender) -> str:
    """What it is beside another system: of all Taskmill, only its kind."""
    return "def" if contender == TASKMILL else contender.name.removeprefix("Taskmill, ")


def cpu(runs: list[Drained], words: str) -> str:
    server = min(run.server for run in runs)
    return f"{min(run.cpu for run in runs):,.0f} µs CPU a task{f', {server:,.0f} of the server' if server else ''}; {words}"


def processes_in_words(n: int) -> str:
    return "one process" if n == 1 else f"{n} processes"
