"""The pytest plugin: the fixture `taskmill_test`, which is `under_test(app)` without the block.

    async def test_welcome(taskmill_test):
        test = taskmill_test(app)
        await sign_up("ada@example.org")
        test.assert_submitted(send_welcome)
        await test.drain()

It is for plain tests and async ones alike, by pytest-asyncio or anyio. An async test uses its own event loop for the store and the handlers, so the store is
opened when the test first uses it, and closed on that loop when the test's function has ended; fixtures of no plugin could do both.
When a test fails, its report shows the attempts that failed before.

Everybody who has Taskmill installed loads this in every run, so it imports nothing but what pytest has loaded already.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.testing.face import UnderTest

__all__ = ["pytest_runtest_makereport", "taskmill_test"]

_tests = pytest.StashKey[list["UnderTest"]]()


@pytest.fixture
def taskmill_test(request: pytest.FixtureRequest) -> Iterator[Callable[..., UnderTest]]:
    """`taskmill_test(app, …)` puts the app on a store in memory until the test ends; options as of `taskmill.testing.under_test`."""
    from taskmill.testing import under_test

    item = request.node
    begun: list[UnderTest] = item.stash.setdefault(_tests, [])
    function = item.obj
    is_async = inspect.iscoroutinefunction(function)

    def begin(app: App, **options: Any) -> UnderTest:
        test = under_test(app, **options)
        if is_async:
            test.begin()
        else:
            test.__enter__()
        begun.append(test)
        return test

    if is_async:
        item.obj = _closing(function, begun)
    try:
        yield begin
    finally:
        item.obj = function
        for test in reversed(begun):
            test.close()


def _closing(function: Callable[..., Any], begun: list[UnderTest]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def closing(*args: Any, **kwargs: Any) -> None:
        try:
            await function(*args, **kwargs)
        finally:
            for test in reversed(begun):
                await test.aclose()

    return closing


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    begun = item.stash.get(_tests, None)
    if begun:
        report = outcome.get_result()
        failures = [one for test in begun for one in test.failures]
        if report.failed and failures:
            text = "\n".join(f"{one}\n{one.info.traceback if one.info is not None else ''}" for one in failures)
            report.sections.append(("Taskmill: attempts that failed", text))
