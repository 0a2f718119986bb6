"""What a client does that knows nothing but the address: reflection, health, and the sessions of docs/api/grpc.md as they are printed there."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.surfaces.grpc.houses import HANGS, Client, House, client, housed, new

PAGE = Path(__file__).resolve().parents[3] / "docs/api/grpc.md"


# Reflection: what grpcurl does, knowing nothing but the address


async def ask(channel: grpc.aio.Channel, **question: Any) -> reflection_pb2.ServerReflectionResponse:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # its types know no asyncio
    stream = stub.ServerReflectionInfo()
    await stream.write(reflection_pb2.ServerReflectionRequest(**question))
    answer = await stream.read()
    await stream.done_writing()
    assert isinstance(answer, reflection_pb2.ServerReflectionResponse)
    return answer


async def files(channel: grpc.aio.Channel, pool: descriptor_pool.DescriptorPool, **question: str) -> None:
    """The file that has something, and all that it imports, into a pool."""
    for data in (await ask(channel, **question)).file_descriptor_response.file_descriptor_proto:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        for name in file.dependency:
            await files(channel, pool, file_by_filename=name)
        pool.Add(file)


async def test_a_client_without_stubs_finds_everything(caller: Client) -> None:
    services = (await ask(caller.channel, list_services="")).list_services_response.service
    expected = {"taskmill.v1.Tasks", "taskmill.v1.Store", "taskmill.v1.Workers", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert {service.name for service in services} == expected
    pool = descriptor_pool.DescriptorPool()
    await files(caller.channel, pool, file_containing_symbol="taskmill.v1.NewTask")
    assert "idempotency_key" in pool.FindMessageTypeByName("taskmill.v1.NewTask").fields_by_name


def calls_of_the_page() -> list[tuple[str, str, str]]:
    """Of every printed call: its header, its data and its method."""
    [session] = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found = []
    for line in session.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "))
        assert words[:2] == ["grpcurl", "-plaintext"]
        if "-d" in words:
            assert words[-2] == "127.0.0.1:9090"
            found.append((words[words.index("-H") + 1], words[words.index("-d") + 1], words[-1]))
    return found


async def called(channel: Any, header: str, data: str, method: str) -> dict[str, Any]:
    """What grpcurl does, and prints: the first answer as JSON."""
    pool = descriptor_pool.DescriptorPool()
    service, _, name = method.partition("/")
    await files(channel, pool, file_containing_symbol=service)
    found = pool.FindServiceByName(service).FindMethodByName(name)
    question, answer = message_factory.GetMessageClass(found.input_type), message_factory.GetMessageClass(found.output_type)
    make = channel.unary_stream if found.server_streaming else channel.unary_unary
    key, _, value = header.partition(": ")
    call = make(f"/{method}", request_serializer=question.SerializeToString, response_deserializer=answer.FromString)(
        json_format.Parse(data, question()), metadata=((key, value),), timeout=HANGS
    )
    message = await (call.read() if found.server_streaming else call)
    if found.server_streaming:
        call.cancel()
    return json_format.MessageToDict(message)


async def test_the_printed_session_works(house: House) -> None:
    token = await house.key("admin")
    async with client(house, token) as caller:
        await caller.join("send_welcome")
        id = ""
        for header, printed, method in calls_of_the_page():
            # It would wait for the end, and nobody works here.
            data = json.dumps({**json.loads(printed), "id": id, "wait": "0s"}) if method.endswith("/Get") else printed
            answer = await called(caller.channel, header.replace("tm_…", token), data, method)
            match method:
                case "taskmill.v1.Tasks/Submit":
                    id = answer["submitted"]["id"]
                case "taskmill.v1.Tasks/Get":
                    assert (answer["id"], answer["type"], answer["payload"]) == (id, "send_welcome", "eyJ1c2VyX2lkIjo0Mn0=")
                case _:
                    assert answer["type"] == "ready"
        assert id


async def test_the_printed_python_works(house: House) -> None:
    token = await house.key("admin")
    async with client(house, token) as caller:
        await caller.join("send_welcome")
        [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        names: dict[str, Any] = {}
        await asyncio.to_thread(exec, code.replace("127.0.0.1:9090", house.address).replace("tm_…", token), names)
        assert (await caller.get(names["answer"].submitted.id)).payload == b'{"user_id":42}'


# Health


async def test_health_follows_the_server(tmp_path: Path) -> None:
    well = True

    async def ready() -> bool:
        return well

    async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path, ready=ready) as house, grpc.aio.insecure_channel(house.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "taskmill.v1.Tasks", "taskmill.v1.Workers"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watching = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        well = False
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        well = True
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        house.server._gate.stopping.set()
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watching.read() is grpc.aio.EOF


async def test_health_and_reflection_ask_for_no_key(house: House) -> None:
    await house.key("read")
    async with grpc.aio.insecure_channel(house.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        assert (await ask(channel, list_services="")).list_services_response.service
        with pytest.raises(grpc.aio.AioRpcError):
            await Client(channel).submit(new())
