"""Waiting for results: many waits on few connections, each told its own end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskmill import Client, Handle, State
from taskmill.client import waiting
from taskmill.engine import Ending, Engine, Joining, Outcome, Room
from taskmill.errors import NotFound, ResultTimeout
from taskmill.task import TypeSettings, new_id
from tests.surfaces.serving import Server, wire

WAIT = "POST /api/v1/tasks:wait"


async def work(engine: Engine, number: int) -> None:
    """So many tasks, each with its own number as the result."""
    await engine.join(Joining(worker="w", queues=("q",), types={"note": TypeSettings(queue="q")}))
    for request in range(1, 1_000_000):
        claimed = (await engine.claim("w", request, ["q"], Room(50))).tasks
        if not claimed:
            return
        ends = [Outcome(task=each.id, worker="w", token=each.token, ending=Ending.COMPLETED, result=each.payload) for each in claimed]
        await engine.finish(ends)
        number -= len(claimed)
        if number <= 0:
            return


async def submitted(client: Client, number: int) -> list[Handle[Any]]:
    return list(await asyncio.gather(*(client.submit("note", n, queue="q") for n in range(number))))


async def test_many_waits_need_few_connections(server: Server, engine: Engine) -> None:
    async with wire(server) as (counting, url), Client(url) as client:
        handles = await submitted(client, 400)
        results = [asyncio.ensure_future(handle.result()) for handle in handles]
        await client.count()
        await work(engine, 400)
        assert await asyncio.gather(*results) == list(range(400))
        assert counting.connections <= 64


async def test_waits_of_a_crowd_that_nobody_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ALONE", 1)
    handles = await submitted(client, 5)
    assert await asyncio.gather(*(handle.wait("20ms") for handle in handles)) == [None] * 5
    with pytest.raises(ResultTimeout):
        await asyncio.gather(*(handle.result("20ms") for handle in handles))
    assert client.operations._waits._crowd == {}


async def test_unknown_ids_in_a_crowd_hurt_no_other(client: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ALONE", 0)
    handles = await submitted(client, 3)
    nobody = client.handle(new_id())
    waits = asyncio.gather(handles[0].wait(), nobody.wait(), handles[1].wait(), handles[0].result(), return_exceptions=True)
    await work(engine, 3)
    found = await waits
    assert [found[0], found[2], found[3]] == [State.COMPLETED, State.COMPLETED, 0]
    assert isinstance(found[1], NotFound)
    assert found[1].task_id == nobody.id


async def test_a_crowd_is_told_when_its_key_is_gone(server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ALONE", 0)
    from taskmill.errors import Unauthenticated

    server.key()
    async with Client(server.url, "tm_000000000000_" + "A" * 43) as client:
        found = await asyncio.gather(*(client.handle(new_id()).wait() for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [Unauthenticated] * 3
    assert len({id(each) for each in found}) == 3


async def test_a_wait_is_one_request(client: Client, server: Server, engine: Engine) -> None:
    [handle] = await submitted(client, 1)
    result = asyncio.ensure_future(handle.result(timeout="60s"))
    await client.count()
    await work(engine, 1)
    assert await result == 0
    assert server.requests[WAIT] <= 2


async def test_operations_wait_for_any_of_many(client: Client, engine: Engine) -> None:
    handles = await submitted(client, 3)
    ids = [handle.id for handle in handles]
    assert await client.operations.wait(ids, 0) == {}
    assert await client.operations.wait([], 0) == {}
    assert await handles[1].cancel()
    assert await client.operations.wait(ids) == {ids[1]: State.CANCELLED}
    with pytest.raises(NotFound):
        await client.operations.wait([*ids, new_id()], 0)
    with pytest.raises(ResultTimeout):
        await client.operations.result(ids[0], 1_000)
    assert (await client.operations.result(ids[1])).state is State.CANCELLED
