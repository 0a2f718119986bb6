"""Handles: what can be asked about a task after it was submitted, and what its result may come to; of an App and of a Client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from taskmill import App, Handle, ResultExpired, ResultTimeout, State, TaskCancelled, TaskFailed
from taskmill.engine import Ending, Joining, Outcome, Room, Target
from taskmill.errors import Conflict, InvalidInput, InvalidPayload, NotFound
from taskmill.handle import Cancelled
from taskmill.task import ErrorInfo, NewTask, Progress, TypeSettings, new_id
from tests.surfaces.callers.conftest import Caller


@dataclass
class Report:
    pages: int


@pytest.fixture
async def app(store: str) -> AsyncIterator[App]:
    app = App(store)

    @app.task
    def report(pages: int = 1) -> Report:
        return Report(pages)

    await app.open()
    await app.engine.join(app.joining("w"))
    yield app
    await app.close()


@pytest.fixture
async def handle(app: App, caller: Caller) -> AsyncIterator[Handle[Any]]:
    yield await caller.submit(app.types["report"].call(3))
    await caller.close()


async def end(app: App, ending: Ending, *, result: bytes | None = None, error: ErrorInfo | None = None) -> None:
    [claimed] = (await app.engine.claim("w", 1, ["default"], Room(1))).tasks
    outcome = Outcome(task=claimed.id, worker="w", token=claimed.token, ending=ending, result=result, error=error)
    assert (await app.engine.finish([outcome])).refused == ()


async def test_a_result_has_the_type_that_the_handler_returns(app: App, caller: Caller, handle: Handle[Any]) -> None:
    await end(app, Ending.COMPLETED, result=b'{"pages":3}')
    assert await handle.result() == Report(3)
    assert await caller.handle(handle.id).result() == {"pages": 3}
    assert await handle.status() is State.COMPLETED
    assert await handle.wait() is State.COMPLETED


async def test_a_result_that_comes_while_waiting(app: App, caller: Caller, handle: Handle[Any]) -> None:
    waiting = asyncio.gather(handle.result(timeout="30s"), handle.wait(), handle.result())
    await end(app, Ending.COMPLETED, result=b'{"pages":3}')
    assert await waiting == [Report(3), State.COMPLETED, Report(3)]


async def test_no_result_is_none(app: App, caller: Caller, handle: Handle[Any]) -> None:
    await end(app, Ending.COMPLETED, result=b"null")
    assert await caller.handle(handle.id).result() is None


async def test_a_task_that_is_dead(app: App, caller: Caller, handle: Handle[Any]) -> None:
    error = ErrorInfo("ValueError", "no such page", "Traceback …")
    await end(app, Ending.DEAD, error=error)
    with pytest.raises(TaskFailed) as caught:
        await handle.result()
    assert caught.value.message == "the task is dead: ValueError: no such page"
    assert (caught.value.error, caught.value.task_id) == (error, handle.id)


async def test_a_task_that_was_cancelled(handle: Handle[Any]) -> None:
    assert await handle.cancel() is Cancelled.DONE
    assert await handle.status() is State.CANCELLED
    with pytest.raises(TaskCancelled) as caught:
        await handle.result()
    assert caught.value.task_id == handle.id


async def test_cancel_of_one_that_has_completed(app: App, caller: Caller, handle: Handle[Any]) -> None:
    await end(app, Ending.COMPLETED)
    assert await handle.cancel() is Cancelled.ENDED
    assert not Cancelled.ENDED


async def test_cancel_of_one_that_runs_tells_that_its_worker_was_told(app: App, caller: Caller, handle: Handle[Any]) -> None:
    await app.engine.join(Joining(worker="w", queues=("default",), types={"report": TypeSettings()}))
    [claimed] = (await app.engine.claim("w", 1, ["default"], Room(1))).tasks
    told = await caller.handle(claimed.id).cancel()
    assert told is Cancelled.REQUESTED
    assert told
    assert await handle.status() is State.RUNNING


async def test_a_task_that_is_accepted_and_not_yet_here(app: App, caller: Caller) -> None:
    await app.open()
    new = NewTask(type="report", queue="default", payload=b'{"pages":3}')
    await app.engine.submit([new], reserved=True)
    handle = caller.handle(new.id)
    assert await handle.status() is State.PENDING
    assert await handle.wait(timeout="10ms") is None
    with pytest.raises(Conflict, match="not yet here") as reading:
        await handle.task()
    assert (reading.value.code, bool(reading.value.hint)) == ("reserved", True)
    assert await handle.cancel() is Cancelled.DONE
    assert await handle.wait(timeout="10s") is State.CANCELLED


async def test_the_time_is_over(handle: Handle[Any]) -> None:
    with pytest.raises(ResultTimeout) as caught:
        await handle.result(timeout=0)
    assert caught.value.task_id == handle.id
    assert await handle.wait(timeout="1ms") is None
    with pytest.raises(InvalidInput, match="timeout"):
        await handle.result(timeout="soon")


async def test_the_record_is_gone(app: App, caller: Caller, handle: Handle[Any]) -> None:
    await end(app, Ending.COMPLETED, result=b'{"pages":3}')
    await app.engine.delete([Target(handle.id)])
    with pytest.raises(ResultExpired) as caught:
        await handle.result()
    assert caught.value.task_id == handle.id
    assert await handle.status() is State.COMPLETED


async def test_a_task_that_never_was(caller: Caller) -> None:
    nobody = caller.handle(new_id())
    for ask in (nobody.status, nobody.task, nobody.result, nobody.cancel, nobody.progress):
        with pytest.raises(NotFound):
            await ask()
    await caller.close()


async def test_a_result_of_another_version(app: App, caller: Caller, handle: Handle[Any]) -> None:
    await end(app, Ending.COMPLETED, result=b'"three"')
    with pytest.raises(InvalidPayload) as caught:
        await handle.result()
    assert caught.value.code == "result_decoding"


async def test_progress(app: App, caller: Caller, handle: Handle[Any]) -> None:
    from taskmill.engine import Checkpoint

    assert await handle.progress() is None
    [claimed] = (await app.engine.claim("w", 1, ["default"], Room(1))).tasks
    await app.engine.checkpoint([Checkpoint(task=claimed.id, worker="w", token=claimed.token, progress=Progress(0.5, "half"))])
    assert await handle.progress() == Progress(0.5, "half")


async def test_handles_are_equal_by_task(app: App, caller: Caller, handle: Handle[Any]) -> None:
    assert caller.handle(handle.id) == handle
    assert len({caller.handle(handle.id), handle}) == 1
    assert caller.handle(new_id()) != handle
    assert repr(handle) == f"<Handle report {handle.id}>"
    assert repr(caller.handle(handle.id)) == f"<Handle task {handle.id}>"
