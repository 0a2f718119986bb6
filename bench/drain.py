"""Drains: a full store and `taskmill worker`, beside the workers of peers and beside the raw loop, which has neither handlers nor leases."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench import raw_sqlite
from bench.contenders import HUEY, LOCAL, PEERS, TASKMILL, TASKMILL_ASYNC, Contender, Drained, available, drained
from bench.report import Figure, Plan, each, rates
from bench.store import BATCH, PAYLOAD, folder

__all__ = ["figures", "run"]

SECTION = "drain"
RAW = 50_000

Found = dict[tuple[Contender, int], list[Drained]]


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    known = available((TASKMILL, TASKMILL_ASYNC, LOCAL, *PEERS), plan)
    found: Found = {(contender, processes): [] for contender in known for processes in (1, 2)}
    raw: list[float] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, raw loop")
        with folder(plan.directory) as path:
            raw.append(_raw(path, plan.count(RAW)))
        for contender, processes in found:
            n = plan.count(contender.drain, least=500)
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {contender.name}, {n:,} tasks, {_processes(processes)}")
            found[contender, processes].append(drained(contender, processes, n, plan))
    return figures({contender: words for contender, (words, _) in known.items()}, raw, found)


def _raw(path: Path, n: int) -> float:
    return raw_sqlite.claim_and_finish(path / "raw.db", n, BATCH, PAYLOAD.decode())


def figures(words: dict[Contender, str], raw: list[float], found: Found) -> list[Figure]:
    """Judged: the plain function beside both settings of Huey, the asynchronous one beside the raw loop; one process each."""

    def of(contender: Contender, processes: int = 1) -> list[float]:
        return [one.rate for one in found[contender, processes]]

    def beside(own: Contender, other: Contender, processes: int, target: float | None) -> Figure:
        name = f"{_short(own)} / {other.name}" + (", two processes" if processes == 2 else "")
        return rates(SECTION, name, target, {_short(own): of(own, processes), other.name: of(other, processes)}, "tasks/s")

    peers = [peer for peer in PEERS if (peer, 1) in found]
    return [
        *(beside(TASKMILL, peer, processes, 5 if peer in HUEY and processes == 1 else None) for processes in (1, 2) for peer in peers),
        *(beside(TASKMILL_ASYNC, peer, 1, None) for peer in peers if peer in HUEY),
        *(beside(LOCAL, peer, 1, None) for peer in peers if peer not in HUEY[:1]),
        rates(SECTION, "async def / raw loop", 0.22, {"async def": of(TASKMILL_ASYNC), "raw": raw}, "tasks/s, one process, both at FULL"),
        rates(SECTION, "def / raw loop", None, {"def": of(TASKMILL), "raw": raw}, "tasks/s, one process, both at FULL"),
        rates(SECTION, "async def, two processes / one", None, {"two": of(TASKMILL_ASYNC, 2), "one": of(TASKMILL_ASYNC)}, "tasks/s"),
        *(each(SECTION, f"{one.name}: {_processes(processes)}", of(one, processes), _cpu(runs, words[one])) for (one, processes), runs in found.items()),
    ]


def _short(contender: Contender) -> str:
    """What it is beside another system: of all Taskmill, only its kind."""
    return "def" if contender == TASKMILL else contender.name.removeprefix("Taskmill, ")


def _cpu(runs: list[Drained], words: str) -> str:
    return f"{min(run.cpu for run in runs):,.0f} µs CPU a task; {words}"


def _processes(n: int) -> str:
    return "one process" if n == 1 else f"{n} processes"
