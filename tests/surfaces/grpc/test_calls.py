"""What every call passes: errors with details, deadlines, quotas, what is told of calls, and how a server stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc
import pytest

from taskmill.errors import InvalidInput, StoreError, TaskmillError
from taskmill.server.grpc import gate
from taskmill.server.grpc.server import GrpcServer
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import NewTask
from tests.surfaces.grpc.houses import HANGS, Client, House, client, details, new, refused

Code = grpc.StatusCode


# Errors


async def test_a_refusal_names_the_field_and_the_remedy(caller: Client) -> None:
    error = await refused(caller.tasks.Submit(pb.SubmitRequest(task=new(type="No Name"))), Code.INVALID_ARGUMENT, "invalid_name")
    found = details(error)
    assert found["ErrorInfo"].metadata["field"] == "type"
    assert "lower-case" in found["ErrorInfo"].metadata["hint"]
    assert [violation.field for violation in found["BadRequest"].field_violations] == ["type"]
    assert str(error.details()).startswith("type: ")


async def test_a_refusal_names_the_task(caller: Client) -> None:
    id = await caller.submit()
    error = await refused(caller.tasks.Delete(pb.DeleteRequest(id=id)), Code.FAILED_PRECONDITION, "not_terminal")
    assert dict(details(error)["ErrorInfo"].metadata)["task_id"] == id


async def test_a_used_up_rate_says_when_to_come_back(house: House) -> None:
    token = await house.key("read", rate=1)
    async with client(house, token) as caller:
        await caller.tasks.List(pb.ListRequest(), metadata=caller.metadata)
        error = await refused(caller.tasks.List(pb.ListRequest(), metadata=caller.metadata), Code.RESOURCE_EXHAUSTED, "request_quota")
        delay = details(error)["RetryInfo"].retry_delay
        assert 0 < delay.seconds + delay.nanos / 1e9 <= 1


async def test_a_stream_under_a_rate_is_slowed_down_and_not_ended(house: House) -> None:
    token = await house.key("submit", rate=5)
    async with client(house, token) as caller:
        stream = caller.tasks.SubmitStream(metadata=caller.metadata, timeout=HANGS)
        for _ in range(7):
            await stream.write(pb.SubmitBatchRequest(tasks=[new()]))
            assert isinstance(await stream.read(), pb.SubmitBatchResponse)


async def test_a_full_queue_refuses_those_with_a_quota(house: House) -> None:
    token = await house.key("submit", depth=1)
    await house.engine.submit([NewTask(type="mail.send", queue="mail")])
    async with client(house, token) as caller:
        error = await refused(caller.submit(), Code.RESOURCE_EXHAUSTED, "queue_quota")
        assert details(error)["RetryInfo"].retry_delay.seconds == 1


async def test_a_store_that_is_away_is_unavailable(caller: Client, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> object:
        raise StoreError("the store does not answer", hint="start it")

    monkeypatch.setattr(house.service.operations, "list", away)
    await refused(caller.tasks.List(pb.ListRequest()), Code.UNAVAILABLE, "store_unavailable")


async def test_a_defect_tells_nothing_and_leaves_the_server_alive(
    caller: Client, house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("secret thing")

    monkeypatch.setattr(house.service.operations, "list", broken)
    error = await refused(caller.tasks.List(pb.ListRequest()), Code.INTERNAL, "internal")
    assert "secret" not in str(error)
    assert "ZeroDivisionError" in caplog.text
    assert await caller.submit()


# Deadlines


async def test_a_call_without_a_deadline_has_the_servers(caller: Client, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(gate, "DEADLINE", 0.2)
    monkeypatch.setattr(house.service.operations, "list", slow)
    await refused(caller.tasks.List(pb.ListRequest()), Code.DEADLINE_EXCEEDED, "deadline_exceeded")
    assert ended.is_set()
    assert (house.seen[-1][1], house.seen[-1][2]) == ("taskmill.v1.Tasks/List", "DEADLINE_EXCEEDED")


async def test_a_stream_without_a_deadline_has_the_servers(caller: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "STREAM_DEADLINE", 0.3)
    stream = caller.tasks.SubmitStream()
    await stream.write(pb.SubmitBatchRequest(tasks=[new()]))
    assert isinstance(await stream.read(), pb.SubmitBatchResponse)
    await refused(stream.read(), Code.DEADLINE_EXCEEDED, "deadline_exceeded")


async def test_a_call_that_is_given_up_stops_its_work(caller: Client, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(house.service.operations, "list", slow)
    call = caller.tasks.List(pb.ListRequest())
    waiting = asyncio.ensure_future(call)
    async with asyncio.timeout(HANGS):
        await began.wait()
        call.cancel()
        await ended.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


async def test_a_deadline_that_passes_stops_the_work(caller: Client, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(house.service.operations, "list", slow)
    await refused(caller.tasks.List(pb.ListRequest(), timeout=0.2), Code.DEADLINE_EXCEEDED)
    async with asyncio.timeout(HANGS):
        await ended.wait()


# What is told of calls


async def test_every_call_is_told_with_its_status(caller: Client, house: House) -> None:
    await caller.submit()
    await refused(caller.get("00000000-0000-0000-0000-000000000000"), Code.NOT_FOUND)
    told = [(surface, route, status) for surface, route, status, _ in house.seen]
    assert told == [("grpc", "taskmill.v1.Tasks/Submit", "OK"), ("grpc", "taskmill.v1.Tasks/Get", "NOT_FOUND")]
    assert all(micros > 0 for *_, micros in house.seen)


# Ports


async def server_of(house: House) -> GrpcServer:
    return GrpcServer(house.service.desk, house.service.crew, house.service.keys)


async def test_a_port_that_is_taken_is_told_in_one_error(house: House) -> None:
    other = await server_of(house)
    with pytest.raises(TaskmillError, match=f"port {house.server.port} of 127.0.0.1 is in use") as caught:
        await other.start("127.0.0.1", house.server.port)
    assert caught.value.code == "port_in_use"
    assert caught.value.hint
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(TaskmillError, match="is in use"):
            await other.start("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("no.such.host.invalid", 0), ("203.0.113.7", 0)])
async def test_a_place_that_cannot_be(house: House, host: str, port: int) -> None:
    other = await server_of(house)
    with pytest.raises(InvalidInput):
        await other.start(host, port)


# Stopping


async def test_a_server_that_stops_answers_those_who_wait(house: House) -> None:
    async with client(house) as caller:
        worker = await caller.join()
        id = await caller.submit(queue="elsewhere")
        get = pb.GetRequest(id=id)
        get.wait.FromSeconds(50)
        waiting = asyncio.ensure_future(caller.tasks.Get(get, timeout=HANGS))
        claiming = asyncio.create_task(caller.claim(worker, wait=50))
        claims = caller.workers.ClaimStream(timeout=HANGS)
        await claims.write(pb.ClaimCredit(worker=worker, request=5, credit=1))
        submits = caller.tasks.SubmitStream(timeout=HANGS)
        await submits.write(pb.SubmitBatchRequest(tasks=[new(queue="elsewhere")]))
        assert isinstance(await submits.read(), pb.SubmitBatchResponse)
        watching = caller.tasks.Watch(pb.WatchRequest(), timeout=HANGS)
        await watching.read()
        stopping = asyncio.create_task(house.server.stop(30))
        await refused(waiting, Code.UNAVAILABLE, "stopping")
        assert not await claiming
        await refused(claims.read(), Code.UNAVAILABLE, "stopping")
        await refused(submits.read(), Code.UNAVAILABLE, "stopping")
        await refused(_to_the_end(watching), Code.UNAVAILABLE, "stopping")
        async with asyncio.timeout(20):
            await stopping


async def _to_the_end(stream: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.Event]) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass
