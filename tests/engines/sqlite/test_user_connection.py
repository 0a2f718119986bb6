"""Connections that are not the engine's own: a second SQLite library in one process would drop the first one's locks."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.errors import WrongStore
from taskmill.task import State
from tests.conformance.tools import new, outcome, state, submit_one, worker


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    engine = create(f"sqlite:///{tmp_path / 'store.db'}", clock=ManualClock())
    await engine.open()
    yield engine
    await engine.close()


async def test_submit_refuses_a_connection_of_the_standard_library(engine: Engine) -> None:
    task = new()
    with closing(sqlite3.connect(":memory:")) as connection:
        tx: Any = connection
        with pytest.raises(WrongStore) as refused:
            await engine.submit([task], tx=tx)
    assert refused.value.code == "wrong_sqlite_library"
    assert refused.value.hint is not None
    assert "transaction" in refused.value.hint
    assert await engine.get([task.id]) == (None,)


async def test_finish_refuses_a_connection_of_the_standard_library(engine: Engine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    [task] = await one.claim()
    with closing(sqlite3.connect(":memory:")) as connection:
        tx: Any = connection
        with pytest.raises(WrongStore) as refused:
            await engine.finish([outcome(task)], tx=tx)
    assert refused.value.code == "wrong_sqlite_library"
    assert await state(engine, id) is State.RUNNING


async def test_a_connection_to_another_database_is_refused(engine: Engine, tmp_path: Path) -> None:
    task = new()
    with closing(apsw.Connection(str(tmp_path / "other.db"))) as connection:
        tx: Any = connection
        with pytest.raises(WrongStore):
            await engine.submit([task], tx=tx)
    assert await engine.get([task.id]) == (None,)
