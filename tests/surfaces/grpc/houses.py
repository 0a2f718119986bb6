"""A real gRPC server over a real store, in the test's own loop, and the stubs of a client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from taskmill.config import Settings
from taskmill.engine import Engine
from taskmill.engines import create, schema
from taskmill.server.access import create_key
from taskmill.server.grpc.server import GrpcServer
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.v1 import taskmill_pb2_grpc as stubs
from taskmill.server.service import Service
from taskmill.server.tls import Tls

__all__ = ["HANGS", "TYPE", "House", "client", "details", "housed", "new", "refused"]

HANGS = 60.0
TYPE = "mail.send"
QUEUE = "mail"


class House:
    """What a test reaches: the server, its parts, and stubs without a key."""

    def __init__(self, service: Service, server: GrpcServer, seen: list[tuple[str, str, str, int]]) -> None:
        self.service = service
        self.server = server
        self.seen = seen
        """What the server told of its calls."""

    @property
    def engine(self) -> Engine:
        return self.service.engine

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def key(self, *scopes: str, tenant: str | None = None, rate: int | None = None, depth: int | None = None) -> str:
        """The token of a new key, which the server knows."""
        token, _ = await create_key(self.engine, name="test", scopes=scopes, tenant=tenant, rate=rate, depth=depth)
        self.service.keys._read_at = None  # it looks at once instead of within two seconds
        return token


class Client:
    """All stubs on one channel, with a key or without."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None = None) -> None:
        self.channel = channel
        self.tasks: stubs.TasksAsyncStub = stubs.TasksStub(channel)
        self.store: stubs.StoreAsyncStub = stubs.StoreStub(channel)
        self.workers: stubs.WorkersAsyncStub = stubs.WorkersStub(channel)
        self.metadata = None if token is None else (("authorization", f"Bearer {token}"),)

    async def submit(self, task: pb.NewTask | None = None, **fields: Any) -> str:
        answer = await self.tasks.Submit(pb.SubmitRequest(task=task or new(**fields)), metadata=self.metadata, timeout=HANGS)
        return answer.submitted.id

    async def get(self, id: str, **fields: Any) -> pb.Task:
        return await self.tasks.Get(pb.GetRequest(id=id, **fields), metadata=self.metadata, timeout=HANGS)

    async def join(self, *types: str, lease: float = 30.0) -> str:
        request = pb.JoinRequest(types=[pb.WorkerType(name=name) for name in types or (TYPE,)], queues=[QUEUE])
        request.lease.FromMilliseconds(int(lease * 1_000))
        return (await self.workers.Join(request, metadata=self.metadata, timeout=HANGS)).worker

    async def claim(self, worker: str, request: int = 1, slots: int = 1, wait: float = 0.0) -> Sequence[pb.ClaimedTask]:
        message = pb.ClaimRequest(worker=worker, request=request, slots=slots)
        message.wait.FromMilliseconds(int(wait * 1_000))
        return (await self.workers.Claim(message, metadata=self.metadata, timeout=HANGS)).tasks


def new(type: str = TYPE, payload: bytes = b'{"to":"ann"}', queue: str = QUEUE, **fields: Any) -> pb.NewTask:
    return pb.NewTask(type=type, payload=payload, queue=queue, **fields)


@contextlib.asynccontextmanager
async def housed(
    url: str, folder: Path, *, open: bool = True, tls: Tls | None = None, ready: Callable[[], Awaitable[bool]] | None = None
) -> AsyncIterator[House]:
    await asyncio.to_thread(schema(url).upgrade)
    async with Service(create(url), Settings(), audit=folder / "audit.jsonl", open=True) as service:
        seen: list[tuple[str, str, str, int]] = []
        server = GrpcServer(service.desk, service.crew, service.keys, hub=service.hub, tls=tls, ready=ready, observed=lambda *call: seen.append(call))
        await server.start("127.0.0.1", 0)
        try:
            yield House(service, server, seen)
        finally:
            await server.stop(0)


@contextlib.asynccontextmanager
async def client(house: House, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(house.address, **options) as channel:
        yield Client(channel, token)


# Refusals


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The details of a status, by their kind."""
    found: dict[str, Any] = {}
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            status = status_pb2.Status.FromString(value)
            assert status.code == error.code().value[0]
            for detail in status.details:
                kind = detail.type_url.rpartition(".")[2]
                message = getattr(error_details_pb2, kind)()
                assert detail.Unpack(message)
                found[kind] = message
    return found


async def refused(call: Awaitable[object], code: grpc.StatusCode, reason: str | None = None) -> grpc.aio.AioRpcError:
    """The error of a call that must fail so."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    assert error.code() is code, (error.code(), error.details())
    if reason is not None:
        assert details(error)["ErrorInfo"].reason == reason
        assert details(error)["ErrorInfo"].domain == "taskmill"
    return error
