"""`taskmill.testing`: what is drained, in which order, how time passes, and that the app is as before when the test is over."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmill import App, Context, Fail, ResultTimeout, Retry, RetryAfter, State, TaskFailed, Unique
from taskmill.clock import DAY, HOUR, MINUTE, SECOND, instant
from taskmill.engine import Ending
from taskmill.errors import InvalidInput, NotFound, TaskmillError
from taskmill.testing import Ran, UnderTest, under_test

START = instant("2030-01-01T00:00:00Z")
HANGS = 30.0
"""Seconds of real time after which what should have ended never will."""


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'own.db'}")


@pytest.fixture
async def test(app: App) -> AsyncIterator[UnderTest]:
    async with under_test(app) as found:
        yield found


def told(ran: list[Ran]) -> list[tuple[str, int, str]]:
    return [(one.type, one.attempt, str(one.ending)) for one in ran]


# Draining


async def test_what_is_ready_runs_with_children_and_edges(app: App, test: UnderTest) -> None:
    @app.task
    async def page(number: int) -> int:
        return number * 100

    @app.task
    async def report(ctx: Context) -> int:
        return sum(ctx.results)

    @app.task
    async def book(ctx: Context) -> None:
        pages = [await ctx.submit(page, number) for number in (1, 2)]
        await report.options(after=pages).submit()

    await book.submit()
    ran = await test.drain()
    assert told(ran) == [("book", 1, "completed"), ("page", 1, "completed"), ("page", 1, "completed"), ("report", 1, "completed")]
    assert [one.result for one in ran] == [None, 100, 200, 300]
    assert ran[1].arguments == {"number": 1}
    assert await test.drain() == []


async def test_the_order_is_that_of_claiming_by_priority_and_then_age(app: App, test: UnderTest) -> None:
    @app.task
    def note(text: str) -> None: ...

    for priority in ("low", "normal", "critical", "high", "normal"):
        await note.options(priority=priority).submit(priority)
    assert [one.arguments["text"] for one in await test.drain()] == ["critical", "high", "normal", "normal", "low"]


async def test_a_child_of_higher_priority_runs_before_what_waited(app: App, test: UnderTest) -> None:
    @app.task
    async def urgent() -> None: ...

    @app.task
    async def plain(first: bool) -> None:
        if first:
            await urgent.options(priority="high").submit()

    await plain.submit(True)
    await plain.submit(False)
    assert [one.type for one in await test.drain()] == ["plain", "urgent", "plain"]


async def test_queues_that_only_a_submit_names_are_served(app: App, test: UnderTest) -> None:
    @app.task
    def work() -> None: ...

    await work.options(queue="elsewhere").submit()
    assert told(await test.drain()) == [("work", 1, "completed")]


async def test_a_task_that_submits_itself_for_ever_is_told(app: App) -> None:
    @app.task
    async def again(ctx: Context) -> None:
        await again.submit()

    async with under_test(app, most=25) as test:
        await again.submit()
        with pytest.raises(TaskmillError, match=r"25 attempts ran without the clock moving and there is still work \(again 25 times\)") as told:
            await test.drain()
        assert told.value.code == "endless"
        assert len(test.ran) == 25


async def test_a_paused_queue_is_not_drained(app: App, test: UnderTest) -> None:
    @app.task(queue="mail")
    def work() -> None: ...

    await work.submit()
    await app.operations.pause_queue("mail")
    assert await test.drain() == []
    await app.operations.resume_queue("mail")
    assert len(await test.drain()) == 1


async def test_a_rate_holds_and_time_opens_it(app: App, test: UnderTest) -> None:
    @app.task(rate_limit="2/m")
    def call() -> None: ...

    await app.submit_many(call.call() for _ in range(5))
    assert len(await test.drain()) == 2
    ran = await test.advance("3m")
    assert len(ran) == 3
    assert ran[0].at >= START + MINUTE


async def test_handlers_are_run_where_a_worker_runs_them(app: App, test: UnderTest) -> None:
    """Async ones on the loop of the test, plain ones in a thread beside it, isolated ones in this process too."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    seen: dict[str, object] = {}

    @app.task
    async def on_loop() -> None:
        seen["loop"] = asyncio.get_running_loop()

    @app.task
    def in_thread(ctx: Context) -> None:
        ctx.sync.progress(0.5)
        seen["thread"] = threading.get_ident()

    @app.task(isolated=True)
    def alone() -> None:
        seen["process"] = os.getpid()

    for each in (on_loop, in_thread, alone):
        await app.submit(each)
    assert {str(one.ending) for one in await test.drain()} == {"completed"}
    assert seen["loop"] is loop
    assert seen["thread"] != thread
    assert seen["process"] == os.getpid()


async def test_every_progress_and_checkpoint_is_written(app: App, test: UnderTest) -> None:
    @app.task
    async def work(ctx: Context) -> int:
        await ctx.progress(0.1)
        await ctx.progress(0.9, "nearly")
        if ctx.attempt == 1:
            await ctx.checkpoint("step", 7)
            raise RetryAfter("1s")
        return int(ctx.checkpoints["step"])

    handle = await work.submit()
    await test.drain()
    progress = await handle.progress()
    assert progress is not None
    assert (progress.value, progress.message) == (0.9, "nearly")
    assert [one.result for one in await test.advance("1s")] == [7]


# Failures


async def test_failures_are_recorded(app: App, test: UnderTest) -> None:
    @app.task(retry=Retry.fixed("1m", max_retries=1))
    async def wrong() -> None:
        raise ValueError("wrong")

    handle = await wrong.submit()
    assert told(await test.drain()) == [("wrong", 1, "retry")]
    assert told(await test.advance("1h")) == [("wrong", 2, "dead")]
    assert [repr(one.error) for one in test.failures] == ["ValueError('wrong')"] * 2
    assert (await test.task(handle)).state is State.DEAD
    with pytest.raises(TaskFailed):
        await handle.result()


async def test_errors_are_raised_on_demand_and_the_rest_is_left_ready(app: App, test: UnderTest) -> None:
    @app.task
    async def wrong() -> None:
        raise Fail("no")

    @app.task
    def fine() -> None: ...

    first = await wrong.submit()
    second = await fine.submit()
    test.raise_errors = True
    with pytest.raises(Fail, match="no") as raised:
        await test.drain()
    assert raised.traceback[-1].name == "wrong"
    assert await first.status() is State.DEAD
    assert await second.status() is State.PENDING
    assert told(await test.drain()) == [("fine", 1, "completed")]


async def test_what_ends_a_test_is_never_recorded_alone(app: App, test: UnderTest) -> None:
    @app.task
    def skips() -> None:
        pytest.skip("from inside a handler")

    await skips.submit()
    with pytest.raises(pytest.skip.Exception):
        await test.drain()


async def test_leaving_the_process_is_a_failure(app: App, test: UnderTest) -> None:
    @app.task(retry=Retry.fixed("1s", max_retries=0))
    def leaves() -> None:
        raise SystemExit(3)

    await leaves.submit()
    assert told(await test.drain()) == [("leaves", 1, "dead")]
    assert isinstance(test.failures[0].error, SystemExit)


async def test_a_result_that_cannot_be_written_is_dead_as_in_a_worker(app: App, test: UnderTest) -> None:
    @app.task
    def odd() -> object:
        return object()

    handle = await odd.submit()
    assert told(await test.drain()) == [("odd", 1, "dead")]
    error = (await test.task(handle)).error
    assert error is not None
    assert error.code == "result_encoding"


# Time


async def test_retries_come_at_exactly_their_time(app: App, test: UnderTest) -> None:
    """The chance of the jitter is fixed."""

    @app.task(retry=Retry.exponential(max_retries=3, base="10s", factor=2.0, jitter=0.5))
    def wrong() -> None:
        raise OSError

    await wrong.submit()
    assert [(one.at - START) // SECOND for one in await test.advance("1h")] == [0, 10, 30, 70]
    assert test.clock.now() == START + HOUR


async def test_delays_and_snoozes_come_due(app: App, test: UnderTest) -> None:
    @app.task
    def later(ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.snooze("30m")

    handle = await later.options(delay="1h").submit()
    assert await test.drain() == []
    assert await test.advance("59m") == []
    assert [(one.at - START) // MINUTE for one in await test.advance("2h")] == [60, 90]
    assert await handle.status() is State.COMPLETED


async def test_a_month_of_cron(app: App, test: UnderTest) -> None:
    times: list[int] = []

    @app.schedule("0 * * * *")
    def hourly(ctx: Context) -> None:
        times.append(test.clock.now())

    ran = await test.advance("30d")
    assert len(ran) == 720
    assert times == [START + hour * HOUR for hour in range(1, 721)]


async def test_a_schedule_of_several_zones_over_a_clock_change(app: App) -> None:
    @app.schedule("0 9 * * *", timezone="Europe/Paris")
    def paris() -> None: ...

    @app.schedule("30 8 * * *")
    def utc() -> None: ...

    async with under_test(app, now="2030-03-30T00:00:00Z") as test:
        ran = await test.run_until("2030-04-01T00:00:00Z")
    assert [(one.type, (one.at - instant("2030-03-30T00:00:00Z")) // MINUTE) for one in ran] == [
        ("paris", 8 * 60),
        ("utc", 8 * 60 + 30),
        ("paris", 24 * 60 + 7 * 60),
        ("utc", 24 * 60 + 8 * 60 + 30),
    ]


async def test_a_clock_moved_by_hand_misfires_as_in_a_scheduler(app: App, test: UnderTest) -> None:
    @app.schedule("0 * * * *", misfire="once")
    def hourly() -> None: ...

    await test.drain()
    test.clock.advance("5h")
    assert len(await test.drain()) == 1


async def test_a_paused_schedule_does_not_fire(app: App, test: UnderTest) -> None:
    @app.schedule("0 * * * *")
    def hourly() -> None: ...

    assert len(await test.advance("2h")) == 2
    await app.operations.pause_schedule("hourly")
    assert await test.advance("2h") == []
    await app.operations.resume_schedule("hourly")
    assert len(await test.advance("2h")) == 2


async def test_what_expires_is_cancelled_at_its_time(app: App, test: UnderTest) -> None:
    @app.task
    def work() -> None: ...

    handle = await work.options(expires="1h").submit()
    await app.operations.pause_queue("default")
    await test.advance("59m")
    assert await handle.status() is State.PENDING
    await test.advance("1m")
    assert await handle.status() is State.CANCELLED


async def test_until_a_time_that_has_passed_drains(app: App, test: UnderTest) -> None:
    @app.task
    def work() -> None: ...

    await work.submit()
    assert len(await test.run_until("2029-01-01T00:00:00Z")) == 1
    assert test.clock.now() == START


async def test_no_time_passes_backwards(test: UnderTest) -> None:
    with pytest.raises(InvalidInput, match="advance"):
        await test.advance(-1)


# Waiting


async def test_who_waits_for_a_result_runs_it(app: App, test: UnderTest) -> None:
    @app.task
    async def child() -> int:
        return 20

    @app.task
    async def parent(ctx: Context) -> int:
        return 2 + await (await ctx.submit(child)).result()

    @app.task
    def plain_parent(ctx: Context) -> int:
        return 1 + ctx.sync.submit(parent).result()

    handle = await plain_parent.submit()
    assert await handle.result() == 23
    assert {one.type: one.result for one in test.ran} == {"child": 20, "parent": 22, "plain_parent": 23}


async def test_two_who_wait_at_once(app: App, test: UnderTest) -> None:
    entered = asyncio.Event()

    @app.task
    async def first() -> int:
        await entered.wait()
        return 1

    @app.task
    async def second() -> int:
        entered.set()
        return 2

    handles = [await first.submit(), await second.submit()]
    async with asyncio.timeout(HANGS):
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [1, 2]


async def test_who_waits_for_what_only_time_brings_is_told_to_move_the_clock(app: App, test: UnderTest) -> None:
    @app.task
    def later() -> None: ...

    handle = await later.options(delay="1h").submit()
    with pytest.raises(ResultTimeout, match="move the clock"):
        await handle.result()
    with pytest.raises(ResultTimeout):
        await handle.result(timeout="30s")
    assert await handle.wait(timeout="30s") is None
    assert await handle.wait(timeout=0) is None


async def test_a_task_that_waits_for_itself_does_not_hang(app: App, test: UnderTest) -> None:
    @app.task(retry=Retry.fixed("1s", max_retries=0))
    async def selfish(ctx: Context) -> None:
        await app.handle(ctx.id).result()

    await selfish.submit()
    async with asyncio.timeout(HANGS):
        assert [type(one.error) for one in await test.drain()] == [ResultTimeout]


# Signals and cancelling


async def test_a_signal_reaches_its_task(app: App, test: UnderTest) -> None:
    @app.task
    def work(ctx: Context) -> object:
        return [(signal.name, signal.data) for signal in ctx.signals]

    handle = await work.options(delay="1h").submit()
    assert await test.signal(handle, "approved", {"by": "ada"}) == 1
    [ran] = await test.advance("1h")
    assert ran.result == [["approved", {"by": "ada"}]]
    with pytest.raises(NotFound):
        await test.signal("00000000-0000-7000-8000-000000000000", "approved")


async def test_a_running_handler_hears_that_it_is_cancelled(app: App, test: UnderTest) -> None:
    begun = asyncio.Event()

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    handle = await endless.submit()
    draining = asyncio.create_task(test.drain())
    await begun.wait()
    await handle.cancel()
    async with asyncio.timeout(HANGS):
        assert [one.ending for one in await draining] == [Ending.CANCELLED]
    assert await handle.status() is State.CANCELLED


async def test_a_drain_that_is_cancelled_gives_its_task_back(app: App, test: UnderTest) -> None:
    begun, wait = asyncio.Event(), True

    @app.task
    async def work() -> None:
        begun.set()
        if wait:
            await asyncio.Event().wait()

    handle = await work.submit()
    draining = asyncio.create_task(test.drain())
    await begun.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(draining, HANGS)
    assert await handle.status() is State.PENDING
    wait = False
    assert len(await test.drain()) == 1


# The app


async def test_the_app_has_its_own_store_again(app: App) -> None:
    @app.task
    def work() -> None: ...

    async with app:
        own = app.engine
        mine = await work.submit()
        async with under_test(app) as test:
            assert app.engine is not own
            handle = await work.submit()
            assert len(await test.drain()) == 1
            with pytest.raises(NotFound):
                await mine.status()
        assert app.engine is own
        assert await mine.status() is State.PENDING
        with pytest.raises(NotFound):
            await handle.status()
        assert app.clock.now() > 0
        assert app.clock is not test.clock


async def test_the_store_of_the_app_is_not_even_made(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'own.db'}")

    @app.task
    def work() -> None: ...

    async with under_test(app):
        await work.submit()
    assert not (await asyncio.to_thread(lambda: list(tmp_path.iterdir())))


async def test_what_closes_the_app_meanwhile_loses_nothing(app: App, test: UnderTest) -> None:
    @app.task
    def work() -> None: ...

    async with app:
        await work.submit()
    assert len(await test.drain()) == 1


async def test_each_test_begins_with_nothing(app: App) -> None:
    @app.task
    def work() -> None: ...

    for _ in range(2):
        async with under_test(app) as test:
            assert test.submitted() == []
            await work.options(idempotency_key="once").submit()
            assert len(await test.drain()) == 1


async def test_hooks_run_before_the_first_task_and_at_the_end(app: App) -> None:
    said: list[str] = []

    @app.on_start
    async def start() -> None:
        app.state.lamp = "on"
        said.append("start")

    @app.on_stop
    def stop() -> None:
        said.append("stop")

    @app.task
    async def work() -> None:
        said.append(app.state.lamp)

    async with under_test(app) as test:
        await test.drain()
        assert said == []
        await work.submit()
        await test.drain()
    assert said == ["start", "on", "stop"]
    assert not hasattr(app.state, "lamp")
    async with under_test(app, lifespan=False) as test:
        await work.submit()
        [ran] = await test.drain()
    assert said == ["start", "on", "stop"]
    assert isinstance(ran.error, AttributeError)


async def test_types_of_other_programs_can_be_submitted_and_stay(app: App) -> None:
    async with under_test(app, elsewhere=("resize",)) as test:
        handle = await app.submit("resize", {"width": 3})
        assert await test.drain() == []
        assert await handle.status() is State.PENDING
        with pytest.raises(InvalidInput, match="resice"):
            await app.submit("resice", {"width": 3})


async def test_what_is_declared_later_is_known(app: App, test: UnderTest) -> None:
    await test.drain()

    @app.task(unique=Unique("one"), rate_limit="1/h")
    def work() -> None: ...

    first = await work.submit()
    assert (await work.submit()).id == first.id
    assert told(await test.drain()) == [("work", 1, "completed")]


async def test_a_test_that_is_over_or_not_begun_says_so(app: App) -> None:
    test = under_test(app)
    async with test:
        with pytest.raises(InvalidInput, match="begun already"):
            test.begin()
    with pytest.raises(InvalidInput, match="not begun, or is over"):
        await test.drain()


async def test_a_long_time_passes_by_itself(test: UnderTest) -> None:
    assert await test.advance("3650d") == []
    assert test.clock.now() == START + 3650 * DAY
