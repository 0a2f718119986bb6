"""`taskmill up`: everything an app needs under one supervisor."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from taskmill.cli.options import example
from taskmill.cli.serving import serve, up_options
from taskmill.errors import TaskmillError

if TYPE_CHECKING:
    from taskmill.config import Settings
    from taskmill.worker.companion import Companion
    from taskmill.worker.supervisor import Supervisor

__all__ = ["up"]

log = logging.getLogger("taskmill")

USUAL = 8080
"""The port that nobody asked for: that it is taken is no reason not to run."""


@example("taskmill up app.py", "taskmill up app.py --processes 2 --port 8080")
@click.command()
@click.option("--with-parent", is_flag=True, hidden=True, help="End with the program that started this: `dev`, whose old code must not go on alone.")
@up_options
def up(with_parent: bool, no_api: bool, port: int | None, grpc_port: int | None, host: str | None, log_level: str | None, **options: Any) -> int:
    """Run an app: its workers, its schedules, all upkeep, and the API.

    One supervisor runs it all. REST is at /api/v1, its description at /docs, live events at /ws, metrics at /metrics.
    """
    if with_parent:
        from taskmill.worker.process import end_with_parent

        end_with_parent(signal.SIGTERM)
    companion = None if no_api else _api(host, port, grpc_port, log_level)
    return serve(began=_say, companion=companion, log_level=log_level, **options)


def _api(host: str | None, port: int | None, grpc_port: int | None, log_level: str | None) -> Companion:
    """The API as a process beside the workers."""
    from taskmill.server.listening import bound
    from taskmill.worker.companion import Companion

    def listen(settings: Settings) -> socket.socket:
        address = host or settings.host
        if port is not None:
            return bound(address, port)
        try:
            return bound(address, settings.port)
        except TaskmillError as error:
            if settings.port != USUAL:
                raise
            log.warning("%s; the API takes another one", error.message)
            return bound(address, 0)

    return Companion("taskmill.server.process", listen, options={"grpc_port": grpc_port}, log_level=log_level, began=_say_where)


def _say_where(places: Sequence[str]) -> None:
    at, grpc = places
    click.echo(f"the API is at {at}, described at {at}/docs" + (f"; gRPC is at {grpc}" if grpc else ""), err=True)


async def _say(supervisor: Supervisor) -> None:
    click.echo(f"taskmill is up on {supervisor.settings.url}; Ctrl-C ends it", err=True)
    click.echo("try: taskmill task list · taskmill queue list · taskmill schedule list · taskmill submit TYPE JSON --wait", err=True)
