"""Recovery, pruning and the outbox as loops; and all of them together while the store is away, and while others do the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from taskmill.clock import DAY, HOUR, MILLISECOND, MINUTE, SECOND, ManualClock, SystemClock
from taskmill.config import Settings
from taskmill.engine import Call, Ending, Engine, Entry, Moved, Retention, observed
from taskmill.errors import StoreError
from taskmill.events import Kind
from taskmill.maintenance import Maintenance
from taskmill.maintenance.loop import LONGEST_WAIT, Loop, Outage, backoff
from taskmill.maintenance.outbox import Outbox
from taskmill.maintenance.pruning import Pruning, retention_of
from taskmill.maintenance.recovery import Recovery
from taskmill.task import Gone, State
from tests.conformance.tools import all_tasks, new, state, submit, submit_many, submit_one, worker
from tests.surfaces.maintenance import HANGS, logged, made, opened, running, schedule

KEEP_NOTHING = Retention(completed=0, dead=0, cancelled=0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock) -> AsyncIterator[Engine]:
    async with opened(clock=clock) as engine:
        yield engine


async def end(engine: Engine, number: int) -> list[str]:
    """So many tasks that have run and ended, in this order."""
    hand = await worker(engine, "work")
    ids = await submit_many(engine, number)
    while claimed := await hand.claim(1):
        await hand.done(*claimed)
    return ids


# Any loop


async def test_a_loop_goes_on_whatever_happens_in_it() -> None:
    """Each error is told once, with where it came from, until a turn has gone well."""
    script: list[Exception | int] = [ValueError("one"), ValueError("one"), KeyError("two"), 0, ValueError("one")]
    over = asyncio.Event()

    async def turn() -> int:
        if not script:
            over.set()
            return HOUR
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    with logged() as log:
        async with asyncio.timeout(HANGS), running(Loop("testing", turn, Outage(SystemClock())).run()):
            await over.wait()
    assert [record.exc_info[0] for record in log.records if record.exc_info] == [ValueError, KeyError, ValueError]


def test_waits_grow_differ_and_are_bounded() -> None:
    waits = [[backoff(failures) for _ in range(50)] for failures in range(1, 60)]
    assert all(len(set(several)) > 1 for several in waits)
    assert max(waits[0]) <= 100 * MILLISECOND
    assert all(LONGEST_WAIT // 2 <= wait <= LONGEST_WAIT for wait in waits[-1])


def test_an_outage_is_told_once_by_however_many_notice_it(clock: ManualClock) -> None:
    outage = Outage(clock)
    with logged() as log:
        for _ in range(3):
            outage.noticed("a", StoreError("gone"))
            outage.noticed("b", StoreError("gone"))
        clock.advance("7s")
        outage.over("a")
        outage.over("c")
        assert len(log.records) == 1
        outage.over("b")
        outage.over("b")
    assert len(log.records) == 2
    assert "7.0 s" in log.records[1].getMessage()


# Recovery


async def test_recovery_brings_back_what_a_lost_worker_held(engine: Engine, clock: ManualClock) -> None:
    recovery = Recovery(engine)
    await recovery.once()
    hand = await worker(engine, "work")
    task = await submit_one(engine)
    await hand.claim_one()
    with logged() as log:
        for _ in range(10):
            clock.advance("500ms")
            await recovery.once()
    assert await state(engine, task) is State.PENDING
    assert log.lines(hand.id) != []


async def test_recovery_asks_again_at_once_while_there_is_more(engine: Engine, clock: ManualClock) -> None:
    await submit(engine, *(new(expires_at=clock.now() + SECOND) for _ in range(25)))
    clock.advance("2s")
    recovery = Recovery(engine, batch=10)
    assert [(await recovery.once()).moved for _ in range(4)] == [10, 10, 5, 0]


async def test_the_loop_of_recovery(tmp_path: Path) -> None:
    """More than a batch, and an interval that never ends: only asking again at once gets through."""
    async with opened(tmp_path / "s.db") as engine:
        ids = await submit(engine, *(new(expires_at=engine.clock.now() + MILLISECOND) for _ in range(25)))
        await engine.wait([ids[0]], 5 * MILLISECOND)
        async with running(Recovery(engine, interval=HOUR, batch=10).run()):
            for id in ids:
                assert await engine.wait([id], int(HANGS) * SECOND) == {id: State.CANCELLED}


# Pruning


async def test_pruning_goes_by_the_settings(engine: Engine, clock: ManualClock) -> None:
    settings = Settings(history_retention=HOUR, dead_retention=DAY)
    assert retention_of(settings) == Retention(completed=HOUR, dead=DAY, cancelled=HOUR)
    [done] = await end(engine, 1)
    live = await submit_one(engine)
    pruning = Pruning(engine, "me", retention_of(settings))
    clock.advance("59m")
    assert await pruning.once() == Moved(0, False)
    clock.advance("2m")
    assert (await pruning.once()).moved == 1
    assert await engine.get([done]) == (Gone(done, State.COMPLETED),)
    assert await state(engine, live) is State.PENDING


async def test_pruning_is_bounded_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as engine:
        await end(engine, 25)
        last = Pruning(engine, "me", KEEP_NOTHING, batch=10)
        assert [((moved := await last.once()).moved, moved.more) for _ in range(3)] == [(10, True), (10, True), (5, False)]


async def test_pruning_takes_its_minute(engine: Engine, clock: ManualClock) -> None:
    """A round goes on at once while there is more; the next one begins a minute later."""
    await end(engine, 25)
    clock.advance("1s")
    pruning = Pruning(engine, "me", KEEP_NOTHING, batch=10)
    assert [await pruning._turn() for _ in range(4)][:2] == [0, 0]
    assert await all_tasks(engine) == []
    await end(engine, 1)
    for _ in range(59):
        clock.advance("1s")
        await pruning._turn()
    assert len(await all_tasks(engine)) == 1
    clock.advance("1s")
    await pruning._turn()
    assert await all_tasks(engine) == []


async def test_a_pruner_that_was_deposed_stops_quietly(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path / "s.db", clock) as one, opened(tmp_path / "s.db", clock) as two:
        first, second = Pruning(one, "first", KEEP_NOTHING, beat=HOUR), Pruning(two, "second", KEEP_NOTHING)
        await first.once()
        await end(one, 3)
        clock.advance("5s")
        assert await second.leader.lead() is not None
        assert await first.once() == Moved(0, False)
        assert first.leader.term is None
        assert (await second.once()).moved == 3


# Outbox


class Receiver:
    """Where entries go; fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls = 0
        self.subjects: list[str] = []
        self.news = asyncio.Event()

    async def __call__(self, entries: Sequence[Entry]) -> None:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the other end does not answer")
        self.subjects += [entry.subject for entry in entries]
        self.news.set()

    async def until(self, number: int) -> None:
        while len(self.subjects) < number:
            self.news.clear()
            await self.news.wait()


async def test_what_ended_is_delivered_in_order_and_cut(engine: Engine) -> None:
    receiver = Receiver()
    outbox = Outbox(engine, "me", {"ended": receiver}, batch=10)
    assert await outbox.once() == 0
    ids = await end(engine, 25)
    assert [await outbox.once() for _ in range(4)] == [10, 10, 5, 0]
    assert receiver.subjects == ids
    successor = Receiver()
    await outbox.leader.resign()
    assert await Outbox(engine, "other", {"ended": successor}).once() == 0
    assert successor.calls == 0


async def test_what_was_not_delivered_stays_and_its_age_is_told(engine: Engine, clock: ManualClock) -> None:
    receiver = Receiver(failures=2)
    outbox = Outbox(engine, "me", {"ended": receiver})
    await outbox.once()
    ids = await end(engine, 3)
    clock.advance("3s")
    with logged() as log:
        assert [await outbox.once(), await outbox.once()] == [0, 0]
        assert outbox.lag == {"ended": 3 * SECOND}
        assert await outbox.once() == 3
    assert await outbox.once() == 0
    assert outbox.lag == {"ended": 0}
    assert receiver.subjects == ids
    assert [bool(record.exc_info) for record in log.records] == [True, False]


async def test_one_that_fails_holds_up_no_other(engine: Engine) -> None:
    broken, good = Receiver(failures=1_000_000), Receiver()
    outbox = Outbox(engine, "me", {"ended": broken, "dead": Receiver(), "audit": good})
    await outbox.once()
    await end(engine, 2)
    await engine.put("limit", "x", b'{"cap": 1}')
    await outbox.once()
    assert good.subjects == ["limit/x"]
    assert broken.calls == 1


async def test_a_successor_delivers_what_the_first_did_not_get_to_cut(engine: Engine, clock: ManualClock) -> None:
    first, second = Receiver(), Receiver()
    one, two = Outbox(engine, "first", {"ended": first}), Outbox(engine, "second", {"ended": second})
    await one.once()
    ids = await end(engine, 3)
    assert await one.once() == 3
    assert await two.once() == 0
    clock.advance("5s")
    assert await two.once() == 3
    assert (first.subjects, second.subjects) == (ids, ids)
    assert await one.once() == 0


async def test_without_deliverers_it_does_not_lead(engine: Engine) -> None:
    outbox = Outbox(engine, "me", {})
    assert await outbox.once() == 0
    await outbox.run()
    assert outbox.leader.term is None
    assert await engine.items("outbox") == ()


async def test_the_loops_of_the_outbox(tmp_path: Path) -> None:
    """One receiver hangs, one fails at first: the term is kept, the others get theirs, and what failed comes."""
    hanging = asyncio.Event()

    async def hang(_: Sequence[Entry]) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with opened(tmp_path / "s.db") as engine:
        ended, audit = Receiver(failures=2), Receiver()
        outbox = Outbox(engine, "me", {"dead": hang, "ended": ended, "audit": audit}, beat=50 * MILLISECOND)
        for kind in ("dead", "ended", "audit"):
            await engine.put("outbox", kind, b"{}", operator=False)
        async with asyncio.timeout(HANGS), running(outbox.run()):
            await engine.put("limit", "x", b'{"cap": 1}')
            hand = await worker(engine, "work")
            [id] = await submit(engine, new())
            await hand.done(await hand.claim_one(), ending=Ending.DEAD)
            await hanging.wait()
            await ended.until(1)
            await audit.until(1)
        assert (ended.subjects, audit.subjects) == ([id], ["limit/x"])
        assert await engine.lead("outbox", "successor") is not None


async def test_a_delivery_that_takes_long_does_not_cost_the_term(engine: Engine, clock: ManualClock) -> None:
    """Otherwise a second process would deliver the same entries at the same time."""
    hanging, renewed = asyncio.Event(), asyncio.Event()

    async def hang(_: Sequence[Entry]) -> None:
        hanging.set()
        await asyncio.Event().wait()

    def tell(call: Call) -> None:
        if call.verb == "lead":
            renewed.set()

    await engine.put("outbox", "ended", b"{}", operator=False)
    await end(engine, 1)
    outbox = Outbox(observed(engine, tell), "me", {"ended": hang}, beat=20 * MILLISECOND)
    async with asyncio.timeout(HANGS), running(outbox.run()):
        await hanging.wait()
        for _ in range(3):
            renewed.clear()
            clock.advance("3s")
            await renewed.wait()
        assert await engine.lead("outbox", "rival") is None


# Everything


async def test_a_round_of_everything(engine: Engine, clock: ManualClock) -> None:
    receiver = Receiver()
    maintenance = Maintenance(engine, Settings(history_retention=MINUTE), "me", {"ended": receiver})
    assert await maintenance.next_at() is None
    assert not await maintenance.once()
    await engine.put("schedule", "tick", schedule("@every 1h"))
    await maintenance.once()
    next_at = await maintenance.next_at()
    assert next_at is not None
    clock.advance((next_at - clock.now()) / SECOND)
    assert await maintenance.once()
    assert await made(engine) == {"tick": [next_at]}
    hand = await worker(engine, "work")
    await hand.done(await hand.claim_one())
    assert await maintenance.once()
    assert len(receiver.subjects) == 1
    await maintenance.once()
    clock.advance("61s")
    await maintenance.once()
    assert await all_tasks(engine) == []
    assert not await maintenance.once()


async def test_any_number_of_processes_do_it(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path / "s.db", clock) as one, opened(tmp_path / "s.db", clock) as two, opened(tmp_path / "s.db", clock) as three:
        every = [Maintenance(engine, Settings(), f"m{n}") for n, engine in enumerate((one, two, three))]
        await one.put("schedule", "tick", schedule("* * * * *", misfire="all"))
        for _ in range(40):
            await asyncio.gather(*(maintenance.once() for maintenance in every))
            clock.advance("30s")
        times = (await made(one))["tick"]
        assert len(times) == len(set(times)) == 19
        leaders = [maintenance.schedules.leader.term for maintenance in every]
        assert len([term for term in leaders if term is not None]) >= 1


async def test_the_store_is_locked_and_free_again(tmp_path: Path) -> None:
    """One line when it goes and one when it is back; then all work goes on without anybody's help."""
    async with opened(tmp_path / "s.db") as other, opened(tmp_path / "s.db", busy_timeout=20 * MILLISECOND) as engine:
        receiver = Receiver()
        maintenance = Maintenance(engine, Settings(recovery_interval=20 * MILLISECOND, beat=20 * MILLISECOND), "me", {"ended": receiver})
        await other.put("schedule", "tick", schedule("* * * * * *"))
        with logged() as log:
            async with asyncio.timeout(HANGS), running(maintenance.run()):
                async with other.transaction() as tx:
                    await asyncio.to_thread(tx.execute, "SELECT 1")
                    await log.until("does not answer")
                await log.until("answers again")
                async with aclosing(await other.events()) as events:
                    async for event in events:
                        if event.kind is Kind.SUBMITTED:
                            break
                hand = await worker(other, "work")
                await hand.done(await hand.claim_one())
                await receiver.until(1)
        assert len(log.lines("does not answer")) == len(log.lines("answers again")) == 1
        assert [record for record in log.records if record.exc_info] == []
        for role in ("schedules", "pruning", "outbox"):
            assert await other.lead(role, "successor") is not None
