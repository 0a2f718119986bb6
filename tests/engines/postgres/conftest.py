"""Databases with a store in them, and without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from taskmill.clock import ManualClock
from tests.servers.existing import Server

if TYPE_CHECKING:
    from tests.engines.postgres.stores import Stores


@pytest.fixture
def empty_url(postgres: Server) -> Iterator[str]:
    """A database in which there is nothing."""
    url = postgres.databases.empty()
    try:
        yield url
    finally:
        postgres.databases.drop(urlsplit(url).path.removeprefix("/"))


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock; it stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
async def stores(postgres_url: str, clock: ManualClock) -> AsyncIterator[Stores]:
    """An empty store: `await stores.engine()` is one more engine on it, `await stores.connect()` a plain connection."""
    from tests.engines.postgres.stores import stores_on

    async with stores_on(postgres_url, clock) as stores:
        yield stores
