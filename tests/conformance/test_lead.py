"""lead, resign: one leader at a time per role, its term's number grows, and a deposed leader's writes are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Engine, Term
from taskmill.errors import StaleTerm
from tests.conformance.tools import Store, new
from tests.conformance.tools_b import deposed, guarded, led


async def test_one_leads_and_goes_on(engine: Engine, clock: ManualClock) -> None:
    term = await engine.lead("schedules", "ann")
    assert term is not None
    assert (term.role, term.holder) == ("schedules", "ann")
    assert await engine.lead("schedules", "bob") is None
    for _ in range(10):
        clock.advance("3s")
        assert await engine.lead("schedules", "ann") == term
        assert await engine.lead("schedules", "bob") is None


async def test_roles_are_led_apart(engine: Engine) -> None:
    first, second = await engine.lead("schedules", "ann"), await engine.lead("pruning", "bob")
    assert first is not None
    assert second is not None
    assert await engine.lead("schedules", "bob") is None


async def test_who_leads_is_told_to_whoever_asks(engine: Engine, store: Store, clock: ManualClock) -> None:
    other = await store.engine()
    assert await other.leaders(["schedules", "pruning"]) == ()
    first, second = await led(engine, "schedules", "ann"), await led(engine, "pruning", "bob")
    assert await other.leaders(["schedules", "pruning", "outbox"]) == (first, second)
    assert await other.leaders(["pruning"]) == (second,)
    await engine.resign(first)
    assert await other.leaders(["schedules", "pruning"]) == (second,)


async def test_a_silent_leader_leads_no_more(engine: Engine, clock: ManualClock) -> None:
    term = await led(engine, "schedules", "ann")
    clock.advance("3900ms")
    assert await engine.leaders(["schedules"]) == (term,)
    clock.advance("200ms")
    assert await engine.leaders(["schedules"]) == ()
    assert await engine.leaders(["schedules"]) == ()
    successor = await led(engine, "schedules", "bob")
    assert await engine.leaders(["schedules"]) == (successor,)


async def test_asking_who_leads_begins_no_term(engine: Engine) -> None:
    assert await engine.leaders(["schedules"]) == ()
    term = await led(engine, "schedules", "ann")
    assert await engine.leaders(["schedules"]) == (term,)


async def test_a_silent_leader_is_replaced(engine: Engine, store: Store, clock: ManualClock) -> None:
    other = await store.engine()
    term = await led(engine, "schedules", "ann")
    clock.advance("3900ms")
    assert await other.lead("schedules", "bob") is None
    clock.advance("200ms")
    successor = await other.lead("schedules", "bob")
    assert successor is not None
    assert successor.number > term.number
    assert await engine.lead("schedules", "ann") is None


async def test_setting_the_wall_clock_ends_no_term(engine: Engine, clock: ManualClock) -> None:
    term = await led(engine, "schedules", "ann")
    clock.step(5 * HOUR)
    assert await engine.lead("schedules", "bob") is None
    clock.step(-20 * HOUR)
    assert await engine.lead("schedules", "bob") is None
    assert await engine.lead("schedules", "ann") == term


async def test_who_comes_back_after_a_silence_has_a_new_term(engine: Engine, clock: ManualClock) -> None:
    old = await deposed(engine, clock, "schedules")
    clock.advance("5s")
    again = await led(engine, "schedules", "old")
    assert again.number > old.number + 1


async def test_resigning_lets_another_begin_at_once(engine: Engine) -> None:
    term = await led(engine, "schedules", "ann")
    await engine.resign(term)
    await engine.resign(term)
    successor = await engine.lead("schedules", "bob")
    assert successor is not None
    assert successor.number > term.number
    await engine.resign(term)
    assert await engine.lead("schedules", "ann") is None
    assert await engine.lead("schedules", "bob") == successor


async def test_who_resigned_may_begin_anew(engine: Engine) -> None:
    term = await led(engine, "schedules", "ann")
    await engine.resign(term)
    assert (await led(engine, "schedules", "ann")).number > term.number


async def test_of_many_one_leads(engine: Engine, store: Store, clock: ManualClock) -> None:
    engines = [engine, *await store.engines(3)]
    numbers = []
    for _ in range(5):
        tries = [engines[n % 4].lead("schedules", f"holder-{n}") for n in range(12)]
        terms = [term for term in await guarded(asyncio.gather(*tries)) if term is not None]
        assert len(terms) == 1
        numbers.append(terms[0].number)
        clock.advance("5s")
    assert numbers == sorted(set(numbers))


async def prune(engine: Engine, term: Term) -> object:
    return await engine.prune(10, term)


async def outbox(engine: Engine, term: Term) -> object:
    return await engine.outbox("ended", "", 10, term)


async def fire(engine: Engine, term: Term) -> object:
    put = (await engine.items("schedule"))[0]
    return await engine.fire("nightly", put.version, [new()], None, term)


WRITES = [prune, outbox, fire]


@pytest.mark.parametrize("write", WRITES)
async def test_a_deposed_leader_is_refused(engine: Engine, clock: ManualClock, write: Callable[[Engine, Term], Awaitable[object]]) -> None:
    await engine.put("schedule", "nightly", b'{"overlap": "allow"}')
    old = await deposed(engine, clock)
    with pytest.raises(StaleTerm):
        await write(engine, old)
    assert (await engine.list()).tasks == ()
    await write(engine, await led(engine, holder="new"))


@pytest.mark.parametrize("write", WRITES)
async def test_a_leader_that_resigned_is_refused(engine: Engine, write: Callable[[Engine, Term], Awaitable[object]]) -> None:
    await engine.put("schedule", "nightly", b'{"overlap": "allow"}')
    term = await led(engine)
    await write(engine, term)
    await engine.resign(term)
    await led(engine, holder="another")
    with pytest.raises(StaleTerm):
        await write(engine, term)


@pytest.mark.parametrize("write", WRITES)
async def test_a_number_that_was_never_given_is_refused(engine: Engine, write: Callable[[Engine, Term], Awaitable[object]]) -> None:
    await engine.put("schedule", "nightly", b'{"overlap": "allow"}')
    term = await led(engine)
    with pytest.raises(StaleTerm):
        await write(engine, Term(term.role, term.holder, term.number + 1))
    with pytest.raises(StaleTerm):
        await write(engine, Term("never-led", term.holder, term.number))
