"""The blocking twins: `app.sync.transaction()`, `ctx.sync.transaction()` and `ctx.sync.complete_in()`, in threads without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskmill import App, Context, State
from taskmill.engine import Ending
from taskmill.errors import Conflict, InvalidInput, StaleLease
from taskmill.task import Task
from tests.conformance.tools import execute
from tests.surfaces.hands import Hands, hands

T = TypeVar("T")


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


@pytest.fixture
async def postgres_hand(postgres_url: str) -> AsyncIterator[Hands]:
    async with hands(postgres_url) as hand:
        yield hand


async def in_thread(do: Callable[[], T]) -> T:
    """Where no loop runs, and in a context of its own."""
    return await asyncio.get_running_loop().run_in_executor(None, contextvars.Context().run, do)


async def stored(app: App) -> list[str]:
    return sorted(task.type for task in (await app.engine.list()).tasks)


# The app's


async def test_rows_and_tasks_commit_and_roll_back_together(hand: Hands) -> None:
    send: Any = hand.app.task(name="send", timeout="1m")(lambda n: None)

    def shop() -> list[Any]:
        with hand.app.sync.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            tx.executemany(f"INSERT INTO effect VALUES ({'?' if hand.app.engine.features.name == 'sqlite' else '$1'})", [(2,), (3,)])
            send.options(tx=tx).sync.submit(1)
            hand.app.sync.submit_many(send.options(tx=tx).call(n) for n in (2, 3))
            assert hand.app.in_transaction()
            seen = [row[0] for row in tx.execute("SELECT number FROM effect ORDER BY number")]
        assert not hand.app.in_transaction()
        return seen

    def undone() -> None:
        with hand.app.sync.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (4)")
            send.options(tx=tx).sync.submit(4)
            raise ZeroDivisionError

    assert await in_thread(shop) == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        await in_thread(undone)
    assert (await hand.rows(), await stored(hand.app)) == ([1, 2, 3], ["send"] * 3)


async def test_it_opens_the_app(url: str) -> None:
    def use() -> int:
        app = App(url)
        try:
            with app.sync.transaction() as tx:
                return int(next(iter(tx.execute("SELECT 7")))[0])
        finally:
            app.sync.close()

    assert await in_thread(use) == 7


async def test_a_verb_that_forgot_its_transaction_is_refused(hand: Hands) -> None:
    """It would wait for the transaction it stands in; so it is told, in the thread as in a coroutine."""
    send: Any = hand.app.task(name="send")(lambda: None)

    def shop() -> str:
        with hand.app.sync.transaction(), pytest.raises(Conflict) as caught:
            send.sync.submit()
        return caught.value.code

    assert await in_thread(shop) == "inside_transaction"


async def test_inside_of_a_loop_it_names_its_twin(hand: Hands) -> None:
    with pytest.raises(InvalidInput) as caught, hand.app.sync.transaction():
        pass
    assert (caught.value.code, "app.transaction()" in str(caught.value.hint)) == ("running_loop", True)


async def test_a_transaction_that_is_over_takes_nothing_more(hand: Hands) -> None:
    def use() -> None:
        with hand.app.sync.transaction() as tx:
            pass
        tx.execute("SELECT 1")

    with pytest.raises(Conflict) as caught:
        await in_thread(use)
    assert caught.value.code == "transaction_ended"


# A handler's


async def test_a_plain_handler_ends_its_task_with_its_rows(hand: Hands) -> None:
    send: Any = hand.app.task(name="send")(lambda: None)

    def work(ctx: Context) -> str:
        with ctx.sync.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            ctx.sync.submit(send.options(tx=tx).call())
            ctx.complete("done")
        return "done"

    outcome, task = await hand.run(work)
    assert (outcome.ending, task.state, task.result, await hand.rows()) == (Ending.COMPLETED, State.COMPLETED, b'"done"', [1])
    assert "send" in await stored(hand.app)


async def test_a_plain_handler_that_raises_wrote_nothing(hand: Hands) -> None:
    def work(ctx: Context) -> None:
        with ctx.sync.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            raise ValueError

    outcome, task = await hand.run(work)
    assert (outcome.ending, task.state, await hand.rows()) == (Ending.RETRY, State.RUNNING, [])


async def test_a_plain_handler_that_lost_its_lease_wrote_nothing(hand: Hands) -> None:
    told: list[BaseException] = []

    def work(ctx: Context) -> None:
        try:
            with ctx.sync.transaction() as tx:
                tx.execute("INSERT INTO effect VALUES (1)")
        except StaleLease as error:
            told.append(error)
            raise

    running = await hand.next(work)
    await hand.app.engine.leave("anna")
    outcome = await hand.attempt(running)
    assert (outcome.ending, await hand.rows(), len(told)) == (Ending.RELEASED, [], 1)


async def test_a_plain_handler_that_fails_after_it(hand: Hands, caplog: pytest.LogCaptureFixture) -> None:
    def work(ctx: Context) -> None:
        with ctx.sync.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
        raise ValueError("too late")

    outcome, task = await hand.run(work)
    assert (outcome.ending, task.state) == (Ending.COMPLETED, State.COMPLETED)
    assert "after that its handler failed: ValueError: too late" in caplog.text


# On the handler's own connection


def through_psycopg(url: str, ctx: Context, *, fails: bool) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO effect VALUES (1)")
        ctx.sync.complete_in(connection, "paid")
        if fails:
            raise ValueError


def through_session(url: str, ctx: Context, *, fails: bool) -> None:
    engine = create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO effect VALUES (1)"))
        ctx.sync.complete_in(session, "paid")
        if fails:
            raise ValueError


async def through_async_session(url: str, ctx: Context, *, fails: bool) -> None:
    engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg", 1), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("INSERT INTO effect VALUES (1)"))
        await ctx.complete_in(session, "paid")
        if fails:
            raise ValueError


OWN = [through_psycopg, through_session, through_async_session]


def handler_of(own: Any, url: str, *, fails: bool = False, after: bool = False) -> Callable[..., Any]:
    if asyncio.iscoroutinefunction(own):

        async def waits(ctx: Context) -> None:
            await own(url, ctx, fails=fails)
            if after:
                raise ValueError("too late")

        return waits

    def works(ctx: Context) -> None:
        own(url, ctx, fails=fails)
        if after:
            raise ValueError("too late")

    return works


@pytest.mark.parametrize("own", OWN)
async def test_the_end_is_in_the_handlers_own_transaction(postgres_hand: Hands, postgres_url: str, own: Any) -> None:
    """The outcome that the worker reports then is a repeat, and taken as such."""
    outcome, task = await postgres_hand.run(handler_of(own, postgres_url))
    assert (task.state, task.result, await postgres_hand.rows()) == (State.COMPLETED, b'"paid"', [1])
    assert await postgres_hand.finish(outcome) == ()
    [again] = await postgres_hand.app.engine.get([task.id])
    assert isinstance(again, Task)
    assert again.result == b'"paid"'


@pytest.mark.parametrize("own", OWN)
async def test_a_rollback_of_it_is_a_failure_like_any_other(postgres_hand: Hands, postgres_url: str, own: Any) -> None:
    outcome, task = await postgres_hand.run(handler_of(own, postgres_url, fails=True))
    assert (task.state, outcome.ending, await postgres_hand.rows()) == (State.RUNNING, Ending.RETRY, [])
    assert await postgres_hand.finish(outcome) == ()


@pytest.mark.parametrize("own", OWN)
async def test_what_fails_after_it_comes_too_late(postgres_hand: Hands, postgres_url: str, own: Any) -> None:
    """Whatever the handler says, the store knows that it has ended: nothing is done again."""
    outcome, task = await postgres_hand.run(handler_of(own, postgres_url, after=True))
    assert (task.state, outcome.ending) == (State.COMPLETED, Ending.RETRY)
    [refused] = await postgres_hand.finish(outcome)
    assert refused.code == "stale_lease"
    assert await postgres_hand.rows() == [1]


@pytest.mark.parametrize("own", OWN)
async def test_without_the_lease_the_handlers_own_transaction_is_rolled_back(postgres_hand: Hands, postgres_url: str, own: Any) -> None:
    running = await postgres_hand.next(handler_of(own, postgres_url))
    await postgres_hand.app.engine.leave("anna")
    outcome = await postgres_hand.attempt(running)
    assert (outcome.ending, running.lease_lost, await postgres_hand.rows()) == (Ending.RELEASED, True, [])


async def test_an_end_in_the_stores_own_transaction(hand: Hands) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.app.transaction() as tx:
            await execute(tx, "INSERT INTO effect VALUES (1)")
            await ctx.complete_in(tx, "paid")

    def plain(ctx: Context) -> None:
        with ctx.app.sync.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (2)")
            ctx.sync.complete_in(tx, "paid")

    for handler in (work, plain):
        outcome, task = await hand.run(handler)
        assert (task.state, task.result, await hand.finish(outcome)) == (State.COMPLETED, b'"paid"', ())
    assert await hand.rows() == [1, 2]
