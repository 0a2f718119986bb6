"""The health service of gRPC, for load balancers: serving while the store answers and the server does not stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from taskmill.errors import TaskmillError

__all__ = ["Health"]

LOOK = 1.0
"""Seconds between looks while somebody watches; without a watcher nobody looks."""


class Health(health_pb2_grpc.HealthServicer):
    """`ready` is asked for every check. "" is the server as a whole."""

    def __init__(self, services: Collection[str], ready: Callable[[], Awaitable[bool]], stopping: asyncio.Event) -> None:
        self._services = frozenset({"", *services})
        self._ready = ready
        self._stopping = stopping

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802 - gRPC's name
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return health_pb2.HealthCheckResponse(status=await self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - gRPC's name
        told: object = None
        while True:
            last = self._stopping.is_set()
            status = await self._status(request.service)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if last:
                return
            await _until(self._stopping, LOOK)

    async def _status(self, service: str) -> Any:
        if service not in self._services:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        try:
            well = not self._stopping.is_set() and await self._ready()
        except TaskmillError:
            well = False
        return health_pb2.HealthCheckResponse.SERVING if well else health_pb2.HealthCheckResponse.NOT_SERVING


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
