"""wakeups and events: "there may be work", a hint; and "this happened", in order, without a gap that is not told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Ending, Engine, Target
from taskmill.events import Event, Kind
from taskmill.task import ErrorInfo, Progress, State, Unique, new_id
from tests.conformance.tools import Store, new, record, step, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import Made, guarded, led, make

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
async def listening(engine: Engine) -> AsyncIterator[Listener]:
    async with aclosing(await engine.events()) as events:
        yield Listener(events)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_submit_wakes_whoever_waits_for_work(engine: Engine, store: Store, where: str) -> None:
    other = engine if where == "here" else await store.engine()
    async with aclosing(await engine.wakeups()) as wakeups:
        for _ in range(3):
            await submit_one(other)
            await guarded(anext(wakeups))


@pytest.mark.parametrize("what", ["retry", "signal", "requeue", "resumed queue", "freed limit"])
async def test_whatever_makes_a_task_ready_is_a_hint(engine: Engine, store: Store, what: str) -> None:
    """A worker that sleeps on `next_at` would otherwise sleep too long."""
    other = await store.engine()
    await other.put("limit", "one", b'{"cap": 1}')
    await other.put("pause", "queue:paused", b"{}")
    made = await make(other, {"signal": State.WAITING, "requeue": State.DEAD}.get(what, State.RUNNING), limits=("one",) if what == "freed limit" else ())
    await submit_one(other, queue=made.holder.queues[0], limits=("one",))
    async with aclosing(await engine.wakeups()) as wakeups:
        await made_ready(other, made, what)
        await guarded(anext(wakeups))


async def made_ready(engine: Engine, made: Made, what: str) -> None:
    if what == "signal":
        await engine.signal(made.id, "go", b"1", new_id())
    elif what == "requeue":
        await engine.requeue([Target(made.id)])
    elif what == "resumed queue":
        await engine.drop("pause", "queue:paused")
    else:
        assert made.claimed
        await made.holder.done(made.claimed, ending=Ending.RETRY if what == "retry" else Ending.COMPLETED)


async def test_two_listeners_are_both_woken(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with aclosing(await engine.wakeups()) as one, aclosing(await engine.wakeups()) as two:
        await submit_one(other)
        await guarded(anext(one))
        await guarded(anext(two))


async def test_a_listener_that_left_harms_nobody(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with aclosing(await engine.wakeups()) as left, aclosing(await engine.events()) as also_left:
        await submit_one(other)
        await guarded(anext(left))
        await guarded(anext(also_left))
    await submit_one(other)
    async with aclosing(await engine.wakeups()) as wakeups:
        await submit_one(other)
        await guarded(anext(wakeups))


async def test_the_life_of_a_task_without_gaps(engine: Engine, store: Store, clock: ManualClock) -> None:
    other = await store.engine()
    async with listening(engine) as listener:
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
        Kind.SIGNALLED,
        Kind.STARTED,
        Kind.COMPLETED,
    ]


async def test_every_event_of_a_task_says_whose_it_is(engine: Engine, store: Store, clock: ManualClock) -> None:
    """Type, queue and tenant: whoever passes events on needs to ask nobody for whom they are."""
    other = await store.engine()
    async with listening(engine) as listener:
        id = await submit_one(other, tenant="shop")
        hand = await worker(other)
        claimed = await hand.claim_one()
        await other.checkpoint([step(claimed, progress=Progress(0.5, "half")), step(claimed, "paid", 1)])
        await hand.done(claimed, ending=Ending.SNOOZED)
        await hand.done(await hand.claim_one(), ending=Ending.WAITING, signals=("go",))
        await other.signal(id, "go", b"1", new_id())
        await hand.done(await hand.claim_one(), ending=Ending.WAITING, deadline=1_000_000)
        clock.advance(2)
        await other.recover_lost()
        await hand.done(await hand.claim_one(), ending=Ending.RELEASED)
        await hand.claim_one()
        await other.cancel([Target(id)])
        await hand.finish(*hand.held.values(), ending=Ending.CANCELLED)
        await other.requeue([Target(id)])
        await other.cancel([Target(id)])
        await other.delete([Target(id)])
        await listener.until(Kind.DELETED, id)
    heard = [event for event in listener.heard if event.subject == id]
    assert {Kind.PROGRESS, Kind.SNOOZED, Kind.WAITING, Kind.SIGNALLED, Kind.READY, Kind.CANCELLING, Kind.CANCELLED} <= {event.kind for event in heard}
    assert [event.version for event in heard] == list(range(1, len(heard) + 1))
    for event in heard:
        assert (event.data["type"], event.data["queue"], event.data["tenant"]) == ("work", "default", "shop"), event
    assert {event.data.get("checkpoint") for event in heard if event.kind is Kind.PROGRESS} == {None, "paid"}


async def test_a_replaced_task_says_whose_it_is(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with listening(engine) as listener:
        unique = Unique("one", on_conflict="replace")
        id = await submit_one(other, tenant="shop", unique=unique)
        await other.submit([new(2, tenant="shop", unique=unique)])
        told = await listener.until(Kind.REPLACED, id)
    assert told.data == {"type": "work", "queue": "default", "tenant": "shop"}


async def test_the_end_of_an_attempt_says_which_and_how_long(engine: Engine, store: Store, clock: ManualClock) -> None:
    other = await store.engine()
    hand = await worker(other)
    async with listening(engine) as listener:
        id = await submit_one(other)
        for ending in (Ending.RETRY, Ending.CRASHED, Ending.DEAD):
            claimed = await hand.claim_one()
            clock.advance(2)
            await hand.beat()
            await hand.done(claimed, ending=ending, started_after=500_000, **({"error": ErrorInfo("broke", "")} if ending is Ending.CRASHED else {}))
        await other.requeue([Target(id)])
        claimed = await hand.claim_one()
        clock.advance(1)
        await hand.done(claimed)
        await listener.until(Kind.COMPLETED, id)
    ends = [event for event in listener.heard if "duration" in event.data]
    assert [(event.kind, event.data["attempt"], event.data.get("error")) for event in ends] == [
        (Kind.RETRYING, 1, "oops"),
        (Kind.READY, 2, "broke"),
        (Kind.DEAD, 3, "oops"),
        (Kind.COMPLETED, 4, None),
    ]
    assert [ends[n].data["duration"] for n in (0, 2, 3)] == [1_500_000, 1_500_000, 1_000_000]


async def test_the_ends_that_nobody_worked_for(engine: Engine, store: Store) -> None:
    other = await store.engine()
    async with listening(engine) as listener:
        cancelled, dead = await submit_one(other), await make(other, State.DEAD)
        await other.cancel([Target(cancelled)])
        await other.requeue([Target(dead.id)])
        for kind, subject in ((Kind.CANCELLED, cancelled), (Kind.READY, dead.id)):  # of two tasks, either may be told first
            if subject not in {event.subject for event in listener.heard if event.kind is kind}:
                await listener.until(kind, subject)
        heard_cancelled, heard_dead = listener.of(cancelled), listener.of(dead.id)
    assert heard_cancelled == [(Kind.SUBMITTED, 1), (Kind.CANCELLED, 2)]
    assert heard_dead == [(Kind.SUBMITTED, 1), (Kind.STARTED, 2), (Kind.DEAD, 3), (Kind.READY, 4)]


async def test_every_change_of_the_version_is_told(engine: Engine, store: Store) -> None:
    """A listener that sees a gap must take it for a loss; so there is none, whatever raised the version."""
    other = await store.engine()
    async with listening(engine) as listener:
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
    async with listening(engine) as listener:
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
    async with listening(first) as one, listening(second) as two:
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
    async with listening(engine) as listener:
        late = await submit_one(other)
        assert (await listener.next()).subject == late
        assert listener.of(early) == []


async def test_a_listener_that_slept_is_told_what_it_missed(engine: Engine, store: Store, clock: ManualClock) -> None:
    """Events are kept only while somebody listens; whoever was taken for gone and comes back gets all of them, or `resync`."""
    other = await store.engine()
    async with listening(engine) as listener:
        await listener.until(Kind.SUBMITTED, await submit_one(other))
        clock.advance("1d")
        missed = await submit_one(other)
        async with listening(other) as second:
            await second.until(Kind.SUBMITTED, await submit_one(other))
        event = await listener.next()
    assert event.kind is Kind.RESYNC or (event.kind, event.subject) == (Kind.SUBMITTED, missed)


async def test_a_listener_that_fell_behind_is_told(engine: Engine, store: Store) -> None:
    """Either everything comes, or `resync` says that something did not; never a silent gap."""
    other = await store.engine()
    async with listening(engine) as listener:
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
