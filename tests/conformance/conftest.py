"""The fixture `engine`: every installed engine, and each of them twice.

`heard`: the caller gets its answers. `lost`: every answer of every verb is thrown away and asked for again with the same arguments,
and the test sees only the second one. A promise that holds in one of them only does not hold.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import apsw
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Status
from taskmill.engines import create
from tests.conformance.tools import Store
from tests.faults.invariants import miscounted
from tests.servers.existing import Server
from tests.servers.redis import Shared, empty
from tests.servers.redis_cluster import RedisCluster

STORES = {"sqlite": "sqlite_url"}
"""Which fixture gives the URL of a new, empty store that several engines can open at once."""
with suppress(ImportError):
    import_module("taskmill.engines.postgres.engine")
    STORES["postgres"] = "postgres_url"

with suppress(ImportError):
    import_module("taskmill.engines.redis.engine")
    STORES |= {"redis": "redis_url", "cluster": "redis_cluster_url"}

ANSWERS = ("heard", "lost")
LONG = {("cluster", "lost"): pytest.mark.soak}
"""A shard of a Cluster runs the scripts of one server, which hear it lost in every run; the way to the shards is repeated in long ones."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "heard_only(reason): a repeated verb cannot show what this test is about")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    heard_only = metafunc.definition.get_closest_marker("heard_only")
    if heard_only is not None and not heard_only.args:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: heard_only needs a reason")
    answers = ANSWERS[:1] if heard_only else ANSWERS
    variants = [pytest.param((name, answer), id=f"{name}-{answer}", marks=LONG.get((name, answer), ())) for name in STORES for answer in answers]
    metafunc.parametrize("variant", variants, indirect=True)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock; it stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which store, and whether its answers are heard."""
    name, answers = request.param
    return name, answers


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def store_url(request: pytest.FixtureRequest, variant: tuple[str, str]) -> str:
    url = request.getfixturevalue(STORES[variant[0]])
    assert isinstance(url, str)
    return url


def miscounted_at(url: str) -> list[str]:
    """Whatever a test has done: the counts that every step of SQLite keeps are those of its tasks."""
    db = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        return list(miscounted(db))
    finally:
        db.close()


@pytest.fixture
async def store(variant: tuple[str, str], store_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store; `await store.engine()` opens one more engine on it."""
    store = Store(store_url, clock, lost=variant[1] == "lost")
    try:
        yield store
    finally:
        await store.close()
        if variant[0] == "sqlite":
            assert miscounted_at(store_url) == []


@pytest.fixture
async def engine(store: Store) -> Engine:
    return await store.engine()


@pytest.fixture
def second_url(request: pytest.FixtureRequest, variant: tuple[str, str], tmp_path: Path) -> Iterator[str]:
    """A second empty store of the same kind."""
    match variant[0]:
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'second.db'}"
        case "postgres":
            server: Server = request.getfixturevalue("postgres")
            url = server.databases.give()
            try:
                yield url
            finally:
                server.databases.take_back(url)
        case "redis":
            shared: Shared = request.getfixturevalue("redis_server")
            prefix = f"taskmill-test-{secrets.token_hex(4)}"
            yield shared.url(prefix)
            empty(shared, prefix)
        case _:
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            yield cluster.url("second")


@pytest.fixture
async def second_engine(variant: tuple[str, str], second_url: str, store: Store, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine on another store than `engine`, which is empty. The fixture `store` empties a Cluster after it."""
    second = Store(second_url, clock, lost=store.lost)
    try:
        yield await second.engine()
    finally:
        await second.close()


@pytest.fixture
async def racing(store: Store) -> AsyncIterator[list[Engine]]:
    """Four engines that ask the store for the time, as the product does."""
    engines = [create(store.url) for _ in range(4)]
    for each in engines:
        await each.open()
    try:
        yield engines
    finally:
        for each in engines:
            await each.close()


@pytest.fixture
def fresh(store: Store) -> Status:
    """What submit answers for a task that was new: of a repeated one the second answer is all the caller hears."""
    return Status.DUPLICATE if store.lost else Status.CREATED
