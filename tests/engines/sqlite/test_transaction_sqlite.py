"""The user's transaction on the engine's own file: what it may not do, what it leaves behind, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from taskmill.clock import SECOND
from taskmill.engine import Room, Status
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.engines.sqlite.writer import Session
from taskmill.errors import Conflict, TaskmillError
from taskmill.task import Task
from tests.conformance.tools import ids_of, new, outcome, submit_one, worker
from tests.engines.sqlite.conftest import Opened

SOON = 10.0
"""Seconds after which an answer never comes; nothing is judged by it."""


@pytest.fixture
async def engine(opened: Opened) -> SQLiteEngine:
    return await opened(busy_timeout=5 * SECOND)


def outside(call: Coroutine[Any, Any, Any], context: contextvars.Context) -> asyncio.Task[Any]:
    """Somebody else of this program, who does not stand in the transaction."""
    return asyncio.get_running_loop().create_task(call, context=context)


def turn_is_free(engine: SQLiteEngine) -> bool:
    """Nobody holds the lock that keeps writers in order: whoever finds it held waits longer than needed."""
    with (Path(f"{engine.path}-run") / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("statement", ["COMMIT", "END", "ROLLBACK", "SELECT 1; COMMIT"])
async def test_an_end_by_the_users_own_statement(engine: SQLiteEngine, statement: str) -> None:
    """It is told, and the store takes everything that follows, whether or not the statement was let through."""
    task = new()

    async def end_it() -> None:
        async with engine.transaction() as tx:
            await engine.submit([task], tx=tx)
            list(tx.execute(statement))

    with pytest.raises(Conflict) as refused:
        await end_it()
    assert refused.value.code == "transaction_ended"
    assert refused.value.hint
    for _ in range(3):
        await submit_one(engine)
    one = await worker(engine)
    claimed = await one.claim(10)
    assert len(claimed) in {3, 4}
    assert len({each.token for each in claimed}) == len(claimed)
    await one.done(*claimed)


async def test_savepoints_are_the_users_own(engine: SQLiteEngine) -> None:
    task = new()
    async with engine.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
        tx.execute("SAVEPOINT here")
        tx.execute("INSERT INTO mine VALUES (1)")
        tx.execute("ROLLBACK TO here")
        tx.execute("RELEASE here")
        tx.executemany("INSERT INTO mine VALUES (?)", [(2,), (3,)])
        await engine.submit([task], tx=tx)
        assert tx.execute("SELECT n FROM mine ORDER BY n").fetchall() == [(2,), (3,)]
    assert isinstance((await engine.get([task.id]))[0], Task)


async def test_a_verb_without_tx_would_wait_for_its_own_transaction(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    await submit_one(engine)
    [claimed] = await one.claim()
    kept = new()
    async with engine.transaction() as tx:
        calls: list[Coroutine[Any, Any, Any]] = [
            engine.submit([new()]),
            engine.submit([new()], reserved=True),
            engine.finish([outcome(claimed)]),
            engine.claim(one.id, 9, ("default",), Room(1)),
            engine.put("note", "a", b"1"),
        ]
        for call in calls:
            with pytest.raises(Conflict) as refused:
                await call
            assert refused.value.code == "inside_transaction"
            assert "tx=" in str(refused.value.hint)
        with pytest.raises(Conflict):
            async with engine.transaction():
                pass
        assert await engine.get([kept.id]) == (None,), "a read waits for nobody"
        await engine.submit([kept], tx=tx)
    assert [task.id for task in (await engine.list()).tasks if task.id != claimed.id] == [kept.id]


async def test_a_task_of_the_loop_that_began_inside_may_ask_when_it_is_over(engine: SQLiteEngine) -> None:
    over = asyncio.Event()

    async def later() -> str:
        await over.wait()
        return await submit_one(engine)

    async with engine.transaction():
        begun = asyncio.create_task(later())
    over.set()
    async with asyncio.timeout(SOON):
        assert isinstance((await engine.get([await begun]))[0], Task)


async def test_another_engine_may_be_asked_inside(opened: Opened, engine: SQLiteEngine) -> None:
    other = await opened()
    async with engine.transaction():
        assert await other.items("note") == ()


@pytest.mark.parametrize("undone", [False, True], ids=["committed", "rolled-back"])
async def test_queues_and_lanes_made_in_a_transaction(engine: SQLiteEngine, undone: bool) -> None:
    """Their numbers are known to others only if it commits; nobody who comes later is put into a lane that is not there."""
    await engine.put("limit", "one", b'{"cap": 1}')
    fields: dict[str, Any] = {"queue": "made-here", "limits": ("one",), "fair_key": "share"}
    inside, after, beside = new(**fields), new(**fields), new(**{**fields, "fair_key": "other"})
    try:
        async with engine.transaction() as tx:
            await engine.submit([inside], tx=tx)
            if undone:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    await engine.submit([beside])
    await engine.submit([after])
    one = await worker(engine, queues=("made-here",))
    expected = {beside.id, after.id} | (set() if undone else {inside.id})
    taken: set[str] = set()
    for _ in expected:
        [claimed] = await one.claim(10)
        taken.add(claimed.id)
        await one.done(claimed)
    assert taken == expected
    assert await one.claim(10) == []


async def test_a_refusal_inside_leaves_no_name_behind(engine: SQLiteEngine) -> None:
    """A row that is refused, then one that is stored in the same lane, in one transaction."""
    refused, stored = new(queue="made-here", order_key="k", delay=-1), new(queue="made-here", order_key="k")
    async with engine.transaction() as tx:
        [first] = await engine.submit([refused], tx=tx)
        [second] = await engine.submit([stored], tx=tx)
    assert [first.status, second.status] == [Status.REFUSED, Status.CREATED]
    one = await worker(engine, queues=("made-here",))
    assert ids_of(await one.claim(10)) == [stored.id]


async def test_two_transactions_wait_for_each_other_in_turn(engine: SQLiteEngine) -> None:
    order: list[str] = []
    context, asks = contextvars.copy_context(), asyncio.Event()

    async def second() -> None:
        order.append("second asks")
        asks.set()
        async with engine.transaction() as tx:
            order.append("second is in")
            assert tx.execute("SELECT n FROM mine").fetchall() == [(1,)]

    async with engine.transaction() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
        waiting = outside(second(), context)
        await asks.wait()
        tx.execute("INSERT INTO mine VALUES (1)")
        order.append("first leaves")
    async with asyncio.timeout(SOON):
        await waiting
    assert order == ["second asks", "first leaves", "second is in"]


async def test_many_transactions_at_once(engine: SQLiteEngine) -> None:
    """However many wait to begin, the one that is in can leave."""
    tasks = [new(n) for n in range(24)]

    async def one(task: Any) -> None:
        async with engine.transaction() as tx:
            await engine.submit([task], tx=tx)
            await asyncio.sleep(0)

    answers = await asyncio.gather(*(one(task) for task in tasks), return_exceptions=True)
    assert answers == [None] * len(tasks)
    assert all(isinstance(task, Task) for task in await engine.get([task.id for task in tasks]))


async def test_writes_of_the_same_program_wait_for_the_transaction(engine: SQLiteEngine) -> None:
    context = contextvars.copy_context()
    inside, beside = new("inside"), new("beside")
    async with engine.transaction() as tx:
        waiting = outside(engine.submit([beside]), context)
        await asyncio.sleep(0)
        await engine.submit([inside], tx=tx)
        assert not waiting.done()
    async with asyncio.timeout(SOON):
        assert (await waiting)[0].status is Status.CREATED
    one = await worker(engine)
    assert ids_of(await one.claim(10)) == [inside.id, beside.id]


async def test_a_caller_who_is_cancelled_inside_rolls_back(engine: SQLiteEngine) -> None:
    task, began = new(), asyncio.Event()

    async def hang() -> None:
        async with engine.transaction() as tx:
            await engine.submit([task], tx=tx)
            began.set()
            await asyncio.Event().wait()

    hanging = asyncio.create_task(hang())
    await began.wait()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert await engine.get([task.id]) == (None,)
    await submit_one(engine)


async def test_a_caller_who_is_cancelled_while_it_waits_to_begin_leaves_no_lock(opened: Opened, engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for the lock cannot be called off; when it gets it, nobody is there to take it over."""
    context, loop = contextvars.copy_context(), asyncio.get_running_loop()
    begins, has_begun = asyncio.Event(), threading.Event()
    begin = engine._begin

    def watched() -> Session:
        loop.call_soon_threadsafe(begins.set)
        try:
            return begin()
        finally:
            has_begun.set()

    async def enter() -> None:
        async with engine.transaction():
            raise AssertionError("it was cancelled before")

    async with engine.transaction():
        monkeypatch.setattr(engine, "_begin", watched)
        waiting = outside(enter(), context)
        await begins.wait()
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=0.2)
    await asyncio.to_thread(has_begun.wait, SOON)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    other = await opened(busy_timeout=3 * SECOND)
    async with asyncio.timeout(SOON):
        await submit_one(other)
        await submit_one(engine)
    assert turn_is_free(engine), "somebody who left still stands in the way of everybody else"


async def test_a_transaction_that_is_over_takes_nothing_more(engine: SQLiteEngine) -> None:
    async with engine.transaction() as tx:
        pass
    with pytest.raises(Conflict) as refused:
        await engine.submit([new()], tx=tx)
    assert refused.value.code == "transaction_ended"


async def test_the_engine_is_closed_in_a_transaction(opened: Opened) -> None:
    """Whoever leaves the block is told in this product's words, and the store is free for others."""
    engine, other = await opened(), await opened(busy_timeout=3 * SECOND)
    context = contextvars.copy_context()
    task = new()
    told: BaseException | None = None
    closing: asyncio.Task[Any] | None = None
    try:
        async with engine.transaction() as tx:
            await engine.submit([task], tx=tx)
            closing = outside(engine.close(), context)
            await asyncio.wait({closing}, timeout=0.2)
    except TaskmillError as error:
        told = error
    assert closing is not None
    async with asyncio.timeout(SOON):
        await closing
        await submit_one(other)
    assert turn_is_free(other)
    stored = (await other.get([task.id]))[0] is not None
    assert stored == (told is None), "stored without a word, or told that it was stored"


@pytest.mark.parametrize("raises", [False, True])
async def test_whoever_is_cancelled_while_it_ends_waits_for_the_end(engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    """Commit and rollback go on in their thread; whoever looks afterwards finds what was decided, and the next writer its turn."""
    begun, let = threading.Event(), threading.Event()
    task = new()
    real = Session.rollback if raises else Session.commit

    def slow(session: Session) -> None:
        if not begun.is_set():
            begun.set()
            assert let.wait(SOON)
        real(session)

    async def work() -> None:
        async with engine.transaction() as tx:
            await engine.submit([task], tx=tx)
            monkeypatch.setattr(Session, "rollback" if raises else "commit", slow)
            if raises:
                raise ZeroDivisionError

    working = asyncio.create_task(work())
    assert await asyncio.to_thread(begun.wait, SOON)
    working.cancel()
    await asyncio.wait({working}, timeout=0.1)
    assert not working.done()
    let.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, SOON)
    assert (await engine.get([task.id]))[0] is None if raises else isinstance((await engine.get([task.id]))[0], Task)
    await asyncio.wait_for(submit_one(engine), SOON)
    assert turn_is_free(engine)
