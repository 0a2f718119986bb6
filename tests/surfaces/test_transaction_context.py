"""`ctx.transaction()`: a handler's rows and the end of its task are one commit, on every engine that has transactions."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskmill import App, Context, State
from taskmill.engine import Ending
from taskmill.engines.sqlite.writer import Session
from taskmill.errors import Conflict, StaleLease, WrongStore
from taskmill.testing import under_test
from tests.conformance.tools import execute
from tests.servers.pgbouncer import PgBouncer
from tests.surfaces.hands import Hands, hands

SOON = 30.0
"""Seconds after which an answer never comes; nothing is judged by it."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/taskmill.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def hand(url: str) -> AsyncIterator[Hands]:
    async with hands(url) as hand:
        yield hand


async def write(tx: Any, number: int) -> None:
    await execute(tx, f"INSERT INTO effect VALUES ({number})")


# Together


async def test_rows_and_the_end_are_one_commit(hand: Hands) -> None:
    seen: list[State] = []

    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            seen.append(await ctx.app.handle(ctx.id).status())
            ctx.complete({"paid": True})
        seen.append(await ctx.app.handle(ctx.id).status())

    outcome, task = await hand.run(work)
    assert (seen, await hand.rows()) == ([State.RUNNING, State.COMPLETED], [1])
    assert (task.state, task.result, task.executions) == (State.COMPLETED, b'{"paid":true}', 1)
    assert (outcome.ending, outcome.result) == (Ending.COMPLETED, b'{"paid":true}')
    assert await hand.finish(outcome) == ()


async def test_without_a_value_it_completes_with_none(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)

    _, task = await hand.run(work)
    assert (task.state, task.result) == (State.COMPLETED, b"null")


async def test_a_value_that_cannot_be_kept_ends_nothing(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            ctx.complete(object())

    outcome, task = await hand.run(work)
    assert (task.state, await hand.rows(), outcome.ending) == (State.RUNNING, [], Ending.DEAD)


async def test_what_the_handler_raises_takes_everything_back(hand: Hands) -> None:
    async def work(ctx: Context, fails: bool) -> None:
        async with ctx.transaction() as tx:
            await write(tx, ctx.attempt)
            if fails and ctx.attempt == 1:
                raise ValueError("not yet")

    running = await hand.next(work, fails=True)
    outcome = await hand.attempt(running)
    assert (outcome.ending, await hand.rows(), (await hand.task(running)).state) == (Ending.RETRY, [], State.RUNNING)
    assert await hand.finish(msgspec.structs.replace(outcome, after=0)) == ()
    again = await hand.again()
    assert (await hand.attempt(again)).ending is Ending.COMPLETED
    assert (await hand.rows(), (await hand.task(again)).state) == ([2], State.COMPLETED)


async def test_tasks_that_are_submitted_in_it_exist_with_it(hand: Hands) -> None:
    made: list[str] = []
    hand.app.task(name="follows")(lambda: None)

    async def work(ctx: Context, fails: bool) -> None:
        async with ctx.transaction() as tx:
            made.append((await ctx.submit(ctx.app.types["follows"].options(tx=tx).call())).id)
            if fails:
                raise ValueError

    await hand.run(work, fails=True)
    await hand.run(work, fails=False)
    first, second = await hand.app.engine.get(made)
    assert (first, getattr(second, "type", None)) == (None, "follows")


# The lease


async def test_a_lost_lease_takes_everything_back(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            await asyncio.create_task(lose(ctx), context=outside)

    async def lose(ctx: Context) -> None:
        """In SQLite nobody else can write meanwhile, so there it has happened before."""
        if ctx.app.engine.features.name != "sqlite":
            await ctx.app.engine.leave("anna")

    outside = contextvars.copy_context()
    running = await hand.next(work)
    if hand.app.engine.features.name == "sqlite":
        await hand.app.engine.leave("anna")
    ctx = hand.context(running)
    with pytest.raises(StaleLease) as caught:
        await work(ctx)
    assert (caught.value.task_id, ctx.lease_lost, running.ending) == (ctx.id, True, None)
    assert await hand.rows() == []
    current = await hand.again("ben")
    assert (await hand.task(current)).state is State.RUNNING
    await work_of(hand, current)
    assert await hand.rows() == [7]


async def work_of(hand: Hands, running: Any) -> None:
    async with hand.context(running).transaction() as tx:
        await write(tx, 7)


async def test_an_attempt_that_lost_its_lease_is_released(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)

    running = await hand.next(work)
    await hand.app.engine.leave("anna")
    outcome = await hand.attempt(running)
    assert (outcome.ending, await hand.rows()) == (Ending.RELEASED, [])


async def test_the_end_is_the_last_statement(hand: Hands, url: str) -> None:
    """Nobody has to wait for the task's row while the handler's own statements run: others change it, and it still commits."""
    if hand.app.engine.features.name == "sqlite":
        pytest.skip("in SQLite one writer waits for the other, whatever they write")

    async with App(url) as other:

        async def work(ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await write(tx, 1)
                async with asyncio.timeout(SOON):
                    await other.engine.signal(ctx.id, "hello", b"1", "one")
                    assert await other.handle(ctx.id).cancel()

        outcome, task = await hand.run(work)
    assert (outcome.ending, task.state, await hand.rows()) == (Ending.COMPLETED, State.COMPLETED, [1])


# What comes after


async def test_what_fails_after_it_is_told_and_changes_nothing(hand: Hands, caplog: pytest.LogCaptureFixture) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            ctx.complete("done")
        raise ValueError("too late")

    outcome, task = await hand.run(work)
    assert (outcome.ending, outcome.error, task.state, task.result) == (Ending.COMPLETED, None, State.COMPLETED, b'"done"')
    assert "has ended, in its transaction; after that its handler failed: ValueError: too late" in caplog.text
    assert await hand.rows() == [1]


async def test_a_value_that_is_returned_after_it_is_told(hand: Hands, caplog: pytest.LogCaptureFixture) -> None:
    async def work(ctx: Context) -> str:
        async with ctx.transaction():
            ctx.complete("first")
        return "second"

    outcome, task = await hand.run(work)
    assert (outcome.result, task.result) == (b'"first"', b'"first"')
    assert "use ctx.complete(value)" in caplog.text


async def test_a_task_ends_once(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
        with pytest.raises(Conflict) as caught:
            async with ctx.transaction() as tx:
                await write(tx, 2)
        assert caught.value.code == "terminal"

    _, task = await hand.run(work)
    assert (task.state, await hand.rows()) == (State.COMPLETED, [1])


async def test_a_block_that_failed_can_be_tried_again(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        for attempt in range(2):
            try:
                async with ctx.transaction() as tx:
                    await write(tx, attempt)
                    ctx.complete(attempt)
                    if attempt == 0:
                        raise ValueError
            except ValueError:
                continue

    _, task = await hand.run(work)
    assert (task.state, task.result, await hand.rows()) == (State.COMPLETED, b"1", [1])


# What is said inside


async def test_a_value_outside_of_it_is_refused(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        with pytest.raises(Conflict) as caught:
            ctx.complete(1)
        assert caught.value.code == "no_transaction"
        async with ctx.app.transaction():
            with pytest.raises(Conflict):
                ctx.complete(1)

    outcome, task = await hand.run(work)
    assert (outcome.ending, task.state) == (Ending.COMPLETED, State.RUNNING)


async def test_a_checkpoint_inside_of_it_is_refused_and_progress_is_not(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with asyncio.timeout(SOON), ctx.transaction() as tx:
            await ctx.progress(0.5)
            with pytest.raises(Conflict) as caught:
                await ctx.checkpoint("step")
            assert caught.value.code == "inside_transaction"
            await write(tx, 1)

    outcome, task = await hand.run(work)
    assert (outcome.ending, task.state, await hand.rows()) == (Ending.COMPLETED, State.COMPLETED, [1])


async def test_progress_that_waited_for_a_transaction_is_written_after_it(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.app.transaction() as tx:
            await write(tx, 1)
            await ctx.progress(0.5)
            await asyncio.sleep(0.4)
        async with asyncio.timeout(SOON):
            while (await ctx.app.handle(ctx.id).progress()) is None:
                pass

    outcome, _ = await hand.run(work)
    assert outcome.ending is Ending.COMPLETED


async def test_an_engine_without_transactions_says_so(hand: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = hand.app.engine
    monkeypatch.setattr(engine, "features", msgspec.structs.replace(engine.features, user_transactions=False))

    async def work(ctx: Context) -> None:
        with pytest.raises(WrongStore) as caught:
            async with ctx.transaction():
                pass
        assert caught.value.code == "no_transactions"

    assert (await hand.run(work))[0].ending is Ending.COMPLETED
    monkeypatch.undo()


# Asked to end


async def test_a_handler_that_is_cancelled_in_its_block_wrote_nothing(hand: Hands) -> None:
    inside = asyncio.Event()

    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            inside.set()
            await asyncio.Event().wait()

    running = await hand.next(work)
    attempt = asyncio.create_task(hand.attempt(running))
    await inside.wait()
    running.reason = "cancelled"
    attempt.cancel()
    assert (await attempt).ending is Ending.CANCELLED
    assert (await hand.rows(), running.ending) == ([], None)


@pytest.mark.parametrize("after", [0, 0.3, 0.6, 1, 1.5, 2, 2.5, 3, 4, 5])
async def test_a_handler_that_is_cancelled_while_it_commits_knows_how_it_went(hand: Hands, after: float) -> None:
    """So many milliseconds after its last line, wherever that is: what it says is what the store holds."""
    leaving = asyncio.Event()

    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            leaving.set()

    running = await hand.next(work)
    attempt = asyncio.create_task(hand.attempt(running))
    await leaving.wait()
    await asyncio.sleep(after / 1_000)
    attempt.cancel()
    async with asyncio.timeout(SOON):
        outcome = await attempt
    task = await hand.task(running)
    if outcome.ending is Ending.COMPLETED:
        assert (task.state, await hand.rows()) == (State.COMPLETED, [1])
    else:
        assert (task.state, await hand.rows(), running.ending) == (State.RUNNING, [], None)
        assert await hand.finish(outcome) == ()


async def test_sqlite_ends_a_commit_that_nobody_waits_for_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit goes on in its thread; whoever was cancelled waits for it, and finds that the task has ended."""
    begun, let = threading.Event(), threading.Event()
    real = Session.commit

    def slow(session: Session) -> None:
        if begun.is_set() or threading.current_thread().name.startswith("taskmill-writer"):
            return real(session)
        begun.set()
        assert let.wait(SOON)
        return real(session)

    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            monkeypatch.setattr(Session, "commit", slow)

    async with hands(f"sqlite:///{tmp_path}/taskmill.db") as hand:
        running = await hand.next(work)
        attempt = asyncio.create_task(hand.attempt(running))
        assert await asyncio.to_thread(begun.wait, SOON)
        attempt.cancel()
        await asyncio.sleep(0)
        let.set()
        outcome = await attempt
        assert (outcome.ending, (await hand.task(running)).state, await hand.rows()) == (Ending.COMPLETED, State.COMPLETED, [1])


# Elsewhere


async def test_a_direct_call_commits_the_rows_and_ends_nothing(hand: Hands) -> None:
    async def work(ctx: Context) -> str:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            ctx.complete("done")
        return "returned"

    declared: Any = hand.app.task(name="called")(work)
    assert await declared() == "returned"
    assert await hand.rows() == [1]


async def test_a_test_runs_it_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite://:memory:")

    @app.task
    async def work(ctx: Context, n: int) -> int:
        async with ctx.transaction() as tx:
            await execute(tx, "CREATE TABLE effect (number integer)")
            await write(tx, n)
            ctx.complete(n * 2)
        return n * 2

    @app.task
    def plain(ctx: Context, n: int) -> int:
        with ctx.sync.transaction() as tx:
            tx.execute(f"INSERT INTO effect VALUES ({n})")
            ctx.complete(n * 3)
        return n * 3

    async with under_test(app) as test:
        await work.submit(4)
        await plain.submit(5)
        assert [(ran.ending, ran.result) for ran in await test.drain()] == [(Ending.COMPLETED, 8), (Ending.COMPLETED, 15)]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_behind_a_pooler(pgbouncer: PgBouncer, postgres_url: str) -> None:
    """Where no connection is one's own, a transaction is."""

    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await write(tx, 1)
            await ctx.submit(ctx.app.types["follows"].options(tx=tx).call())

    async with hands(pgbouncer.through(postgres_url)) as hand:
        hand.app.task(name="follows")(lambda: None)
        outcome, task = await hand.run(work)
        assert (outcome.ending, task.state, await hand.rows()) == (Ending.COMPLETED, State.COMPLETED, [1])
        assert "follows" in {each.type for each in (await hand.app.engine.list()).tasks}
