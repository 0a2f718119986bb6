"""How soon an idle worker starts what another process submits; the submit's own commit is part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.contenders import PEERS, TASKMILL, TASKMILL_ASYNC, Contender, Waits, available, late
from bench.report import Figure, Plan, percentile

__all__ = ["Found", "figures", "measured", "nearly_all", "run"]

SECTION = "latency"
SAMPLES = 200

Found = dict[Contender, list[Waits]]


async def run(plan: Plan) -> list[Figure]:
    return figures(*await asyncio.to_thread(measured, (TASKMILL, TASKMILL_ASYNC, *PEERS), plan))


def measured(contenders: Sequence[Contender], plan: Plan) -> tuple[dict[Contender, str], Found]:
    known = available(contenders, plan)
    found: Found = {contender: [] for contender in known}
    samples = plan.count(SAMPLES, least=20)
    for number in range(plan.rounds):
        for contender in known:
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {contender.name}, {samples} tasks one at a time")
            found[contender].append(late(contender, samples, 4 * plan.seconds, plan))
    return {contender: words for contender, (words, _) in known.items()}, found


def figures(words: dict[Contender, str], found: Found, own: Contender = TASKMILL, median: float | None = 3.0) -> list[Figure]:
    """The median over all rounds is judged, of our own worker; beside it those of each round."""
    return [_figure(contender, rounds, words[contender], median if contender == own else None) for contender, rounds in found.items()]


def _figure(contender: Contender, rounds: list[Waits], words: str, target: float | None) -> Figure:
    every = [one for waits in rounds for one in waits.starts]
    submits = percentile([one for waits in rounds for one in waits.submits], 0.5)
    how = f"p99 {percentile(every, 0.99):.1f} ms, {len(every):,} tasks, the submit itself {submits:.1f} ms; {words}"
    medians = [percentile(waits.starts, 0.5) for waits in rounds]
    return Figure(SECTION, f"{contender.name}: idle to start, p50", percentile(every, 0.5), "ms", "<=" if target else "", target, how=how, rounds=medians)


def nearly_all(found: Found, own: Contender, target: float | None) -> list[Figure]:
    """The 99th percentile over all rounds, of our own worker if it is here; beside it those of each round."""
    if own not in found:
        return []
    rounds = [percentile(waits.starts, 0.99) for waits in found[own]]
    value = percentile([one for waits in found[own] for one in waits.starts], 0.99)
    return [Figure(SECTION, f"{own.name}: idle to start, p99", value, "ms", "<=" if target else "", target, rounds=rounds)]
