"""A waiting task that nothing will wake is found, whatever made it: recovery makes it ready, and `check` says so."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine
from taskmill.task import Edge, State, new_id
from tests.conformance.damage import fell_unheard
from tests.conformance.tools import Store, ids_of, new, state, submit, worker
from tests.conformance.tools_b import after, make


async def stuck(engine: Engine, store: Store, *, counted: bool) -> str:
    child = new(delay=24 * HOUR)
    parent = after(child)
    await submit(engine, child, parent)
    fell_unheard(store.url, parent.id, child.id, counted=counted)
    return parent.id


async def recovered(engine: Engine, clock: ManualClock) -> None:
    """Recovery may look for such tasks once a minute."""
    for _ in range(3):
        clock.advance("61s")
        while (await engine.recover_lost()).more:
            pass


async def codes(engine: Engine) -> list[tuple[str, str]]:
    return [(finding.level, finding.code) for finding in await engine.check()]


@pytest.mark.parametrize("counted", [False, True])
async def test_recovery_makes_it_ready(engine: Engine, store: Store, clock: ManualClock, *, counted: bool) -> None:
    id = await stuck(engine, store, counted=counted)
    assert await state(engine, id) is State.WAITING
    await recovered(engine, clock)
    hand = await worker(engine)
    [claimed] = await hand.claim(5)
    assert claimed.id == id
    await hand.done(claimed)
    assert await state(engine, id) is State.COMPLETED


@pytest.mark.parametrize("counted", [False, True])
async def test_check_finds_it(engine: Engine, store: Store, clock: ManualClock, *, counted: bool) -> None:
    assert ("error", "stuck_waiting") not in await codes(engine)
    await stuck(engine, store, counted=counted)
    assert ("error", "stuck_waiting") in await codes(engine)
    [finding] = [each for each in await engine.check() if each.code == "stuck_waiting"]
    assert finding.message
    assert finding.hint
    await recovered(engine, clock)
    assert ("error", "stuck_waiting") not in await codes(engine)


async def test_many_are_all_found(engine: Engine, store: Store, clock: ManualClock) -> None:
    ids = [await stuck(engine, store, counted=n % 2 == 0) for n in range(10)]
    await recovered(engine, clock)
    assert sorted(ids_of(await (await worker(engine)).claim(20))) == sorted(ids)


async def test_those_that_wait_for_a_reason_are_left_alone(engine: Engine, clock: ManualClock) -> None:
    """An open edge, a seal, a signal, a deadline, a task that comes later."""
    child = new(delay=24 * HOUR)
    behind, sealed = after(child), new(sealed=True)
    await submit(engine, child, behind, sealed)
    broken = new(sealed=True)
    await submit(engine, broken, new(parent=Edge(broken.id), delay=24 * HOUR))
    await engine.submit([], unseal=[broken.id])
    reserved = new()
    await engine.submit([reserved], reserved=True)
    later = after(reserved)
    await submit(engine, later)
    waits = await make(engine, State.WAITING)
    timed = await make(engine, State.RUNNING)
    assert timed.claimed
    await timed.holder.done(timed.claimed, ending=Ending.WAITING, signals=("go",), deadline=2 * HOUR)
    await recovered(engine, clock)
    assert ("error", "stuck_waiting") not in await codes(engine)
    for id in (behind.id, sealed.id, broken.id, later.id, waits.id, timed.id):
        assert await state(engine, id) is State.WAITING
    await engine.signal(waits.id, "go", b"1", new_id())
    assert await state(engine, waits.id) is State.PENDING
