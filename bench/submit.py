"""Submits: many at once beside the best peer, single ones one by one and from many callers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.contenders import LOCAL, PEERS, TASKMILL, Contender, available, submitted
from bench.report import Figure, Plan, each, over_best

__all__ = ["figures", "run"]

SECTION = "submit"
MANY = 20_000
ONE_BY_ONE = 2_000

Found = dict[Contender, list[float]]


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(_measure, plan)


def _measure(plan: Plan) -> list[Figure]:
    known = available((TASKMILL, LOCAL, *PEERS), plan)
    ways = {contender: ways for contender, (_, ways) in known.items()}
    bulk = _turns(plan, "bulk", [one for one in known if "bulk" in ways[one]], plan.count(MANY))
    single = _turns(plan, "single", list(known), plan.count(ONE_BY_ONE, least=200))
    concurrent = _turns(plan, "concurrent", [one for one in known if "concurrent" in ways[one]], plan.count(MANY))
    return figures({contender: words for contender, (words, _) in known.items()}, bulk, single, concurrent)


def _turns(plan: Plan, kind: str, contenders: Sequence[Contender], n: int) -> Found:
    found: Found = {contender: [] for contender in contenders}
    for number in range(plan.rounds):
        for contender in contenders:
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {contender.name}, {n:,} {kind}")
            found[contender].append(submitted(contender, kind, n, plan))
    return found


def figures(words: dict[Contender, str], bulk: Found, single: Found, concurrent: Found) -> list[Figure]:
    """A peer that has no way of its own for many is as fast there as one by one."""
    peers = {one: max(bulk.get(one, []), single.get(one, []), key=lambda rates: max(rates, default=0.0)) for one in single if one.peer}
    singles = {one.name: single[one] for one in peers}
    compared = peers and [
        over_best(SECTION, "submit_many / best peer", 1.5, bulk[TASKMILL], {one.name: peers[one] for one in peers}, "tasks/s"),
        over_best(SECTION, "single submits / best peer", None, single[TASKMILL], singles, "tasks/s; a commit each"),
        over_best(SECTION, "64 coroutines / best peer's single", None, concurrent[TASKMILL], singles, "tasks/s; they share commits"),
    ]
    return [
        *compared,
        *(each(SECTION, f"{one.name}: many at once", rates, words[one]) for one, rates in bulk.items()),
        *(each(SECTION, f"{one.name}: one by one", rates, words[one]) for one, rates in single.items()),
        *(each(SECTION, f"{one.name}: 64 coroutines", rates, words[one]) for one, rates in concurrent.items()),
    ]
