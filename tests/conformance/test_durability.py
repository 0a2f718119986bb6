"""durability= of one submit is a minimum: the answer says at least that, or the store says what it can reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Durability, Engine
from taskmill.engines import create
from taskmill.errors import InvalidInput, TaskmillError
from tests.conformance.tools import LostAnswers, Store, accepted, all_tasks, new, record, submit

LEVELS = (Durability.LOCAL, Durability.FSYNC, Durability.REPLICATED)


def reaches(given: Durability, asked: Durability) -> bool:
    return LEVELS.index(given) >= LEVELS.index(asked)


@pytest.fixture(params=[None, Durability.LOCAL], ids=["default", "local"])
async def opened(request: pytest.FixtureRequest, store: Store, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine as it is opened without a word on durability, and one that need not wait for the disk."""
    made = create(store.url, clock=clock, durability=request.param)
    await made.open()
    try:
        yield cast("Engine", LostAnswers(made)) if store.lost else made
    finally:
        await made.close()


async def test_local_is_always_reached(opened: Engine) -> None:
    [answer] = await opened.submit([task := new()], durability=Durability.LOCAL)
    assert accepted(answer) == task.id
    assert reaches(answer.durability, Durability.LOCAL)


async def test_fsync_is_reached_or_refused(opened: Engine) -> None:
    task = new()
    try:
        [answer] = await opened.submit([task], durability=Durability.FSYNC)
    except TaskmillError as refused:
        assert opened.features.name == "redis", "the other stores have a disk"
        assert refused.hint
        assert await opened.get([task.id]) == (None,)
    else:
        assert reaches(answer.durability, Durability.FSYNC)


async def test_replicated_is_refused_where_there_is_no_other_machine(opened: Engine) -> None:
    """Before anything is stored; Redis learns it only afterwards, and says that the answer is open."""
    task = new()
    with pytest.raises(TaskmillError) as refused:
        await opened.submit([task], durability=Durability.REPLICATED)
    if opened.features.name == "redis":
        assert refused.value.code in {"durability_unconfirmed", "durability_unavailable"}
        return
    assert isinstance(refused.value, InvalidInput)
    assert (refused.value.code, refused.value.field) == ("durability_unavailable", "durability")
    assert "fsync" in f"{refused.value.message} {refused.value.hint}"
    assert await opened.get([task.id]) == (None,)
    assert await all_tasks(opened) == []
    await submit(opened, task)


async def test_submits_at_once_each_reach_their_own_level(opened: Engine) -> None:
    asked = [level for _ in range(30) for level in (None, Durability.LOCAL, Durability.FSYNC)]
    if opened.features.name == "redis":
        asked = [level for level in asked if level is not Durability.FSYNC]
    answers = await asyncio.gather(*(opened.submit([new(n)], durability=level) for n, level in enumerate(asked)))
    for level, [answer] in zip(asked, answers, strict=True):
        accepted(answer)
        assert reaches(answer.durability, level or Durability.LOCAL)


async def test_a_repeat_reaches_what_it_asks_for(opened: Engine) -> None:
    task = new()
    await opened.submit([task], durability=Durability.LOCAL)
    [answer] = await opened.submit([task], durability=Durability.LOCAL)
    assert accepted(answer) == task.id
    assert (await record(opened, task.id)).id == task.id
