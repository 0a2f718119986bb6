"""take: starts are counted against a rate, once by the id, if it has room; never over in any interval of its window."""

from __future__ import annotations

import asyncio
import random

import pytest

from taskmill.clock import MILLISECOND, SECOND, ManualClock
from taskmill.engine import Engine
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.task import new_id
from tests.conformance.tools import Store, needs, submit_many, worker
from tests.conformance.tools_b import guarded

RATE = b'{"rate": 3, "window": 1000000}'


async def test_as_many_as_the_rate_has(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "api", RATE)
    assert (await engine.take("api", 2, new_id())).granted
    refused = await engine.take("api", 2, new_id())
    assert not refused.granted
    assert refused.retry_at is not None
    assert clock.now() < refused.retry_at <= clock.now() + SECOND + MILLISECOND
    assert (await engine.take("api", 1, new_id())).granted
    assert not (await engine.take("api", 1, new_id())).granted


async def test_the_window_is_half_open(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "api", RATE)
    assert (await engine.take("api", 3, new_id())).granted
    clock.advance("999999us")
    assert not (await engine.take("api", 1, new_id())).granted
    clock.advance("1us")
    assert (await engine.take("api", 3, new_id())).granted


async def test_at_retry_at_there_is_room(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "api", RATE)
    assert (await engine.take("api", 1, new_id())).granted
    clock.advance("300ms")
    assert (await engine.take("api", 2, new_id())).granted
    for n in (1, 3):
        start = clock.now()
        while not (answer := await engine.take("api", n, new_id())).granted:
            assert answer.retry_at is not None
            assert answer.retry_at > clock.now()
            clock.advance((answer.retry_at - clock.now()) / SECOND)
        assert start < clock.now() <= start + SECOND


async def test_a_repeat_counts_once_and_answers_the_same(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "api", RATE)
    granted, refused = new_id(), new_id()
    first = await engine.take("api", 2, granted)
    assert first.granted
    for _ in range(5):
        assert await engine.take("api", 2, granted) == first
    assert (await engine.take("api", 1, new_id())).granted
    answer = await engine.take("api", 1, refused)
    assert not answer.granted
    assert await engine.take("api", 2, granted) == first
    clock.advance("100ms")
    assert await engine.take("api", 1, refused) == answer


async def test_keys_count_apart(engine: Engine) -> None:
    await engine.put("limit", "api", RATE)
    for key in ("ann", "bob"):
        assert (await engine.take(f"api:{key}", 3, new_id())).granted
        assert not (await engine.take(f"api:{key}", 1, new_id())).granted
    assert (await engine.take("api", 3, new_id())).granted


async def test_claims_and_takes_share_the_rate(engine: Engine, clock: ManualClock) -> None:
    needs(engine, "limits_over_queues")  # a take is of no queue
    await engine.put("limit", "api", RATE)
    assert (await engine.take("api", 1, new_id())).granted
    await submit_many(engine, 5, limits=("api",))
    hand = await worker(engine)
    assert len(await hand.claim(5)) == 2
    assert not (await engine.take("api", 1, new_id())).granted
    clock.advance("1001ms")
    await hand.beat()
    assert (await engine.take("api", 2, new_id())).granted
    assert len(await hand.claim(5)) == 1


async def test_an_unknown_limit(engine: Engine) -> None:
    with pytest.raises(TaskmillError) as caught:
        await engine.take("nobody", 1, new_id())
    assert caught.value.code == "unknown_limit"


async def test_a_limit_without_a_rate_cannot_be_asked(engine: Engine) -> None:
    await engine.put("limit", "cap-only", b'{"cap": 1}')
    with pytest.raises(TaskmillError) as caught:
        await engine.take("cap-only", 1, new_id())
    assert caught.value.code == "unknown_limit"


@pytest.mark.parametrize("n", [0, -1, 4])
async def test_what_could_never_be_granted_is_refused(engine: Engine, n: int) -> None:
    await engine.put("limit", "api", RATE)
    with pytest.raises(InvalidInput):
        await engine.take("api", n, new_id())
    assert (await engine.take("api", 3, new_id())).granted


async def test_of_many_callers_at_once_as_many_as_the_rate(engine: Engine, store: Store) -> None:
    await engine.put("limit", "api", b'{"rate": 10, "window": 1000000}')
    engines = [engine, *await store.engines(3)]
    answers = await guarded(asyncio.gather(*(engines[n % 4].take("api", 1, new_id()) for n in range(40))))
    assert sum(answer.granted for answer in answers) == 10


@pytest.mark.parametrize("seed", range(3))
async def test_never_over_and_never_refused_without_a_reason(engine: Engine, clock: ManualClock, seed: int) -> None:
    """Checked against every start so far; an engine may round times up by a millisecond, so a refusal may last that much longer."""
    chance = random.Random(seed)
    rate, window = 7, 50 * MILLISECOND
    await engine.put("limit", "api", b'{"rate": 7, "window": 50000}')
    starts: list[int] = []
    for _ in range(150):
        clock.advance(f"{chance.choice([0, 0, 1, 137, 999, 1_000, 4_321, 11_000, 50_000])}us")
        n = chance.randint(1, 4)
        granted = (await engine.take("api", n, new_id())).granted
        now = clock.now()
        inside = sum(1 for at in starts if at > now - window)
        nearly = sum(1 for at in starts if at > now - window - MILLISECOND)
        assert not granted or inside + n <= rate
        assert granted or nearly + n > rate
        starts += [now] * n * granted
