"""Single submits: 64 coroutines that share commits, beside one that waits for the disk every time."""

from __future__ import annotations

import asyncio
import time

from bench.report import Figure, Plan, rates
from bench.store import Loop, opened, plain

__all__ = ["run"]

SECTION = "group commit"
MANY = 64


async def run(plan: Plan) -> list[Figure]:
    found: dict[str, list[float]] = {f"{MANY} coroutines": [], "one": []}
    with plan.stores.fresh() as url:
        async with opened(url) as loop:
            await _submits(loop, MANY, plan.seconds / 10)
            for number in range(plan.rounds):
                plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {plan.seconds:g} s each")
                for name, callers in zip(found, (MANY, 1), strict=True):
                    found[name].append(await _submits(loop, callers, plan.seconds))
    target = 10 if plan.stores.engine == "sqlite" else None
    return [rates(SECTION, f"single submits, {MANY} coroutines / one", target, found, "submits/s", typical=plan.stores.typical)]


async def _submits(loop: Loop, callers: int, seconds: float) -> float:
    """Submits a second, each of one task, each answered before its caller sends the next."""
    began = time.perf_counter()

    async def caller() -> int:
        sent = 0
        while time.perf_counter() - began < seconds:
            await loop.engine.submit([plain(sent)])
            sent += 1
        return sent

    sent = await asyncio.gather(*(caller() for _ in range(callers)))
    return sum(sent) / (time.perf_counter() - began)
