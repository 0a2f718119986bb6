"""Engines on one file; each has threads and caches of its own, as another process would have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from taskmill.clock import ManualClock
from taskmill.engines.sqlite.engine import SQLiteEngine

Opened = Callable[..., Awaitable[SQLiteEngine]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def opened(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Opened]:
    """`await opened()` is one more engine on the store of this test."""
    engines: list[SQLiteEngine] = []

    async def open_one(**options: Any) -> SQLiteEngine:
        engine = SQLiteEngine(tmp_path / "store.db", **{"clock": clock, **options})
        await engine.open()
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        await engine.close()
