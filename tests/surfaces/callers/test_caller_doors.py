"""The blocking twins behind `.sync`, from programs without a loop and from threads; of an App and of a Client."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from taskmill import App, ResultTimeout, State, TaskType
from taskmill.engine import Ending, Joining, Outcome, Room
from taskmill.errors import InvalidInput, NotFound
from taskmill.task import new_id
from tests.surfaces.callers.conftest import Caller


@pytest.fixture
def app(store: str) -> Iterator[App]:
    app = App(store)

    @app.task(queue="mail")
    def double(n: int) -> int:
        return 2 * n

    yield app
    app.sync.close()


def of(app: App) -> TaskType[..., Any, Any]:
    return app.types["double"]


def complete(app: App, result: bytes) -> None:
    """A worker's part, done by hand on the app's own loop."""

    async def work() -> None:
        await app.open()
        joining: Joining = app.joining("w")
        await app.engine.join(joining)
        [claimed] = (await app.engine.claim("w", 1, joining.queues, Room(1))).tasks
        await app.engine.finish([Outcome(task=claimed.id, worker="w", token=claimed.token, ending=Ending.COMPLETED, result=result)])

    app.block("work", work)


def test_a_program_without_a_loop(app: App, caller: Caller) -> None:
    handle = caller.sync.submit(of(app).call(4))
    assert (handle.status(), handle.progress(), handle.wait(timeout=0)) == (State.PENDING, None, None)
    assert handle.task().payload == b'{"n":4}'
    with pytest.raises(ResultTimeout):
        handle.result(timeout="1ms")
    complete(app, b"8")
    assert handle.result() == 8
    assert not handle.cancel()
    assert repr(handle) == f"<SyncHandle double {handle.id}>"


def test_every_way_to_submit(app: App, caller: Caller) -> None:
    double = of(app)
    delayed = caller.sync.submit(double.options(delay="1h").call(1))
    assert delayed.status() is State.SCHEDULED
    assert delayed.cancel()
    named = caller.sync.submit("double", {"n": 2}, priority="high", queue="mail")
    assert named.task().priority == 2
    called = caller.sync.submit(double.call(3))
    typed = caller.sync.submit(double, {"n": 4})
    many = caller.sync.submit_many(double.call(n) for n in range(5, 8))
    assert [each.task().payload for each in (called, typed, *many)] == [b'{"n":%d}' % n for n in range(3, 8)]
    assert caller.sync.handle(named.id).status() is State.PENDING
    assert caller.sync.submit_many([]) == []


def test_errors_come_through(app: App, caller: Caller) -> None:
    with pytest.raises(NotFound):
        caller.sync.handle(new_id()).status()
    with pytest.raises(InvalidInput, match="it is missing"):
        caller.sync.submit(of(app), {})


def test_open_and_close_and_open(app: App, caller: Caller) -> None:
    caller.sync.open()
    first = caller.operations
    handle = caller.sync.submit(of(app).call(1))
    caller.sync.close()
    assert not any(thread.name == "taskmill-sync" for thread in threading.enumerate())
    with pytest.raises(InvalidInput, match="not open"):
        _ = caller.operations
    assert handle.status() is State.PENDING
    assert caller.operations is not first


async def test_inside_of_a_loop_the_door_names_the_awaitable(app: App, caller: Caller) -> None:
    handle = await caller.submit(of(app).call(1))
    verbs: dict[str, Any] = {
        f"{caller.word}.submit()": lambda: caller.sync.submit("double", {"n": 1}),
        f"{caller.word}.submit_many()": lambda: caller.sync.submit_many([]),
        "handle.result()": handle.sync.result,
        "handle.status()": handle.sync.status,
        f"{caller.word}.open()": caller.sync.open,
    }
    for awaitable, verb in verbs.items():
        with pytest.raises(InvalidInput) as caught:
            verb()
        assert caught.value.code == "running_loop"
        assert caught.value.hint == f"in async functions write: await {awaitable}"
    await caller.close()


async def test_threads_use_the_loop_that_is_there(app: App, caller: Caller) -> None:
    await caller.open()
    handle = await asyncio.to_thread(lambda: caller.sync.submit(of(app).call(1)))
    assert await asyncio.to_thread(handle.status) is State.PENDING
    assert caller.home is asyncio.get_running_loop()
    assert not any(thread.name == "taskmill-sync" for thread in threading.enumerate())
    await caller.close()


async def test_a_loop_uses_what_the_door_opened(app: App, caller: Caller) -> None:
    blocking = await asyncio.to_thread(lambda: caller.sync.submit(of(app).call(1)))
    assert caller.home is not asyncio.get_running_loop()
    assert await caller.handle(blocking.id).status() is State.PENDING
    assert await (await caller.submit(of(app).call(2))).status() is State.PENDING
    await asyncio.to_thread(caller.sync.close)


async def test_another_loop_is_taken_home(app: App, caller: Caller) -> None:
    await caller.open()

    async def elsewhere() -> tuple[str, State]:
        assert asyncio.get_running_loop() is not caller.home
        handle = await caller.submit(of(app).call(5))
        return handle.id, await handle.status()

    id, status = await asyncio.to_thread(asyncio.run, elsewhere())
    assert status is State.PENDING
    assert (await caller.handle(id).task()).payload == b'{"n":5}'
    await caller.close()


def test_a_second_loop_opens_anew(app: App, caller: Caller) -> None:
    async def submit() -> str:
        return (await caller.submit(of(app).call(1))).id

    async def look(id: str) -> State:
        try:
            return await caller.handle(id).status()
        finally:
            await caller.close()

    id = asyncio.run(submit())
    assert asyncio.run(look(id)) is State.PENDING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a connection of a loop that is gone can only be thrown away
        gc.collect()


def test_many_threads_share_one_door(app: App, caller: Caller) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(caller.sync.submit(of(app).call(1)).id)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 10
    assert sum(thread.name == "taskmill-sync" for thread in threading.enumerate()) == 1
