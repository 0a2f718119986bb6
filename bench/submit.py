"""Submits: many at once beside the best peer, single ones one by one and from many callers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bench.contenders import LOCAL, PEERS, TASKMILL, Contender, available, submitted
from bench.report import Figure, Plan, each, over_best

__all__ = ["Submits", "figures", "measured", "run"]

SECTION = "submit"
MANY = 20_000
ONE_BY_ONE = 2_000

Found = dict[Contender, list[float]]


class Submits(NamedTuple):
    """Submits a second by the way they were made, and the words of all systems."""

    words: dict[Contender, str]
    bulk: Found
    copy: Found
    single: Found
    concurrent: Found


async def run(plan: Plan) -> list[Figure]:
    found = await asyncio.to_thread(measured, (TASKMILL, LOCAL, *PEERS), plan)
    return figures(found.words, found.bulk, found.single, found.concurrent)


def measured(contenders: Sequence[Contender], plan: Plan, many: int = MANY) -> Submits:
    known = available(contenders, plan)

    def turns(kind: str, n: int) -> Found:
        return _turns(plan, kind, [one for one, (_, ways) in known.items() if kind in ways], n)

    words = {contender: words for contender, (words, _) in known.items()}
    single = plan.count(ONE_BY_ONE, least=200)
    return Submits(words, turns("bulk", plan.count(many)), turns("copy", plan.count(many)), turns("single", single), turns("concurrent", plan.count(MANY)))


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
    compared = (
        []
        if not peers or TASKMILL not in bulk
        else [
            over_best(SECTION, "submit_many / best peer", 1.5, bulk[TASKMILL], {one.name: peers[one] for one in peers}, "tasks/s"),
            over_best(SECTION, "single submits / best peer", None, single[TASKMILL], singles, "tasks/s; a commit each"),
            over_best(SECTION, "64 coroutines / best peer's single", None, concurrent[TASKMILL], singles, "tasks/s; they share commits"),
        ]
    )
    return [
        *compared,
        *(each(SECTION, f"{one.name}: many at once", rates, words[one]) for one, rates in bulk.items()),
        *(each(SECTION, f"{one.name}: one by one", rates, words[one]) for one, rates in single.items()),
        *(each(SECTION, f"{one.name}: 64 coroutines", rates, words[one]) for one, rates in concurrent.items()),
    ]
