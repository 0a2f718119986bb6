"""outbox: what a step owes to another place is a numbered entry written in that step, kept until it was delivered."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import MINUTE, ManualClock
from taskmill.engine import Ending, Engine, Target, Term
from taskmill.errors import StaleTerm
from taskmill.task import Edge, State
from tests.conformance.tools import Store, ids_of, lose, new, outcome, record, submit, submit_many, worker
from tests.conformance.tools_b import decoded, deposed, guarded, led, make, settle


async def subscribe(engine: Engine, *kinds: str) -> Term:
    for kind in kinds:
        await engine.put("outbox", kind, b"{}")
    return await led(engine, "outbox")


async def subjects(engine: Engine, kind: str, after: str = "", n: int = 1_000) -> list[str]:
    return [entry.subject for entry in await engine.outbox(kind, after, n, await led(engine, "outbox"))]


async def test_an_entry_says_what_ended(engine: Engine, clock: ManualClock) -> None:
    term = await subscribe(engine, "ended")
    made = await make(engine, State.COMPLETED)
    [entry] = await engine.outbox("ended", "", 10, term)
    task = await record(engine, made.id)
    assert (entry.kind, entry.subject, entry.at) == ("ended", made.id, clock.now())
    assert decoded(entry.data) == {"id": made.id, "type": "work", "queue": task.queue, "state": "completed", "version": task.version}


async def test_none_is_lost_and_none_comes_twice(engine: Engine, store: Store) -> None:
    """Two workers end tasks on two engines while the leader reads; what it read is everything, in order."""
    term = await subscribe(engine, "ended")
    ids = await submit_many(engine, 200)
    workers = [await worker(await store.engine()) for _ in range(2)]
    running = True

    async def work(number: int) -> None:
        while batch := await workers[number].claim(7):
            await workers[number].done(*batch)

    async def deliver() -> list[tuple[str, str]]:
        read: list[tuple[str, str]] = []
        after = ""
        while True:
            last_round = not running
            entries = await engine.outbox("ended", after, 9, term)
            read += [(entry.cursor, entry.subject) for entry in entries]
            after = entries[-1].cursor if entries else after
            if last_round and not entries:
                return read

    reader = asyncio.create_task(deliver())
    await guarded(asyncio.gather(work(0), work(1)))
    running = False
    read = await guarded(reader)
    assert sorted(subject for _, subject in read) == sorted(ids)
    assert [cursor for cursor, _ in read] == sorted({cursor for cursor, _ in read}, key=int)


async def test_entries_stay_until_they_are_passed_by(engine: Engine) -> None:
    term = await subscribe(engine, "ended")
    hand = await worker(engine)
    ids = await submit_many(engine, 6)
    for task in await hand.claim(6):
        await hand.done(task)
    entries = await engine.outbox("ended", "", 100, term)
    assert [entry.subject for entry in entries] == ids
    assert await engine.outbox("ended", "", 100, term) == entries
    assert await engine.outbox("ended", "", 2, term) == entries[:2]
    assert await engine.outbox("ended", entries[1].cursor, 2, term) == entries[2:4]
    assert await engine.outbox("ended", "", 100, term) == entries[2:]
    assert await engine.outbox("ended", entries[-1].cursor, 100, term) == ()
    assert await engine.outbox("ended", "", 100, term) == ()


async def test_numbers_grow_after_everything_was_cut(engine: Engine) -> None:
    term = await subscribe(engine, "ended")
    await make(engine, State.COMPLETED, queue="line")
    [first] = await engine.outbox("ended", "", 10, term)
    await engine.outbox("ended", first.cursor, 10, term)
    made = await make(engine, State.DEAD, queue="line")
    [second] = await engine.outbox("ended", first.cursor, 10, term)
    assert (second.subject, second.cursor > first.cursor) == (made.id, True)


async def test_kinds_are_cut_apart(engine: Engine) -> None:
    term = await subscribe(engine, "ended", "dead")
    made = await make(engine, State.DEAD)
    [ended] = await engine.outbox("ended", "", 10, term)
    [dead] = await engine.outbox("dead", "", 10, term)
    assert (ended.subject, dead.subject) == (made.id, made.id)
    await engine.outbox("ended", max(ended.cursor, dead.cursor, key=int), 10, term)
    assert await engine.outbox("dead", "", 10, term) == (dead,)


async def test_only_kinds_that_somebody_subscribed_to(engine: Engine) -> None:
    early = await make(engine, State.DEAD)
    term = await subscribe(engine, "dead")
    dead, completed = await make(engine, State.DEAD), await make(engine, State.COMPLETED)
    assert [entry.subject for entry in await engine.outbox("dead", "", 10, term)] == [dead.id]
    assert await engine.outbox("ended", "", 10, term) == ()
    assert early.id != completed.id
    await engine.drop("outbox", "dead")
    await make(engine, State.DEAD)
    assert [entry.subject for entry in await engine.outbox("dead", "", 10, term)] in ([dead.id], [])


async def test_every_way_to_end_is_told_once(engine: Engine, clock: ManualClock) -> None:
    await subscribe(engine, "ended", "dead")
    expected = [(await make(engine, now)).id for now in (State.COMPLETED, State.DEAD, State.CANCELLED)]
    cancelled = await make(engine, State.PENDING)
    await engine.cancel([Target(cancelled.id)])
    expiring = await make(engine, State.PENDING, expires_at=clock.now() + MINUTE)
    poison = await make(engine, State.RUNNING, max_crashes=0)
    await lose(engine, clock)
    clock.advance("1m")
    await settle(engine)
    expected += [cancelled.id, poison.id, expiring.id]
    assert sorted(await subjects(engine, "ended")) == sorted(expected)
    assert sorted(await subjects(engine, "dead")) == sorted([expected[1], poison.id])


async def test_what_an_edge_cancels_is_told(engine: Engine) -> None:
    await subscribe(engine, "ended")
    child = new()
    parent = new(edges=(Edge(child.id),))
    grandparent = new(edges=(Edge(parent.id),))
    await submit(engine, child, parent, grandparent)
    hand = await worker(engine)
    await hand.done(await hand.claim_one(), ending=Ending.DEAD)
    await settle(engine)
    assert sorted(await subjects(engine, "ended")) == sorted([child.id, parent.id, grandparent.id])


async def test_a_repeated_or_refused_finish_owes_nothing_more(engine: Engine) -> None:
    await subscribe(engine, "ended")
    made = await make(engine, State.RUNNING)
    assert made.claimed
    for _ in range(3):
        await engine.finish([outcome(made.claimed)])
    await engine.finish([outcome(made.claimed, Ending.DEAD)])
    assert await subjects(engine, "ended") == [made.id]


async def test_a_task_that_ends_twice_is_told_twice(engine: Engine) -> None:
    await subscribe(engine, "ended")
    made = await make(engine, State.DEAD)
    await engine.requeue([Target(made.id)])
    await made.holder.done(await made.holder.claim_one())
    entries = await engine.outbox("ended", "", 10, await led(engine, "outbox"))
    assert [(entry.subject, decoded(entry.data)["state"]) for entry in entries] == [(made.id, "dead"), (made.id, "completed")]


async def test_in_the_order_of_the_steps(engine: Engine) -> None:
    await subscribe(engine, "ended")
    await submit_many(engine, 20)
    hand = await worker(engine)
    claimed = await hand.claim(20)
    claimed.reverse()
    for task in claimed:
        await hand.done(task)
    assert await subjects(engine, "ended") == ids_of(claimed)


async def test_what_an_operator_sets_is_audited(engine: Engine) -> None:
    term = await subscribe(engine, "audit")
    before = await engine.outbox("audit", "", 100, term)
    put = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    await engine.put("limit", "code", b'{"cap": 1}', operator=False)
    await engine.drop("limit", "mail", version=put.version)
    entries = await engine.outbox("audit", before[-1].cursor if before else "", 100, term)
    assert [entry.subject for entry in entries] == ["limit/mail", "limit/mail"]


async def test_a_deposed_leader_neither_reads_nor_cuts(engine: Engine, clock: ManualClock) -> None:
    await engine.put("outbox", "ended", b"{}")
    made = await make(engine, State.COMPLETED)
    old = await deposed(engine, clock, "outbox")
    with pytest.raises(StaleTerm):
        await engine.outbox("ended", "999999999", 10, old)
    current = await led(engine, "outbox", "new")
    assert [entry.subject for entry in await engine.outbox("ended", "", 10, current)] == [made.id]
