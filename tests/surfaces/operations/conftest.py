"""Operations over a real store, whose every verb is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Call, Engine, observed
from taskmill.engines import create
from taskmill.operations import Operations


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def calls() -> list[Call]:
    """What was asked of the engine, in order."""
    return []


@pytest.fixture
async def engine(clock: ManualClock, calls: list[Call]) -> AsyncIterator[Engine]:
    engine = observed(create("sqlite://:memory:", clock=clock), calls.append)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def operations(engine: Engine) -> Operations:
    return Operations(engine)
