"""wakeups and events: "there may be work", a hint; and "this happened", in order, without a gap that is not told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import cast

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Target
from taskmill.events import Event, Kind
from taskmill.task import Progress, State, new_id
from tests.conformance.tools import Store, new, record, step, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import guarded, led, make

FLOOD = 12_000
"""More events than a listener that does not read is kept waiting for."""


class Listener:
    """Reads events one by one. What it has heard it keeps; `until` goes on from there."""

    def __init__(self, source: AsyncIterator[Event]) -> None:
        self.source = source
        self.heard: list[Event] = []

    async def next(self) -> Event:
        event = await guarded(anext(self.source))
        self.heard.append(event)
        return event

    async def until(self, kind: Kind, subject: str) -> Event:
        while True:
            event = await self.next()
            if (event.kind, event.subject) == (kind, subject):
                return event

    def of(self, subject: str) -> list[tuple[Kind, int]]:
        return [(event.kind, event.version) for event in self.heard if event.subject == subject]


@asynccontextmanager
async def listening(engine: Engine, elsewhere: Engine) -> AsyncIterator[Listener]:
    """A listener that hears: something is made to happen until the first event has come."""
    async with aclosing(cast("AsyncGenerator[Event, None]", engine.events())) as events:
        listener = Listener(events)
        first = asyncio.ensure_future(listener.next())
        while not first.done():
            await submit_one(elsewhere, queue="noise")
            await asyncio.wait({first}, timeout=0.05)
        await first
        last = await submit_one(elsewhere, queue="noise")
        await listener.until(Kind.SUBMITTED, last)
        yield listener


async def woken(engine: Engine, elsewhere: Engine, **fields: object) -> None:
    """Tasks are submitted until the hint comes: one that was given before the listener listened may be missed."""
    async with aclosing(cast("AsyncGenerator[None, None]", engine.wakeups())) as wakeups:
        hint = asyncio.ensure_future(anext(wakeups))
        while not hint.done():
            await submit_one(elsewhere, **fields)
            await asyncio.wait({hint}, timeout=0.05)
        await hint


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_submit_wakes_whoever_waits_for_work(engine: Engine, store: Store, where: str) -> None:
    await guarded(woken(engine, engine if where == "here" else await store.engine()))


async def test_a_listener_is_woken_again_and_again(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with aclosing(cast("AsyncGenerator[None, None]", engine.wakeups())) as wakeups:
        for _ in range(3):
            hint = asyncio.ensure_future(anext(wakeups))
            while not hint.done():
                await submit_one(other)
                await asyncio.wait({hint}, timeout=0.05)
            await hint


async def test_two_listeners_are_both_woken(engine: Engine, store: Store) -> None:
    other = await store.engine()
    await guarded(asyncio.gather(woken(engine, other), woken(engine, other)))


async def test_the_life_of_a_task_without_gaps(engine: Engine, store: Store, clock: ManualClock) -> None:
    other = await store.engine()
    async with listening(engine, other) as listener:
        id = await submit_one(other)
        hand = await worker(other)
        await hand.done(await hand.claim_one(), ending=Ending.RETRY)
        clock.advance(1)
        await hand.done(await hand.claim_one(), ending=Ending.SNOOZED)
        await hand.done(await hand.claim_one(), ending=Ending.WAITING, signals=("go",))
        await other.signal(id, "go", b"1", new_id())
        claimed = await hand.claim_one()
        await hand.done(claimed)
        await listener.until(Kind.COMPLETED, id)
        heard = listener.of(id)
        final = await record(other, id)
    assert heard[0] == (Kind.SUBMITTED, 1)
    assert heard[-1] == (Kind.COMPLETED, final.version)
    assert [version for _, version in heard] == list(range(1, final.version + 1))
    assert [kind for kind, _ in heard if kind is not Kind.READY] == [
        Kind.SUBMITTED,
        Kind.STARTED,
        Kind.RETRYING,
        Kind.STARTED,
        Kind.SNOOZED,
        Kind.STARTED,
        Kind.WAITING,
        Kind.STARTED,
        Kind.COMPLETED,
    ]


async def test_the_ends_that_nobody_worked_for(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with listening(engine, other) as listener:
        cancelled, dead = await submit_one(other), await make(other, State.DEAD)
        await other.cancel([Target(cancelled)])
        await other.requeue([Target(dead.id)])
        last = await submit_one(other)
        await listener.until(Kind.SUBMITTED, last)
        heard_cancelled, heard_dead = listener.of(cancelled), listener.of(dead.id)
    assert heard_cancelled == [(Kind.SUBMITTED, 1), (Kind.CANCELLED, 2)]
    assert heard_dead == [(Kind.SUBMITTED, 1), (Kind.STARTED, 2), (Kind.DEAD, 3), (Kind.READY, 4)]


async def test_every_change_of_the_version_is_told(engine: Engine, store: Store) -> None:
    """A listener that sees a gap must take it for a loss; so there is none, whatever raised the version."""
    other = await store.engine()
    async with listening(engine, other) as listener:
        made = await make(other, State.RUNNING)
        assert made.claimed
        await other.signal(made.id, "go", b"1", new_id())
        assert await other.checkpoint([step(made.claimed, "one", 1, progress=Progress(0.5))]) == ()
        await other.cancel([Target(made.id)])
        await made.holder.done(made.claimed, ending=Ending.RELEASED)
        await listener.until(Kind.CANCELLED, made.id)
        versions = [version for _, version in listener.of(made.id)]
    assert sorted(set(versions)) == list(range(1, versions[-1] + 1))


async def test_what_is_no_task_is_told_too(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with listening(engine, other) as listener:
        hand = await worker(other)
        await other.put("limit", "mail", b'{"cap": 1}')
        await led(other, "schedules", "ann")
        await other.leave(hand.id)
        last = await submit_one(other)
        await listener.until(Kind.SUBMITTED, last)
        kinds = {event.kind for event in listener.heard}
    assert {Kind.WORKER_JOINED, Kind.WORKER_LEFT, Kind.SETTING_CHANGED, Kind.LEADER_CHANGED} <= kinds


async def test_two_listeners_hear_the_same(engine: Engine, store: Store) -> None:
    first, second = await store.engines(2)
    async with listening(first, engine) as one, listening(second, engine) as two:
        ids = await submit_many(engine, 30)
        hand = await worker(engine)
        await hand.done(*await hand.claim(30))
        await engine.cancel([Target(last := await submit_one(engine))])
        await one.until(Kind.CANCELLED, last)
        await two.until(Kind.CANCELLED, last)
        assert [[listener.of(id) for id in ids] for listener in (one, two)] == [[[(Kind.SUBMITTED, 1), (Kind.STARTED, 2), (Kind.COMPLETED, 3)]] * 30] * 2


async def test_what_happened_before_is_not_told(engine: Engine, store: Store) -> None:
    other = await store.engine()
    early = await submit_one(other)
    async with listening(engine, other) as listener:
        assert listener.of(early) == []


async def test_a_listener_that_fell_behind_is_told(engine: Engine, store: Store) -> None:
    """Either everything comes, or `resync` says that something did not; never a silent gap."""
    other = await store.engine()
    async with listening(engine, other) as listener:
        ids: list[str] = []
        for start in range(0, FLOOD, 4_000):
            ids += await submit(other, *(new(n) for n in range(start, start + 4_000)))
        last = ids[-1]
        while True:
            event = await listener.next()
            if (event.kind, event.subject) == (Kind.SUBMITTED, last):
                break
            if event.kind is Kind.RESYNC:
                break
        heard = [event.subject for event in listener.heard if event.kind is Kind.SUBMITTED]
        missed = set(ids) - set(heard)
        assert not missed or any(event.kind is Kind.RESYNC for event in listener.heard)
        after = await submit_one(other)
        await listener.until(Kind.SUBMITTED, after)
