"""Running a server over a store, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from taskmill.clock import SECOND
from taskmill.config import Settings
from taskmill.engine import Engine
from taskmill.engines.opening import open_in_time
from taskmill.errors import TaskmillError
from taskmill.server import grpc
from taskmill.server.audit import path_of
from taskmill.server.http import Http
from taskmill.server.listening import check_exposure, is_loopback, serve_http, shown
from taskmill.server.rest import ROUTES
from taskmill.server.service import Place, Service
from taskmill.server.tls import Tls

__all__ = ["Grpc", "grpc_of", "run"]

log = logging.getLogger("taskmill")

USUAL = 9090
"""The port of gRPC that nobody asked for: that it is taken is no reason not to run."""


class Grpc(NamedTuple):
    """The port of gRPC. `must`: somebody asked for it, so that one which cannot be had is an error and not a warning."""

    port: int
    must: bool


def grpc_of(settings: Settings, asked: int | None) -> Grpc:
    """The port that was asked for, by a caller or in the settings; or the usual one."""
    return Grpc(settings.grpc_port if asked is None else asked, must=asked is not None or settings.grpc_port != USUAL)


async def run(
    engine: Engine,
    settings: Settings,
    sock: socket.socket,
    stop: asyncio.Event,
    *,
    base: Path,
    grpc: Grpc | None = None,
    began: Callable[[Service], None] = lambda _: None,
) -> None:
    """Serve the store on a socket that listens already; `base` is where relative paths start."""
    host, port = sock.getsockname()[:2]
    tls = Tls.of(settings, base)
    if not await open_in_time(engine.open, settings.wait_for_store, stop):
        return
    async with Service(engine, settings, audit=path_of(settings, base), open=is_loopback(host)) as service:
        await check_exposure(service, host)
        async with _over_grpc(service, host, grpc, tls, stop) as at:
            service.place = Place(shown(host, port, tls=tls is not None), at)
            began(service)
            draining = asyncio.create_task(_drain(service, stop))
            try:
                app = Http(service, ROUTES, observed=service.metrics.request)
                await serve_http(app, sock, stop, grace=settings.grace_period, tls=tls, of_an_address=settings.connections_per_address)
            finally:
                draining.cancel()


async def _drain(service: Service, stop: asyncio.Event) -> None:
    await stop.wait()
    service.drain()


@contextlib.asynccontextmanager
async def _over_grpc(service: Service, host: str, wanted: Grpc | None, tls: Tls | None, stop: asyncio.Event) -> AsyncIterator[str | None]:
    """Where it is, if it is anywhere. It stops together with HTTP, not after it."""
    without = grpc.missing()
    if wanted is None or without is not None:
        if wanted is not None and without is not None:
            log.log(logging.ERROR if wanted.must else logging.INFO, "%s", without)
        yield None
        return
    from taskmill.server.grpc.server import GrpcServer

    async def ready() -> bool:
        return not await service.missing()

    reflected = service.settings.grpc_reflection
    server = GrpcServer(service.desk, service.crew, service.keys, hub=service.hub, ready=ready, observed=service.metrics.request, tls=tls, reflected=reflected)
    try:
        at: str | None = f"{host}:{await server.start(host, wanted.port)}"
    except TaskmillError as error:
        if wanted.must:
            raise
        log.warning("%s; gRPC is off", error.message)
        at = None

    async def end() -> None:
        await stop.wait()
        await server.stop(service.settings.grace_period / SECOND)

    ending = asyncio.create_task(end())
    try:
        yield at
    finally:
        stop.set()
        await ending
