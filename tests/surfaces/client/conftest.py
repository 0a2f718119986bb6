"""A server over a store in a file, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from taskmill import Client
from taskmill.engine import Engine
from taskmill.engines import create
from tests.surfaces.serving import Server, serving


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def server(store: str, tmp_path: Path) -> Iterator[Server]:
    with serving(store, tmp_path) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


@pytest.fixture
async def engine(store: str) -> AsyncIterator[Engine]:
    """The same store, seen from beside the server."""
    engine = create(store)
    await engine.open()
    yield engine
    await engine.close()
