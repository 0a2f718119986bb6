"""The fixture `engine`: every installed engine, and each of them twice.

`heard`: the caller gets its answers. `lost`: every answer of every verb is thrown away and asked for again with the same arguments,
and the test sees only the second one. A promise that holds in one of them only does not hold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Status
from tests.conformance.tools import Store

Factory = Callable[[Path], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[str]:
    yield f"sqlite:///{folder / 'store.db'}"


STORES: dict[str, Factory] = {"sqlite": sqlite}
"""How to get the URL of a new, empty store that several engines can open at once."""

ANSWERS = ("heard", "lost")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "heard_only(reason): a repeated verb cannot show what this test is about")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    heard_only = metafunc.definition.get_closest_marker("heard_only")
    if heard_only is not None and not heard_only.args:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: heard_only needs a reason")
    answers = ANSWERS[:1] if heard_only else ANSWERS
    variants = [(name, answer) for name in STORES for answer in answers]
    metafunc.parametrize("store", variants, indirect=True, ids=["-".join(variant) for variant in variants])


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock; it stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store; `await store.engine()` opens one more engine on it."""
    name, answers = request.param
    async with STORES[name](tmp_path) as url:
        store = Store(url, clock, lost=answers == "lost")
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
async def engine(store: Store) -> Engine:
    return await store.engine()


@pytest.fixture
def fresh(store: Store) -> Status:
    """What submit answers for a task that was new: of a repeated one the second answer is all the caller hears."""
    return Status.DUPLICATE if store.lost else Status.CREATED
