"""Sentinels name the primary. It dies, or is silent, and another takes its place: engines and workers go on with that one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmill.engines import create
from taskmill.errors import InvalidSettings, StoreError
from tests.conftest import GIVEN
from tests.faults.clients import BOUNDS, at_work
from tests.faults.growing import Growing
from tests.faults.invariants_redis import broken
from tests.faults.workers import BRISK, new, place_at
from tests.history import check, load
from tests.servers import redis_sentinel as sentinels
from tests.servers.absence import skip
from tests.servers.programs import FOLDERS, Absent
from tests.servers.redis_sentinel import Guarded

STILL = frozenset({"token_order", "foreign_type", "early_start", "key_answer", "deposed_write"})
"""Rules that hold also over what the replica had not got yet."""


@pytest.fixture
def guarded(pytestconfig: pytest.Config) -> Iterator[Guarded]:
    try:
        with sentinels.guarded(folders=pytestconfig.stash[GIVEN].get(FOLDERS)) as made:
            yield made
    except Absent as absent:
        skip(absent)


@pytest.mark.chaos
async def test_the_primary_dies_under_load(tmp_path: Path, guarded: Guarded) -> None:
    url, history = guarded.url(), tmp_path / "history"
    async with at_work(url, history):
        growing = Growing(history)
        await growing.completed(100)
        old = guarded.primary()
        old.stop("kill")
        await asyncio.to_thread(guarded.replaced, old)
        await growing.goes_on()
        old.start()  # as a primary, until it is told otherwise; nobody asks it
        await growing.completed(100)
    assert broken(url) == []
    assert [violation for violation in check(load(history), BOUNDS) if violation.rule in STILL] == []


@pytest.mark.parametrize("how", ["killed", pytest.param("silent", marks=pytest.mark.chaos)])
async def test_a_worker_goes_on_with_the_promoted_one(tmp_path: Path, guarded: Guarded, how: str) -> None:
    """What was submitted and what comes is completed; no call waits as long as it might."""
    async with place_at(tmp_path, BRISK, url=guarded.url(more="&busy_timeout=10m")) as place, place.worker() as worker:
        children = await worker.joined()
        await place.all_ended(await place.submit(*(new("work", ms=1) for _ in range(10))))
        old = guarded.primary()
        if how == "killed":
            old.stop("kill")
        else:
            os.kill(old.pid, signal.SIGSTOP)
        tasks = await place.submit(*(new("work", ms=1) for _ in range(20)))
        await asyncio.to_thread(guarded.replaced, old)
        await place.all_ended(tasks)
        if how == "silent":
            os.kill(old.pid, signal.SIGCONT)
            await place.all_ended(await place.submit(*(new("work", ms=1) for _ in range(20))))
        assert worker.children() == children
        assert await worker.stop() == 0
    assert broken(guarded.url()) == []


async def test_a_name_that_no_sentinel_knows(guarded: Guarded) -> None:
    engine = create(guarded.url("other"))
    with pytest.raises(InvalidSettings) as refused:
        await engine.open()
    assert (refused.value.code, refused.value.hint) == ("unknown_primary", "look at sentinel= and the hosts")
    assert "'other'" in refused.value.message


async def test_sentinels_that_do_not_answer(guarded: Guarded) -> None:
    """One line; the first that answers is enough."""
    for sentinel in guarded.sentinels[:2]:
        sentinel.stop("kill")
    engine = create(guarded.url())
    await engine.open()
    await engine.close()
    guarded.sentinels[2].stop("kill")
    with pytest.raises(StoreError) as refused:
        await create(guarded.url(more="&busy_timeout=1s")).open()
    assert refused.value.hint
    env = {**os.environ, "TASKMILL_URL": guarded.url(more="&busy_timeout=1s")}
    said = await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "taskmill", "check"], env=env, capture_output=True, text=True, check=False)
    assert said.returncode in (1, 2)
    assert len(said.stderr.strip().splitlines()) == 1, said.stderr
    assert "cannot be reached" in said.stderr
    assert guarded.servers[0].password not in said.stderr
