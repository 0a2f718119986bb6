"""Bad input: bytes that are no gRPC, messages that are none, messages that mean nothing; a clean answer each, and the server lives."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskmill.server.grpc.server import MOST_BYTES
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import new_id
from tests.surfaces.grpc.houses import HANGS, TYPE, Client, House, details, new, refused

Code = grpc.StatusCode
METHODS = [method for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods]


# Bytes on the port


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff" * 5_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\xff\xff\x01\x04\x00\x00\x00\x01" + b"x" * 500,
    ],
    ids=["garbage", "HTTP/1.1", "a TLS hello", "no frames", "a header frame without end"],
)
async def test_what_is_no_grpc_is_closed(house: House, caller: Client, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
    with contextlib.suppress(OSError):
        writer.write(data)
        await writer.drain()
        writer.write_eof()
    async with asyncio.timeout(HANGS):
        with contextlib.suppress(OSError):
            await reader.read()
    writer.close()
    assert await caller.submit()


# Messages


async def test_a_message_that_is_too_large(caller: Client) -> None:
    task = new(payload=b'"' + b"x" * MOST_BYTES + b'"')
    await refused(caller.tasks.Submit(pb.SubmitRequest(task=task)), Code.RESOURCE_EXHAUSTED)
    stream = caller.tasks.SubmitStream(timeout=HANGS)
    await stream.write(pb.SubmitBatchRequest(tasks=[task]))
    await refused(stream.read(), Code.RESOURCE_EXHAUSTED)
    assert await caller.submit()


async def test_metadata_that_is_too_large(caller: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await caller.tasks.Submit(pb.SubmitRequest(task=new()), metadata=(("x-large", "x" * 60_000),))
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED
    assert await caller.submit()


async def test_a_method_that_is_none(caller: Client) -> None:
    channel: Any = caller.channel
    for path in ("/taskmill.v1.Tasks/Explode", "/taskmill.v2.Tasks/Submit", "/", "/../etc/passwd"):
        await refused(channel.unary_unary(path)(b""), Code.UNIMPLEMENTED)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x04\x0a\x02\xff\xfe", b"\x0a" * 50], ids=["tag", "length", "UTF-8", "nested"])
async def test_bytes_that_are_no_message(caller: Client, data: bytes) -> None:
    channel: Any = caller.channel
    await refused(channel.unary_unary("/taskmill.v1.Tasks/Submit")(data), Code.INVALID_ARGUMENT, "invalid_message")
    stream = channel.stream_stream("/taskmill.v1.Tasks/SubmitStream")(timeout=HANGS)
    await stream.write(data)
    await refused(stream.read(), Code.INVALID_ARGUMENT, "invalid_message")


def seconds(field: str, number: int, nanos: int = 0) -> pb.NewTask:
    task = new()
    getattr(task, field).seconds, getattr(task, field).nanos = number, nanos
    return task


@pytest.mark.parametrize(
    ("task", "reason", "field"),
    [
        (None, "task_required", "task"),
        (pb.NewTask(), "type_required", "type"),
        (new(type=""), "type_required", "type"),
        *[(new(type=text), "invalid_name", "type") for text in ("x" * 300, "../../etc", "a:b", "a{b}c", "a\nb", "a*", "'; DROP TABLE tasks;--", "é", "a\0")],
        (new(queue="No Name"), "invalid_name", "queue"),
        (new(type="unheard", queue=""), "unknown_type", "type"),
        (new(payload=b"{"), "invalid_json", "payload"),
        (new(payload=b" "), "body_required", "payload"),
        (new(payload=b"\xff"), "invalid_utf8", "payload"),
        (new(payload='{"a":1}'.encode("utf-16")), "invalid_utf8", "payload"),
        (new(payload=b"[" * 100_000), "too_deep", "payload"),
        (new(payload=b'{"a":1,"a":2}'), "duplicate_key", "payload"),
        (new(payload=b"NaN"), "not_finite", "payload"),
        (new(payload=b"1e999"), "not_finite", "payload"),
        (new(payload=b"9" * 5_000), "integer_too_large", "payload"),
        (new(payload=b'"\\u0000"'), "nul_character", "payload"),
        (new(payload=b'"\\ud800"'), "lone_surrogate", "payload"),
        (new(payload=b'"' + b"x" * (256 * 1024 - 1) + b'"'), "payload_too_large", "payload"),
        (new(id="x"), "invalid_id", "id"),
        (new(priority=5), "unknown_enum", "priority"),
        (new(priority=-1), "unknown_enum", "priority"),
        (new(on_limit=9), "unknown_enum", "on_limit"),
        (new(max_crashes=-1), "out_of_range", "max_crashes"),
        (new(retry=pb.Retry(max_retries=-1)), "invalid_retry", "max_retries"),
        (new(retry=pb.Retry(max_retries=2**31 - 1)), "invalid_retry", "max_retries"),
        (new(retry=pb.Retry(jitter=float("nan"))), "invalid_retry", "jitter"),
        (new(idempotency_key="x" * 257), "invalid_key", "idempotency_key"),
        (new(idempotency_key="a\nb"), "invalid_key", "idempotency_key"),
        (new(unique=pb.Unique(key="")), "invalid_key", "unique.key"),
        (new(unique=pb.Unique(key="a", until="noon")), "invalid_input", "unique.until"),
        (new(headers={"x": "a\r\nY: b"}), "invalid_header", "headers.x"),
        (new(tags={"__proto__": "x"}), "invalid_name", "tags"),
        (new(tags={"a": "x" * 10_000}), "invalid_key", "tags.a"),
        (new(tags={f"t{number}": "x" for number in range(1_001)}), "invalid_input", "tags"),
        (new(limits=["No Name"]), "invalid_name", "limits"),
        (new(after=[pb.Edge()]), "invalid_id", "after"),
        (new(after=[pb.Edge(task=new_id(), on_failure=7)]), "unknown_enum", "after.on_failure"),  # type: ignore[arg-type]
        (seconds("run_at", 253_402_300_800), "invalid_time", "run_at"),
        (seconds("run_at", -1), "invalid_time", "run_at"),
        (seconds("run_at", 1, 2_000_000_000), "invalid_time", "run_at"),
        (seconds("delay", -1), "invalid_duration", "delay"),
        (seconds("delay", 1 << 62), "invalid_duration", "delay"),
        (seconds("timeout", 0), "out_of_range", "timeout"),
        (seconds("timeout", 10**9), "out_of_range", "timeout"),
    ],
)
async def test_tasks_that_cannot_be(caller: Client, house: House, task: pb.NewTask | None, reason: str, field: str) -> None:
    error = await refused(caller.tasks.Submit(pb.SubmitRequest(task=task)), Code.INVALID_ARGUMENT, reason)
    assert details(error)["BadRequest"].field_violations[0].field == field
    assert details(error)["ErrorInfo"].metadata["hint"]
    assert await house.service.operations.count() == 0


async def test_the_largest_payload_and_one_that_is_written_otherwise(caller: Client) -> None:
    largest = b'"' + b"x" * (256 * 1024 - 2) + b'"'
    assert (await caller.get(await caller.submit(payload=largest))).payload == largest
    assert (await caller.get(await caller.submit(payload=b'{ "b" : 1.50,\n "a": "\\u00e9" }'))).payload == '{"b":1.5,"a":"é"}'.encode()
    deep = b"[" * 64 + b"]" * 64
    assert (await caller.get(await caller.submit(payload=deep))).payload == deep


@pytest.mark.parametrize(
    "request_",
    [
        pb.ListRequest(page_size=-1),
        pb.ListRequest(page_size=1_001),
        pb.ListRequest(cursor="no cursor"),
        pb.ListRequest(cursor="\0"),
        pb.ListRequest(filter=pb.Filter(states=[99])),  # type: ignore[list-item]
        pb.ListRequest(filter=pb.Filter(types=["a"] * 1_001)),
        pb.ListRequest(filter=pb.Filter(tenant="a\nb")),
    ],
)
async def test_lists_that_cannot_be(caller: Client, request_: pb.ListRequest) -> None:
    await refused(caller.tasks.List(request_), Code.INVALID_ARGUMENT)


@pytest.mark.parametrize("level", [4, -1, 1 << 20])
async def test_a_durability_that_is_none(caller: Client, level: Any) -> None:
    await refused(caller.tasks.Submit(pb.SubmitRequest(task=new(), durability=level)), Code.INVALID_ARGUMENT, "unknown_enum")
    await refused(caller.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[new()], durability=level)), Code.INVALID_ARGUMENT, "unknown_enum")


# The fuzzer: bytes that nobody meant, and messages full of values that nobody expects

CLEAN = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.ABORTED, Code.RESOURCE_EXHAUSTED}

texts = st.sampled_from(["", TYPE, "mail", "x", "a\0b", "\U0001f600", "é" * 40, "../..", "remote--0123456789abcdef"]) | st.text(max_size=20)
numbers = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 77])
wide = numbers | st.sampled_from([2**63 - 1, -(2**63), 2**53])
blobs = st.sampled_from([b"", b"null", b"{", b"\xff", b'{"a":1}', b"1e999"]) | st.binary(max_size=20)
reals = st.floats(width=64)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_BYTES: blobs,
    FieldDescriptor.TYPE_INT32: numbers,
    FieldDescriptor.TYPE_ENUM: st.integers(-2, 12),
    FieldDescriptor.TYPE_INT64: wide,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: reals,
}


@st.composite
def messages(draw: st.DrawFn, kind: type[Any], depth: int = 0) -> Any:
    """Any message of a kind: some of its fields, with some values."""
    message = kind()
    for field in draw(st.lists(st.sampled_from(list(kind.DESCRIPTOR.fields)), max_size=6)) if kind.DESCRIPTOR.fields else ():
        _fill(draw, message, field, depth)
    return message


def _fill(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        value = inner.fields_by_name["value"]
        if value.message_type is None:
            getattr(message, field.name)[draw(texts)] = draw(SCALARS[value.type])
    elif inner is not None:
        if depth < 3:
            made = draw(messages(message_factory.GetMessageClass(inner), depth + 1))
            if field.is_repeated:
                getattr(message, field.name).extend([made] * draw(st.integers(1, 3)))
            else:
                getattr(message, field.name).CopyFrom(made)
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(SCALARS[field.type], max_size=3)))
    else:
        setattr(message, field.name, draw(SCALARS[field.type]))


async def status_of(caller: Client, method: MethodDescriptor, data: bytes) -> grpc.StatusCode:
    """How a call with these bytes ends; a stream that does not end is clean too."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    channel: Any = caller.channel
    if method.client_streaming:
        call = channel.stream_stream(path)(timeout=HANGS)
        await call.write(data)
        await call.done_writing()
    elif method.server_streaming:
        call = channel.unary_stream(path)(data, timeout=HANGS)
    else:
        call = channel.unary_unary(path)(data, timeout=HANGS)
        return await call.code()  # type: ignore[no-any-return]
    with contextlib.suppress(grpc.aio.AioRpcError):
        if await call.read() is not grpc.aio.EOF:
            call.cancel()
            return Code.OK
    return await call.code()  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_nothing_that_is_sent_breaks_it(caller: Client, house: House, method: MethodDescriptor, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    kind = message_factory.GetMessageClass(method.input_type)
    worker = await caller.join()
    id = await caller.submit()
    found: list[bytes] = []

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=100) | messages(kind).map(lambda message: _at(message, worker, id).SerializeToString()))
    def collect(data: bytes) -> None:
        found.append(data)

    await loop.run_in_executor(None, collect)
    for data in found:
        code = await status_of(caller, method, data)
        assert code in CLEAN, (method.name, data, code)
    assert "Traceback" not in caplog.text
    assert await caller.submit()
    assert house.server.port


def _at(message: Any, worker: str, id: str) -> Any:
    """Where it names a worker or a task, one that there is: what stands behind the first check is tried too."""
    names = message.DESCRIPTOR.fields_by_name
    if "worker" in names:
        message.worker = worker
    if "wait" in names:
        message.ClearField("wait")  # nobody comes
    for field, value in message.ListFields():
        if field.name == "id" or (field.name == "task" and field.message_type is None):
            setattr(message, field.name, id)
        elif field.is_repeated and field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value:
                if "task" in each.DESCRIPTOR.fields_by_name:
                    each.task = id
    if message.DESCRIPTOR.name == "ClaimCredit":
        message.credit = min(message.credit, 0)  # more would be waited for
    return message
