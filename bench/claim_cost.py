"""What a claim costs when the store is large: a million waiting, a million behind a closed limit, a million finished (ten of them on PostgreSQL).

A large store and a small one are open side by side and take turns, one claim of 100 at a time, on connections that have been warmed. After every claim
and finish as many tasks are submitted again, so that both stay as they are. The large file of SQLite does not fit into the cache of its connection
(64 MB) nor into the part that is mapped (256 MB); what a claim touches should. On Redis a million more keys cost something by themselves, wherever
they are, so there the closed limit is also seen beside as many tasks in a queue that nobody asks for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

from bench.report import Figure, Plan, at_most, information
from bench.store import PAYLOAD, TYPE, Loop, fill, opened
from taskmill.task import NewTask, Priority

__all__ = ["run"]

SECTION = "claim cost"
CLAIM = 100
SMALL = 1_000
LARGE = 1_000_000
FINISHED = {"sqlite": 1_000_000, "postgres": 10_000_000, "redis": 1_000_000}
ELSEWHERE = "elsewhere"
WARM_UP = 5

Times = dict[str, list[float]]
Prepare = Callable[[Loop, int, Plan], Awaitable[None]]
Filled = tuple[Prepare, int]


async def run(plan: Plan) -> list[Figure]:
    finished = FINISHED[plan.stores.engine]
    figures = []
    for name, prepare, full in (("waiting", _waiting, LARGE), ("behind a closed limit", _closed, LARGE), ("finished", _finished, finished)):
        large = plan.count(full, least=2 * SMALL)
        figures += await _compare(plan, f"{large:,} {name}", (prepare, large), (prepare, SMALL), f"{SMALL:,}")
    if plan.stores.engine == "redis":
        large = plan.count(LARGE, least=2 * SMALL)
        figures += await _compare(plan, f"{large:,} behind a closed limit", (_closed, large), (_elsewhere, large), "as many in another queue")
    return figures


async def _compare(plan: Plan, name: str, first: Filled, second: Filled, beside: str) -> list[Figure]:
    with plan.stores.fresh() as other, plan.stores.fresh() as many:
        async with opened(other) as small, opened(many) as big:
            plan.say(f"{SECTION}: {name} / {beside}: filling")
            for loop, (prepare, n) in ((small, second), (big, first)):
                await prepare(loop, n, plan)
            for url in (other, many):
                plan.stores.settle(url)
            size = plan.stores.size(many)
            turns = 20 + plan.count(100 * plan.rounds, least=0)
            plan.say(f"{SECTION}: {name} / {beside}: {turns} claims of {CLAIM} each, the large store has {size:,.0f} MB")
            times: dict[str, Times] = {"large": {"claim": [], "both": []}, "small": {"claim": [], "both": []}}
            for turn in range(turns + WARM_UP):
                await _once(big, times["large"] if turn >= WARM_UP else None)
                await _once(small, times["small"] if turn >= WARM_UP else None)
    return _figures(f"{name} / {beside}", times, size)


def _figures(name: str, times: dict[str, Times], size: float) -> list[Figure]:
    def sides(what: str) -> dict[str, float]:
        return {f"{side} us": statistics.median(times[side][what]) * 1e6 for side in ("large", "small")}

    return [
        at_most(SECTION, f"claim with {name}", 1.2, sides("claim"), f"medians of claims of {CLAIM}; {size:,.0f} MB"),
        information(SECTION, f"claim+finish with {name}", sides("both"), "medians"),
    ]


async def _once(loop: Loop, times: Times | None) -> None:
    began = time.perf_counter()
    tasks = await loop.claim(CLAIM)
    claimed = time.perf_counter()
    assert len(tasks) == CLAIM, f"{len(tasks)} tasks were claimed, not {CLAIM}"
    await loop.finish(tasks)
    finished = time.perf_counter()
    if times is not None:
        times["claim"].append(claimed - began)
        times["both"].append(finished - began)
    await fill(loop.engine, CLAIM)


async def _waiting(loop: Loop, n: int, plan: Plan) -> None:
    await fill(loop.engine, n, say=plan.say)


async def _closed(loop: Loop, n: int, plan: Plan) -> None:
    """A lane that can never start, above the thousand that can."""

    def shut_out(_: int) -> NewTask:
        return NewTask(type=TYPE, payload=PAYLOAD, limits=("closed",), priority=Priority.CRITICAL)

    await loop.engine.put("limit", "closed", b'{"cap": 0}')
    await fill(loop.engine, n, shut_out, plan.say)
    await fill(loop.engine, SMALL)


async def _elsewhere(loop: Loop, n: int, plan: Plan) -> None:
    """As many keys, of which a claim sees none."""
    await fill(loop.engine, n, lambda _: NewTask(type=TYPE, payload=PAYLOAD, queue=ELSEWHERE), plan.say)
    await fill(loop.engine, SMALL)


async def _finished(loop: Loop, n: int, plan: Plan) -> None:
    part = 100_000
    for start in range(0, n, part):
        await fill(loop.engine, min(part, n - start))
        await loop.drain()
        if start and start % 200_000 == 0:
            plan.say(f"  {start:,} of {n:,} finished")
    await fill(loop.engine, SMALL)
