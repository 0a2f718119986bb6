"""The door for synchronous callers: every awaitable verb, blocking, from threads and programs without a loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmill import App, State, TaskType
from taskmill.errors import InvalidInput
from taskmill.sync import Door


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
        signal.pthread_kill(caller, signal.SIGUSR1)

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
