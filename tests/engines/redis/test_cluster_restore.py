"""On a Cluster: edges onto tasks of other shards that come later, or are only reserved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine, Record, Target
from taskmill.engines import create
from taskmill.engines.redis.placement import shards_of
from taskmill.engines.settings import Settings
from taskmill.task import Edge, EdgeResult, OnFailure, State, Task, new_id
from tests.conformance.tools import new, state, submit, worker

HERE, THERE = "default", "mail"


@pytest.fixture
async def engine(redis_cluster_url: str) -> AsyncIterator[Engine]:
    assert shards_of(HERE, Settings(())) != shards_of(THERE, Settings(()))
    found = create(redis_cluster_url, clock=ManualClock())
    await found.open()
    yield found
    await found.close()


def whole(engine: Engine, id: str, queue: str, now: State, *waits_for: str) -> Record:
    at = engine.clock.now()
    finished = at if now is State.COMPLETED else None
    task = Task(
        id=id, type="work", queue=queue, payload=b"1", priority=1, state=now, version=1, run_at=at, created_at=at, updated_at=at, open_edges=len(waits_for),
        finished_at=finished, result=b"7" if finished else None,
    )  # fmt: skip
    return Record(task=task, edges=tuple(EdgeResult(other, OnFailure.CANCEL, None, None) for other in waits_for))


IDS: dict[str, Callable[[Engine], str]] = {"says its shard": lambda engine: engine.new_id(THERE), "says none": lambda _: new_id()}


async def run(engine: Engine, id: str) -> None:
    hand = await worker(engine, queues=(HERE, THERE))
    claimed = await hand.claim(9)
    assert [task.id for task in claimed] == [id]
    await hand.done(*claimed)


@pytest.mark.parametrize("made", IDS)
@pytest.mark.parametrize("how", ["restored", "restored ended", "submitted"])
async def test_a_restored_task_waits_for_one_of_another_shard_that_comes_later(engine: Engine, made: str, how: str) -> None:
    child, parent = IDS[made](engine), new_id()
    assert await engine.restore([whole(engine, parent, HERE, State.WAITING, child)]) == (True,)
    assert await state(engine, parent) is State.WAITING
    assert await engine.get([child]) == (None,)
    if how == "submitted":
        await submit(engine, new(1, id=child, queue=THERE))
    else:
        assert await engine.restore([whole(engine, child, THERE, State.COMPLETED if "ended" in how else State.PENDING)]) == (True,)
    if "ended" not in how:
        assert await state(engine, parent) is State.WAITING
        await run(engine, child)
    await engine.recover_lost()
    assert await state(engine, parent) is State.PENDING


@pytest.mark.parametrize("end", ["run", "cancelled"])
async def test_a_task_waits_for_a_reserved_one_of_another_shard(engine: Engine, end: str) -> None:
    child, parent = new(1, id=engine.new_id(THERE), queue=THERE), new(2, edges=())
    await engine.submit([child], reserved=True)
    parent = new(2, edges=(Edge(child.id, OnFailure.IGNORE),))
    await submit(engine, parent)
    assert await state(engine, parent.id) is State.WAITING
    if end == "run":
        await submit(engine, child)
        await run(engine, child.id)
    else:
        [changed] = (await engine.cancel([Target(child.id)])).tasks
        assert changed.state is State.CANCELLED
    await engine.recover_lost()
    assert await state(engine, parent.id) is State.PENDING
