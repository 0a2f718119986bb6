"""What many bytes, many watchers and many waiting answers may cost, over all callers together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from taskmill.client import problems
from taskmill.client.records import task_of
from taskmill.engine import Page
from taskmill.errors import StoreError
from taskmill.server.crowd import Crowd, Place, seats
from taskmill.server.grpc.arrived import MOST_BYTES, Arrived
from taskmill.server.grpc.health import Health
from taskmill.server.pages import FIRST, Pages, size_of
from taskmill.server.tls import Tls
from taskmill.server.wanted import EVERYTHING, Wanted
from taskmill.task import NewTask, Task
from tests.surfaces.api import served

TASKS = "/api/v1/tasks"
KILO = 1_000


# Pages


@pytest.fixture
async def large(tmp_path: Path) -> AsyncIterator[tuple[str, Any]]:
    async with served(tmp_path) as api:
        headers = {f"h{n}": "x" * 4_000 for n in range(4)}
        await api.engine.submit([NewTask(type="a", queue="q", payload=b"1", headers=headers) for _ in range(700)])
        yield api.url, api


async def test_pages_count_headers(large: tuple[str, Any]) -> None:
    _, api = large
    seen: list[str] = []
    cursor = ""
    for _ in range(20):
        page = await api("GET", f"{TASKS}?limit=1000{cursor}")
        assert len(page.text) < 12 << 20
        seen += [task["id"] for task in page.data["tasks"]]
        if page.data["cursor"] is None:
            break
        cursor = f"&cursor={page.data['cursor']}"
    assert len(seen) == len(set(seen)) == 700
    assert cursor


async def test_portions_follow_what_tasks_have(large: tuple[str, Any]) -> None:
    _, api = large
    [found] = await api.engine.get([(await api.submit("b", queue="q"))[0]])
    assert isinstance(found, Task)
    asked: list[int] = []

    async def portion(after: str | None, n: int) -> Page:
        asked.append(n)
        return Page((found,) * n, "more")

    room = 100 * size_of(found)
    tasks, cursor = await Pages().read(portion, None, 1_000, room)
    assert (asked[0], cursor) == (FIRST, "more")
    assert 100 <= len(tasks) <= 101
    assert max(asked) <= 100


# Answers that are not read


class Silent:
    def __init__(self) -> None:
        self.aborted = False
        self.transport = self

    def abort(self) -> None:
        self.aborted = True


def test_unread_answers_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmill.server.crowd.MOST_UNREAD", 100)
    crowd, callers = Crowd(), [Silent() for _ in range(4)]
    for caller in callers[:2]:
        crowd.wait(caller, 50)
    crowd.read(callers[0])
    crowd.wait(callers[2], 50)
    crowd.wait(callers[3], 30)
    assert [caller.aborted for caller in callers] == [False, True, False, False]
    for caller in callers:
        crowd.leave(caller)
    assert crowd.unread == 0


# Places


def test_places_by_address() -> None:
    crowd = Crowd(most=8)
    callers = [Silent() for _ in range(6)]
    assert [crowd.enter(caller, "192.0.2.1") for caller in callers[:3]] == [Place.SEAT, Place.SEAT, Place.RESERVE]
    assert [crowd.enter(caller, f"2001:db8::{n}") for n, caller in enumerate(callers[3:])] == [Place.SEAT, Place.SEAT, Place.RESERVE]
    crowd.leave(callers[0])
    assert crowd.enter(Silent(), "192.0.2.1") is Place.SEAT
    local = Crowd(most=8)
    assert [local.enter(Silent(), "127.0.0.1") for _ in range(9)] == [Place.SEAT] * 8 + [Place.RESERVE]


def test_seats_are_fewer_than_files() -> None:
    import resource

    most = seats()
    assert 16 <= most <= 10_000
    assert most < resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# gRPC


async def test_a_stream_of_submits_waits_by_its_bytes() -> None:
    arrived = Arrived(asyncio.Event())
    half = [NewTask(type="a", payload=b"1" * (MOST_BYTES // 2 + 1))]
    await arrived.add(half, None)
    second = asyncio.create_task(arrived.add(half, None))
    await asyncio.sleep(0)
    assert not second.done()
    assert await arrived.take()
    await second
    assert Arrived.bytes_of_all == MOST_BYTES // 2 + 1
    arrived.close()
    assert Arrived.bytes_of_all == 0


async def test_watchers_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmill.server.grpc.health.LOOK", 0.01)
    monkeypatch.setattr("taskmill.server.grpc.health.MOST_WATCHERS", 50)
    looks, well = [0], [True]

    async def ready() -> bool:
        looks[0] += 1
        return well[0]

    stopping = asyncio.Event()
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Health([], ready, stopping), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    serving = health_pb2.HealthCheckResponse
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(50)]
        assert {(await call.read()).status for call in calls} == {serving.SERVING}
        with pytest.raises(grpc.aio.AioRpcError, match="as many watch as may"):
            await stub.Watch(health_pb2.HealthCheckRequest()).read()
        before = looks[0]
        well[0] = False
        assert {(await call.read()).status for call in calls} == {serving.NOT_SERVING}
        assert before < 50
        stopping.set()
        for call in calls:
            assert await call.read() is grpc.aio.EOF
    await server.stop(None)


@pytest.mark.parametrize("reflected", [True, False])
async def test_reflection_is_a_setting(tmp_path: Path, reflected: bool) -> None:
    from taskmill.server.grpc.server import GrpcServer

    async with served(tmp_path) as api:
        service = api.service
        server = GrpcServer(service.desk, service.crew, service.keys, reflected=reflected)
        port = await server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            if reflected:
                assert (await call.read()).list_services_response.service
            else:
                with pytest.raises(grpc.aio.AioRpcError):
                    await call.read()
        await server.stop(0)


# Live events


@pytest.mark.parametrize(("wanted", "needs"), [(Wanted(events=frozenset({"queue.depth"})), False), (EVERYTHING, True)])
async def test_measures_need_no_events_of_the_store(tmp_path: Path, wanted: Wanted, needs: bool) -> None:
    async with served(tmp_path) as api:
        async with aiohttp.ClientSession() as session, session.get(f"{api.url}/api/v1/events{'' if needs else '?event=queue.depth'}") as answer:
            assert answer.status == 200
            assert {task.get_name() for task in api.service.hub._tasks} >= {"live events: measures"}
            assert ("live events" in {task.get_name() for task in api.service.hub._tasks}) == needs
        assert wanted.needs_store == needs


# Readiness


async def test_readiness_tries_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as api:
        await api.ok("GET", "/readyz")

        async def full(*_: object) -> bool:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(api.service.engine, "drop", full, raising=False)
        api.service._looked = None
        assert (await api("GET", "/readyz")).data == {"ready": False, "reasons": ["the store does not answer"]}


async def test_no_descriptor_left_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as api:

        async def full(*_: object, **__: object) -> object:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(api.service.desk, "get", full)
        assert (await api.refused(503, "GET", f"{TASKS}/{'0' * 8}-0000-7000-8000-{'0' * 12}")).code == "store_busy"


# TLS


def test_a_key_that_others_can_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from taskmill.config import Settings

    monkeypatch.setattr(Tls, "context", lambda self: None)
    key = tmp_path / "key.pem"
    key.write_bytes(b"")
    for mode, told in ((0o600, 0), (0o644, 1)):
        key.chmod(mode)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            Tls.of(Settings(tls_cert="cert.pem", tls_key="key.pem"), tmp_path)
        assert len([record for record in caplog.records if "chmod 600" in record.message]) == told


# The client


@pytest.mark.parametrize("data", [b"<html>", b"{", b"[]", b""])
def test_an_answer_that_is_none(data: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        problems.understood(data, dict[str, int])
    assert caught.value.code == "unexpected_answer"


def test_a_record_without_its_fields() -> None:
    with pytest.raises(StoreError) as caught:
        task_of({})
    assert caught.value.code == "unexpected_answer"


async def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskmill.client.http import Http

    monkeypatch.setattr("taskmill.client.http.MOST_ANSWER", 100 * KILO)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"3e8\r\n" + b" " * KILO + b"\r\n")
                await writer.drain()
        except OSError:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    http = Http((f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",), None, timeout=30_000_000, retries=0)
    with pytest.raises(StoreError) as caught:
        await http.ask("GET", "/api/v1/tasks")
    assert caught.value.code == "unexpected_answer"
    await http.close()
    server.close()
