"""How soon an idle worker starts what another process submits; the submit's own commit is part of it."""

from __future__ import annotations

import asyncio

from bench.contenders import PEERS, TASKMILL, TASKMILL_ASYNC, Contender, Waits, available, late
from bench.report import Figure, Plan, percentile

__all__ = ["figures", "run"]

SECTION = "latency"
SAMPLES = 200

Found = dict[Contender, list[Waits]]


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    known = available((TASKMILL, TASKMILL_ASYNC, *PEERS), plan)
    found: Found = {contender: [] for contender in known}
    samples = plan.count(SAMPLES, least=20)
    for number in range(plan.rounds):
        for contender in known:
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {contender.name}, {samples} tasks one at a time")
            found[contender].append(late(contender, samples, 4 * plan.seconds, plan))
    return figures({contender: words for contender, (words, _) in known.items()}, found)


def figures(words: dict[Contender, str], found: Found) -> list[Figure]:
    """The median over all rounds is judged; beside it those of each round."""
    return [_figure(contender, rounds, words[contender]) for contender, rounds in found.items()]


def _figure(contender: Contender, rounds: list[Waits], words: str) -> Figure:
    every = [one for waits in rounds for one in waits.starts]
    submits = percentile([one for waits in rounds for one in waits.submits], 0.5)
    how = f"p99 {percentile(every, 0.99):.1f} ms, {len(every):,} tasks, the submit itself {submits:.1f} ms; {words}"
    target = 3.0 if contender == TASKMILL else None
    medians = [percentile(waits.starts, 0.5) for waits in rounds]
    return Figure(SECTION, f"{contender.name}: idle to start, p50", percentile(every, 0.5), "ms", "<=" if target else "", target, how=how, rounds=medians)
