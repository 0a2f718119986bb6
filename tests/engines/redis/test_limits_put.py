"""The numbers of a limit change while lanes of several shares stand at it."""

from __future__ import annotations

from taskmill.clock import SECOND, ManualClock
from taskmill.engines import create
from tests.conformance.tools import encode, new, submit, worker
from tests.faults.invariants_redis import broken


async def test_starts_that_have_left_the_window_are_forgotten_once(redis_url: str) -> None:
    clock = ManualClock()
    engine = create(redis_url, clock=clock)
    await engine.open()
    await engine.put("limit", "pace", encode({"rate": 4, "window": 10 * SECOND}))
    one = await worker(engine, lease=3_600 * SECOND)
    await submit(engine, *(new(n, limits=("pace",), fair_key="xyz"[n % 3]) for n in range(30)))
    for _ in range(2):
        await one.done(*await one.claim(2))
        clock.advance(4)
    assert await one.claim(9) == []
    clock.advance(3)
    await engine.put("limit", "pace", encode({"rate": 5, "window": 10 * SECOND}))
    assert broken(redis_url) == []
    assert len(await one.claim(9)) == 3
    assert broken(redis_url) == []
    await engine.close()
