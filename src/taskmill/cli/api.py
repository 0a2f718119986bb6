"""`taskmill api`: the server alone, over a store."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskmill import config
from taskmill.cli.options import OneOf, example, url
from taskmill.cli.serving import log_option, wait_option
from taskmill.cli.store import place_of

if TYPE_CHECKING:
    from taskmill.server.running import Grpc
    from taskmill.server.service import Service

__all__ = ["api"]


@example("taskmill api", "taskmill api --host 0.0.0.0 --port 8080 --url postgresql://shop@db/shop")
@click.command()
@click.option("--host", help="The address to listen on; beside this machine's own it needs API keys.  [default: the setting host, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port of REST, WebSocket and metrics; 0: any that is free.  [default: the setting port, 8080]")
@click.option("--grpc-port", type=click.IntRange(0, 65_535), help="The port of gRPC; 0: any that is free.  [default: the setting grpc_port, 9090]")
@click.option("--no-grpc", is_flag=True, help="Serve HTTP alone.")
@click.option("--log-level", type=OneOf("debug", "info", "warning", "error"), help="The least important lines that are written.  [default: info]")
@log_option
@wait_option
@url
def api(port: int | None, grpc_port: int | None, no_grpc: bool, **settings: str | None) -> int:
    """Serve a store over HTTP and gRPC.

    REST at /api/v1, its description at /openapi.json and /docs, live events at /ws, metrics at /metrics. SIGTERM or Ctrl-C ends it after what is under way.
    """
    from taskmill.worker import logs

    loaded = config.load({**settings, "port": port or None, "grpc_port": grpc_port or None}, os.environ)
    logs.configure(loaded.settings.log_level, loaded.settings.log_format)
    import uvloop

    from taskmill.server.running import grpc_of

    uvloop.run(_run(loaded, port, None if no_grpc else grpc_of(loaded.settings, grpc_port)))
    return 0


async def _run(loaded: config.Loaded, port: int | None, grpc: Grpc | None) -> None:
    from taskmill.server.listening import bound
    from taskmill.server.running import run

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings = loaded.settings
    where = place_of(loaded, Path.cwd())
    engine = where.engine()

    def began(service: Service) -> None:
        click.echo(f"taskmill serves {settings.url} at {service.place}; Ctrl-C ends it", err=True)

    with bound(settings.host, settings.port if port is None else port) as sock:
        await run(engine, settings, sock, stop, base=where.base, grpc=grpc, began=began)
