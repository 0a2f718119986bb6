"""Pruning in slices: what cannot go yet is in the way of nobody."""

from __future__ import annotations

from taskmill.clock import SECOND, ManualClock
from taskmill.engines import create
from tests.conformance.tools import new, submit
from tests.servers.redis import RedisServer

LIVE = 300
"""More than a slice of tasks whose keys have run out and who live."""


async def test_keys_of_those_who_live_do_not_keep_others_from_being_forgotten(private_redis: RedisServer) -> None:
    clock = ManualClock()
    engine = create(private_redis.url(), clock=clock)
    await engine.open()
    await submit(engine, *(new(n, idempotency_key=f"live-{n}", idempotency_window=SECOND, delay=3_600 * SECOND) for n in range(LIVE)))
    await engine.submit([new(0, idempotency_key="gone", idempotency_window=2 * SECOND)], reserved=True)
    clock.advance(10)
    term = await engine.lead("prune", "me")
    assert term is not None
    while (await engine.prune(200, term)).more:
        pass
    for _ in range(2):
        await engine.prune(200, term)
    with private_redis.client() as client:
        kept = {key.rpartition(b"\t")[2].decode() for key in client.keys("tm:{0}:d:*")}
    assert kept == {f"live-{n}" for n in range(LIVE)}
    await engine.close()
