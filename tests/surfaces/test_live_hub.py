"""The hub by itself: what it holds back, what it gives up, and that it serves connections of any server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from websockets.asyncio.client import connect

from taskmill.clock import ManualClock
from taskmill.config import Settings
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.errors import StoreError
from taskmill.operations import Operations
from taskmill.server import subscription
from taskmill.server.access import ANYBODY, Keys
from taskmill.server.http import Http
from taskmill.server.hub import Hub
from taskmill.server.listening import bound
from taskmill.server.news import Form
from taskmill.server.ring import Ring
from taskmill.server.service import Service
from taskmill.server.subscription import Ended, Subscription
from taskmill.server.wanted import EVERYTHING, Wanted
from tests.conformance.tools import submit_many, submit_one
from tests.surfaces.live import Event, eventually

TASKS = Wanted(events=frozenset({"task.submitted"}))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opened = create(f"sqlite:///{tmp_path / 'store.db'}")
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hub(engine: Engine, clock: ManualClock) -> AsyncIterator[Hub]:
    """Keys are looked at when the test says so."""
    made = Hub(Operations(engine), Keys(engine, clock=clock, open=True), clock=clock, check=1_000, linger=0)
    yield made
    await made.close()


async def next_of(listener: Subscription) -> Event:
    async with asyncio.timeout(20):
        event: Event = json.loads(await anext(listener))
    return event


async def heard(hub: Hub, events: int) -> None:
    """Until the hub has heard so many."""
    await eventually(lambda: hub._ring.number >= events)


async def test_nothing_goes_out_on_old_news_of_the_keys(hub: Hub, engine: Engine, clock: ManualClock) -> None:
    async with await hub.subscribe(ANYBODY, {TASKS}) as listener:
        clock.advance(6)
        await submit_one(engine)
        await heard(hub, 1)
        await submit_one(engine)
        await heard(hub, 2)
        assert not listener._waiting
        await hub._check_keys()
        missed = await next_of(listener)
        assert (missed["type"], missed["data"]) == ("resync", {"reason": "behind"})
        id = await submit_one(engine)
        assert (await next_of(listener))["data"]["task_id"] == id


async def test_more_than_can_be_passed_on_is_told_as_missed(hub: Hub, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "MOST_AT_ONCE", 10_000)
    async with await hub.subscribe(ANYBODY, {TASKS}) as one, await hub.subscribe(ANYBODY, {TASKS}) as other:
        await submit_many(engine, 500)
        await heard(hub, 500)
        for listener in (one, other):
            while (await next_of(listener))["type"] != "resync":
                pass
        id = await submit_one(engine)
        for listener in (one, other):
            told = 1
            while (await next_of(listener))["data"].get("task_id") != id:
                told += 1
            assert told < 500


async def test_a_buffer_has_an_end(hub: Hub, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "MOST_EVENTS", 100)
    async with await hub.subscribe(ANYBODY, {TASKS}) as idle, await hub.subscribe(ANYBODY, {Wanted(queues=frozenset({"other"}))}) as busy:
        ids = await submit_many(engine, 150)
        await heard(hub, len(ids))
        await submit_one(engine, queue="other")
        await next_of(busy)
        assert idle.ended is Ended.SLOW
        assert hub.listeners == 1
        with pytest.raises(StopAsyncIteration):
            await anext(idle)


async def test_a_group_costs_one_text_for_all(hub: Hub, engine: Engine) -> None:
    """The very same bytes: what is written once is not written again for anyone."""
    listeners = [await hub.subscribe(ANYBODY, {EVERYTHING}, Form.FRAME) for _ in range(50)]
    await submit_one(engine)
    texts = [await anext(listener) for listener in listeners]
    assert all(text is texts[0] for text in texts)
    for listener in listeners:
        listener.close()


async def test_who_was_away_for_longer_than_the_ring_remembers_is_told(hub: Hub, engine: Engine) -> None:
    hub._ring = Ring(4)
    async with await hub.subscribe(ANYBODY, {TASKS}) as listener:
        await submit_one(engine)
        place = (await next_of(listener))["id"]
        missed = await submit_many(engine, 4)
        await heard(hub, 5)
        async with await hub.subscribe(ANYBODY, {TASKS}, after=place) as again:
            assert [(await next_of(again))["data"]["task_id"] for _ in missed] == missed
        await submit_one(engine)
        await heard(hub, 6)
        async with await hub.subscribe(ANYBODY, {TASKS}, after=place) as late:
            told = await next_of(late)
        assert (told["type"], told["data"], told["id"]) == ("resync", {"reason": "reconnected"}, hub.place)


async def test_more_than_may_wait_for_a_listener_is_not_told_again(hub: Hub, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await hub.subscribe(ANYBODY, {TASKS}) as listener:
        await submit_one(engine)
        place = (await next_of(listener))["id"]
        await submit_many(engine, 10)
        await heard(hub, 11)
        monkeypatch.setattr("taskmill.server.hub.MOST_BYTES", 2_000)
        async with await hub.subscribe(ANYBODY, {TASKS}, after=place) as again:
            assert (await next_of(again))["type"] == "resync"


async def test_the_stream_waits_for_some_seconds_and_no_longer(engine: Engine, clock: ManualClock) -> None:
    hub = Hub(Operations(engine), Keys(engine, clock=clock, open=True), clock=clock, check=1_000, linger=0.05)
    (await hub.subscribe(ANYBODY, {TASKS})).close()
    assert hub._tasks
    await eventually(lambda: not hub._tasks)
    assert hub._ring.after(hub.place) is not None  # the next one begins another epoch
    place = hub.place
    async with await hub.subscribe(ANYBODY, {TASKS}, after=place) as listener:
        assert (await next_of(listener))["type"] == "resync"
    await hub.close()


async def test_nobody_is_let_in_while_it_stops(hub: Hub) -> None:
    async with await hub.subscribe(ANYBODY, {EVERYTHING}) as listener:
        hub.drain()
        assert listener.ended is Ended.DRAINING
        with pytest.raises(StoreError) as refused:
            await hub.subscribe(ANYBODY, {EVERYTHING})
        assert refused.value.code == "draining"


async def test_a_listener_that_is_cancelled_while_it_comes_leaves_nothing(hub: Hub) -> None:
    for _ in range(20):
        coming = asyncio.create_task(hub.subscribe(ANYBODY, {EVERYTHING}))
        await asyncio.sleep(0)
        coming.cancel()
        await asyncio.wait({coming})
        if not coming.cancelled():
            coming.result().close()
    await eventually(lambda: not hub.listeners and not hub._tasks)


# Another server


@asynccontextmanager
async def plain_server(engine: Engine, tmp_path: Path) -> AsyncIterator[int]:
    """Uvicorn as it comes, without what `sockets` adds."""
    service = Service(engine, Settings(), audit=tmp_path / "audit.log", open=True)
    with bound("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(Http(service, ()), ws="websockets-sansio", lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        yield sock.getsockname()[1]
        server.should_exit = True
        await serving
        await service.hub.close()


async def test_a_server_that_knows_nothing_but_asgi(engine: Engine, tmp_path: Path) -> None:
    async with plain_server(engine, tmp_path) as port, connect(f"ws://127.0.0.1:{port}/ws?event=task.*") as client:
        id = await submit_one(engine)
        assert json.loads(await client.recv())["data"]["task_id"] == id
        await client.send('{"action": "ping"}')
        assert json.loads(await client.recv())["type"] == "pong"
