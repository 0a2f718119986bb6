"""The door for synchronous callers: every awaitable verb, blocking, from threads and programs without a loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from taskmill import App, ResultTimeout, State, TaskType
from taskmill.engine import Ending, Joining, Outcome, Room
from taskmill.errors import InvalidInput, NotFound
from taskmill.sync import Door
from taskmill.task import new_id


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'store.db'}")

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
        joining: Joining = app.joining("w")
        await app.engine.join(joining)
        [claimed] = (await app.engine.claim("w", 1, joining.queues, Room(1))).tasks
        await app.engine.finish([Outcome(task=claimed.id, worker="w", token=claimed.token, ending=Ending.COMPLETED, result=result)])

    app.block("work", work)


def test_a_program_without_a_loop(app: App) -> None:
    handle = of(app).sync.submit(4)
    assert (handle.status(), handle.progress(), handle.wait(timeout=0)) == (State.PENDING, None, None)
    assert handle.task().payload == b'{"n":4}'
    with pytest.raises(ResultTimeout):
        handle.result(timeout="1ms")
    complete(app, b"8")
    assert handle.result() == 8
    assert not handle.cancel()
    assert repr(handle) == f"<SyncHandle double {handle.id}>"


def test_every_way_to_submit(app: App) -> None:
    double = of(app)
    delayed = double.options(delay="1h").sync.submit(1)
    assert delayed.status() is State.SCHEDULED
    assert delayed.cancel()
    named = app.sync.submit("double", {"n": 2}, priority="high")
    assert named.task().priority == 2
    called = app.sync.submit(double.call(3))
    typed = app.sync.submit(double, {"n": 4})
    many = app.sync.submit_many(double.call(n) for n in range(5, 8))
    assert [each.task().payload for each in (called, typed, *many)] == [b'{"n":%d}' % n for n in range(3, 8)]
    assert app.sync.handle(named.id).status() is State.PENDING


def test_errors_come_through(app: App) -> None:
    with pytest.raises(NotFound):
        app.sync.handle(new_id()).status()
    with pytest.raises(InvalidInput, match="it is missing"):
        of(app).sync.submit()


def test_open_and_close_and_open(app: App) -> None:
    app.sync.open()
    first = app.engine
    handle = of(app).sync.submit(1)
    app.sync.close()
    assert not any(thread.name == "taskmill-sync" for thread in threading.enumerate())
    assert handle.status() is State.PENDING
    assert app.engine is not first


async def test_inside_of_a_loop_the_door_names_the_awaitable(app: App) -> None:
    handle = await of(app).submit(1)
    verbs: dict[str, Any] = {
        "double.submit()": lambda: of(app).sync.submit(1),
        "double.options(…).submit()": lambda: of(app).options(delay=1).sync.submit(1),
        "app.submit()": lambda: app.sync.submit("double", {"n": 1}),
        "app.submit_many()": lambda: app.sync.submit_many([]),
        "handle.result()": handle.sync.result,
        "handle.status()": handle.sync.status,
        "app.open()": app.sync.open,
    }
    for awaitable, verb in verbs.items():
        with pytest.raises(InvalidInput) as caught:
            verb()
        assert caught.value.code == "running_loop"
        assert caught.value.hint == f"in async functions write: await {awaitable}"
    await app.close()


async def test_threads_use_the_loop_that_is_there(app: App) -> None:
    await app.open()
    handle = await asyncio.to_thread(lambda: of(app).sync.submit(1))
    assert await asyncio.to_thread(handle.status) is State.PENDING
    assert app.home is asyncio.get_running_loop()
    assert not any(thread.name == "taskmill-sync" for thread in threading.enumerate())
    await app.close()


async def test_a_loop_uses_the_store_that_the_door_opened(app: App) -> None:
    blocking = await asyncio.to_thread(lambda: of(app).sync.submit(1))
    assert app.home is not asyncio.get_running_loop()
    assert await app.handle(blocking.id).status() is State.PENDING
    assert await (await of(app).submit(2)).status() is State.PENDING
    await asyncio.to_thread(app.sync.close)


def test_many_threads_share_one_door(app: App) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(of(app).sync.submit(1).id)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 10
    assert sum(thread.name == "taskmill-sync" for thread in threading.enumerate()) == 1


def test_an_interrupted_caller_takes_its_work_back() -> None:
    door = Door()
    ended = threading.Event()
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    class Interrupt(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    def send() -> None:
        assert begun.wait(10)
        while not waits(sys._current_frames()[caller]):  # an earlier signal would meet it before it waits
            os.sched_yield()
        signal.pthread_kill(caller, signal.SIGUSR1)

    def waits(frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_name != "result":
            frame = frame.f_back
        return frame is not None

    caller = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Interrupt):
            door.run("forever()", forever)
        assert ended.wait(10)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
        door.close()


def test_a_door_that_was_never_used_closes() -> None:
    Door().close()
