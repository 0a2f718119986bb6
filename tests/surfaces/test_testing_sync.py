"""The same without an event loop: the store on a loop in the background, plain handlers on the thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from taskmill import App, Context, Retry, State
from taskmill.errors import AppError, InvalidInput
from taskmill.testing import UnderTest, under_test


@pytest.fixture
def app() -> App:
    return App("sqlite://:memory:")


@pytest.fixture
def test(app: App) -> Iterator[UnderTest]:
    with under_test(app) as found:
        yield found


def test_submit_and_drain(app: App, test: UnderTest) -> None:
    @app.task
    def work(number: int) -> int:
        return number + 1

    handle = work.sync.submit(1)
    test.assert_submitted(work, number=1)
    [ran] = test.sync.drain()
    assert (ran.result, ran.ending) == (2, "completed")
    assert handle.result() == 2
    assert test.sync.task(handle).state is State.COMPLETED


def test_plain_handlers_run_on_the_thread_of_the_test_and_async_ones_beside_it(app: App, test: UnderTest) -> None:
    threads: dict[str, int] = {}

    @app.task
    async def child() -> None:
        threads["child"] = threading.get_ident()

    @app.task(isolated=True)
    def parent(ctx: Context) -> None:
        threads["parent"] = threading.get_ident()
        ctx.sync.checkpoint("seen")
        ctx.sync.submit(child)

    parent.sync.submit()
    assert [one.type for one in test.sync.drain()] == ["parent", "child"]
    assert threads["parent"] == threading.get_ident()
    assert threads["child"] != threading.get_ident()


def test_a_handler_that_waits_for_another_does_not_hang(app: App, test: UnderTest) -> None:
    @app.task
    def child() -> int:
        return 1

    @app.task
    def parent(ctx: Context) -> int:
        return 1 + ctx.sync.submit(child).result()

    parent.sync.submit()
    assert {one.type: one.result for one in test.sync.drain()} == {"parent": 2}
    assert [one.type for one in test.ran] == ["child", "parent"]


def test_who_waits_for_a_result_runs_it(app: App, test: UnderTest) -> None:
    @app.task
    def work() -> int:
        return 3

    assert work.sync.submit().result() == 3
    assert len(test.ran) == 1


def test_time_errors_and_signals(app: App, test: UnderTest) -> None:
    @app.task(retry=Retry.fixed("1m", max_retries=1))
    def wrong(ctx: Context) -> None:
        raise ValueError(len(ctx.signals))

    handle = wrong.sync.submit()
    assert len(test.sync.drain()) == 1
    test.sync.signal(handle, "go")
    test.raise_errors = True
    with pytest.raises(ValueError, match="1"):
        test.sync.advance("1m")
    assert test.sync.run_until(test.clock.now() + 1) == []
    assert handle.status() is State.DEAD


def test_an_interrupt_in_a_handler_reaches_the_test(app: App, test: UnderTest) -> None:
    @app.task
    def work() -> None:
        raise KeyboardInterrupt

    work.sync.submit()
    with pytest.raises(KeyboardInterrupt):
        test.sync.drain()


def test_code_under_test_with_loops_of_its_own(app: App, test: UnderTest) -> None:
    """As a web framework's test client has one for each request: the store outlives them."""

    @app.task
    async def work(number: int) -> None: ...

    async def request(number: int) -> None:
        await work.submit(number)

    for number in (1, 2):
        asyncio.run(request(number))
    assert [one.arguments["number"] for one in test.sync.drain()] == [1, 2]


def test_each_face_names_the_other(app: App, test: UnderTest) -> None:
    with pytest.raises(InvalidInput, match=r"test\.sync\.drain"):
        _ = test.drain()

    async def wrong_face() -> None:
        with pytest.raises(InvalidInput, match=r"await test\.drain"):
            test.sync.drain()
        with pytest.raises(InvalidInput, match="async with"):
            under_test(App("sqlite://:memory:")).__enter__()

    asyncio.run(wrong_face())


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("taskmill")}


def is_open(app: App) -> bool:
    try:
        return app.engine is not None
    except AppError:
        return False


def test_the_app_and_its_threads_are_as_before(app: App) -> None:
    before = own_threads()
    with under_test(app):
        assert own_threads() > before
        with under_test(app) as inner:
            assert inner.sync.drain() == []
        assert is_open(app)
    assert not is_open(app)
    assert own_threads() == before
