"""A client and its key: unknown ones, what each may do, whose tasks it sees, and that nobody else ever reads it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from taskmill import Client, State
from taskmill.client.records import Hidden
from taskmill.config import Secret
from taskmill.engine import Ending, Engine, Filter, Joining, Outcome, Room
from taskmill.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthenticated
from taskmill.task import TypeSettings, new_id
from tests.surfaces.serving import Server

FOREIGN = "tm_000000000000_" + "A" * 43


async def completed(engine: Engine, result: bytes) -> None:
    await engine.join(Joining(worker="w", queues=("q",), types={"note": TypeSettings(queue="q")}))
    [claimed] = (await engine.claim("w", 1, ["q"], Room(1))).tasks
    await engine.finish([Outcome(task=claimed.id, worker="w", token=claimed.token, ending=Ending.COMPLETED, result=result)])


@pytest.mark.parametrize("key", [None, FOREIGN])
async def test_a_key_that_the_server_does_not_know(server: Server, key: str | None) -> None:
    server.key()
    async with Client(server.url, key) as client:
        for verb in (lambda: client.submit("note", 1, queue="q"), lambda: client.get(new_id()), client.count):
            with pytest.raises(Unauthenticated) as caught:
                await verb()
            assert caught.value.code == "unauthenticated"
    assert server.requests["401"] == 3


async def test_a_key_that_may_only_submit(server: Server, engine: Engine) -> None:
    async with Client(server.url, server.key("submit")) as client:
        handle = await client.submit("note", 1, queue="q")
        for verb in (handle.status, handle.result, handle.cancel, client.count):
            with pytest.raises(Forbidden):
                await verb()
    assert [task.id for task in (await engine.list(Filter(), n=10)).tasks] == [handle.id]


async def test_a_key_that_may_not_read_payloads_sees_no_result(server: Server, engine: Engine) -> None:
    key = server.key("submit", "read")
    async with Client(server.url, key) as client:
        handle = await client.submit("note", {"secret": 1}, queue="q", headers={"a": "b"})
        await completed(engine, b'"secret"')
        assert await handle.wait() is State.COMPLETED
        task = await handle.task()
        assert (type(task.payload), type(task.result), task.headers) == (Hidden, Hidden, {})
        assert "secret" not in repr(task)
        with pytest.raises(Forbidden, match="read-payload"):
            await handle.result()
    async with Client(server.url, server.key("read", "read-payload")) as other:
        assert await other.handle(handle.id).result() == "secret"


async def test_a_tenant_sees_its_own(server: Server, engine: Engine) -> None:
    acme, other = server.key("submit", "read", "cancel", tenant="acme"), server.key("submit", "read", "cancel", tenant="other")
    async with Client(server.url, acme) as ours, Client(server.url, other) as theirs:
        mine = await ours.submit("note", 1, queue="q")
        assert (await mine.task()).tenant == "acme"
        foreign = theirs.handle(mine.id)
        for verb in (foreign.status, foreign.cancel, foreign.result, foreign.wait):
            with pytest.raises(NotFound):
                await verb()
        assert await theirs.count() == 0
        assert [task.id async for task in ours.list()] == [mine.id]


async def test_one_refused_task_of_a_tenant_keeps_no_other_out(server: Server, engine: Engine) -> None:
    acme, other = server.key("submit", "read", tenant="acme"), server.key("submit", "read", tenant="other")
    async with Client(server.url, acme) as ours, Client(server.url, other) as theirs:
        mine = await ours.submit("note", 1, queue="q")
        words: list[dict[str, Any]] = [{}, {"after": mine}, {"id": mine.id}, {}]
        answers = await asyncio.gather(*(theirs.submit("note", 1, queue="q", **each) for each in words), return_exceptions=True)
        assert [(type(answers[n]), getattr(answers[n], "code", None)) for n in (1, 2)] == [(InvalidInput, "unknown_task"), (Conflict, "id_taken")]
        assert await theirs.count() == 2


async def test_the_key_is_never_shown(server: Server, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG)
    key = server.key("submit")
    client = Client(server.url, key, timeout="100ms")
    await client.submit("note", 1, queue="q")
    with pytest.raises(Forbidden) as refused:
        await client.count()
    await asyncio.to_thread(server.stop)
    with pytest.raises(Exception, match="127") as away:
        await client.count()
    shown = [repr(client), repr(vars(client)), repr(client.settings), str(refused.value), repr(refused.value), str(away.value), repr(away.value), caplog.text]
    assert not any(key in text or key[16:] in text for text in shown)
    await client.close()


async def test_a_key_in_the_clear_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    client = Client("http://tasks.example.com", Secret(FOREIGN))
    for _ in range(2):
        await client.open()
        await client.close()
    [line] = [record.getMessage() for record in caplog.records if record.name == "taskmill"]
    assert "in the clear" in line
    assert FOREIGN not in line
    for quiet in (Client("https://tasks.example.com", FOREIGN), Client("http://localhost:1", FOREIGN), Client("http://tasks.example.com")):
        async with quiet:
            pass
    assert len([record for record in caplog.records if record.name == "taskmill"]) == 1
