"""A server without keys over SQLite, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.surfaces.grpc.houses import Client, House, client, housed


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path) as made:
        yield made


@pytest.fixture
async def caller(house: House) -> AsyncIterator[Client]:
    async with client(house) as made:
        yield made
