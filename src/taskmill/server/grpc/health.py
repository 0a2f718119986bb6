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
MOST_WATCHERS = 1_000
"""At once; they need no key."""


class Health(health_pb2_grpc.HealthServicer):
    """`ready` is asked for every check, and once a second for all who watch. "" is the server as a whole."""

    def __init__(self, services: Collection[str], ready: Callable[[], Awaitable[bool]], stopping: asyncio.Event) -> None:
        self._services = frozenset({"", *services})
        self._ready = ready
        self._stopping = stopping
        self._watchers = 0
        self._well: bool | None = None
        """What the last look has found, while somebody watches."""
        self._changed = asyncio.Event()
        """Set when a look finds something else; then there is another one for the next."""
        self._looking: asyncio.Task[None] | None = None

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802 - gRPC's name
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return health_pb2.HealthCheckResponse(status=_status(await self._is_well()))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - gRPC's name
        if self._watchers >= MOST_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as many watch as may")
        self._watchers += 1
        try:
            await self._tell(request.service in self._services, context)
        finally:
            self._watchers -= 1
            if not self._watchers and self._looking is not None:
                self._looking.cancel()
                self._looking = self._well = None

    async def _tell(self, known: bool, context: Any) -> None:
        if self._well is None:
            self._well = await self._is_well()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        told: object = None
        while True:
            last, changed = self._stopping.is_set(), self._changed
            status = _status(self._well and not last) if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if last:
                return
            await changed.wait()

    async def _look(self) -> None:
        """Until nobody watches, or the server stops."""
        while not self._stopping.is_set():
            await _until(self._stopping, LOOK)
            well = await self._is_well()
            if well != self._well or self._stopping.is_set():
                self._well = well
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()

    async def _is_well(self) -> bool:
        try:
            return not self._stopping.is_set() and await self._ready()
        except TaskmillError:
            return False


def _status(well: bool) -> Any:
    return health_pb2.HealthCheckResponse.SERVING if well else health_pb2.HealthCheckResponse.NOT_SERVING


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
