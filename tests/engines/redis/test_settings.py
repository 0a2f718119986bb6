"""Settings, terms and joins as Redis keeps them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Joining
from taskmill.engines import create
from taskmill.engines.redis.target import parse
from taskmill.operations.types import types
from taskmill.task import TypeSettings
from tests.conformance.tools import encode, submit_one, worker
from tests.servers.redis import RedisServer

P = "tm:{0}:"


@pytest.fixture
async def engine(private_redis: RedisServer) -> AsyncIterator[Engine]:
    found = create(private_redis.url(), clock=ManualClock())
    await found.open()
    yield found
    await found.close()


async def test_a_store_that_was_emptied_repeats_no_term(engine: Engine, private_redis: RedisServer) -> None:
    engine.clock.advance(60)  # type: ignore[attr-defined]
    first = await engine.lead("schedules", "ann")
    assert first is not None
    with private_redis.client() as client:
        client.flushall()
    engine.clock.advance(1)  # type: ignore[attr-defined]
    second = await engine.lead("schedules", "bob")
    assert second is not None
    assert second.number > first.number


@pytest.mark.parametrize(("kind", "name", "wakes"), [("api_key", "k", False), ("endpoint", "e", False), ("pause", "queue:other", True), ("limit", "l", True)])
async def test_only_what_steps_obey_wakes_a_queue(engine: Engine, private_redis: RedisServer, kind: str, name: str, wakes: bool) -> None:
    hand = await worker(engine)
    await submit_one(engine)
    await hand.claim(9)
    with private_redis.client() as client:
        client.delete(f"{P}wake:default")
        await engine.put(kind, name, encode({"cap": 1}))
        assert bool(client.exists(f"{P}wake:default")) is wakes


async def test_a_join_of_many_types_is_one_change(engine: Engine, private_redis: RedisServer) -> None:
    await worker(engine)
    with private_redis.client() as client:
        before = int(client.get(f"{P}generation") or 0)
        await engine.join(Joining(worker="many", queues=("default",), types={f"type-{n}": TypeSettings() for n in range(1_000)}))
        assert int(client.get(f"{P}generation") or 0) == before + 1
    assert len(await engine.items("type")) == 1_001


async def test_types_of_many_workers_are_counted_once(engine: Engine) -> None:
    """Each type was looked for among all types of each worker: 16 s for these."""
    declared = {f"type-{n}": TypeSettings() for n in range(8_000)}
    for n in range(10):
        await engine.join(Joining(worker=f"worker-{n}", queues=("default",), types=declared, lease=3_600_000_000))
    began = time.process_time()
    found = await types(engine)
    assert {info.workers for info in found} == {10}
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:s3c/ret@127.0.0.1:1/0",
        "redis://u:s3c?ret@127.0.0.1:1/0",
        "redis://u:s3c#ret@h/0",
        "redis://u:s3c@ret@h/0",
        "redis://u:s3c%ret@h/0",
        "redis://u:s3c ret@h/0",
    ],
)
def test_a_password_that_is_not_encoded_is_not_shown(url: str) -> None:
    with pytest.raises(Exception, match="URL") as refused:
        create(url)
    assert "s3c" not in str(refused.value)
    assert "ret" not in str(refused.value)


def test_the_name_in_a_certificate_is_checked() -> None:
    assert parse("rediss://h/0").arguments()["ssl_check_hostname"] is True
    assert "ssl_check_hostname" not in parse("redis://h/0").arguments()
