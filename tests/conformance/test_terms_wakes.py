"""Terms never repeat, also over a store that was made anew; a setting that no step obeys wakes no worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Stream
from tests.conformance.tools import Store, submit_one
from tests.conformance.tools_b import guarded, led

EPOCH = 1_577_836_800_000_000
"""2020, from which terms and tokens count microseconds."""

ROLES = ("maintenance", "schedules", "outbox", "mine")


@pytest.mark.parametrize("role", ROLES)
async def test_a_term_has_the_number_of_its_time(engine: Engine, clock: ManualClock, role: str) -> None:
    term = await led(engine, role, "ann")
    assert term.number >= clock.now() - EPOCH
    assert term.number < 1 << 53


async def test_a_term_grows_where_the_clock_stands(engine: Engine) -> None:
    numbers = []
    for _ in range(5):
        term = await led(engine, "mine", "ann")
        numbers.append(term.number)
        await engine.resign(term)
    assert numbers == sorted(set(numbers))


async def test_a_term_grows_where_the_clock_goes_back(engine: Engine, clock: ManualClock) -> None:
    first = await led(engine, "mine", "ann")
    await engine.resign(first)
    clock.step(-3_600_000_000)
    assert (await led(engine, "mine", "bob")).number > first.number


async def test_a_new_store_does_not_repeat_the_terms_of_the_old(engine: Engine, second_engine: Engine, clock: ManualClock) -> None:
    numbers = []
    for _ in range(20):
        term = await led(engine, "mine", "ann")
        numbers.append(term.number)
        await engine.resign(term)
    clock.advance("1ms")
    assert (await led(second_engine, "mine", "ann")).number > max(numbers)


@pytest.mark.parametrize("kind", ["api_key", "endpoint", "note"])
async def test_a_setting_that_no_step_obeys_wakes_no_queue(engine: Engine, store: Store, kind: str) -> None:
    """Twenty of them, each told before the next: a store may give a few hints by itself, ever more rarely, and none for these."""
    other = await store.engine()
    await submit_one(other)
    async with aclosing(await engine.events()) as events, aclosing(await engine.wakeups()) as wakeups:
        hints = Counter[str]()
        counting = asyncio.create_task(count(wakeups, hints))
        for number in range(20):
            await other.put(kind, f"name-{number}", b"{}")
            while (await guarded(anext(events))).subject != f"{kind}/name-{number}":
                pass
        assert hints.total() < 10
        counting.cancel()
        with suppress(asyncio.CancelledError):
            await counting


async def count(wakeups: Stream[None], hints: Counter[str]) -> None:
    async for _ in wakeups:
        hints["heard"] += 1


@pytest.mark.parametrize("kind", ["queue", "limit", "pause"])
async def test_a_setting_that_steps_obey_is_a_hint(engine: Engine, store: Store, kind: str) -> None:
    other = await store.engine()
    value = {"queue": b'{"weights": {"a": 2}}', "limit": b'{"cap": 2}', "pause": b"{}"}[kind]
    name = "queue:line" if kind == "pause" else "line"
    await submit_one(other, queue="line")
    async with aclosing(await engine.wakeups()) as wakeups:
        await other.put(kind, name, value)
        await other.drop(kind, name)
        await guarded(anext(wakeups))
