"""What `worker`, `up` and `dev` share: the options of a supervisor, and running one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskmill import config
from taskmill.cli.options import OneOf
from taskmill.errors import TaskmillError

if TYPE_CHECKING:
    from taskmill.worker.companion import Companion

__all__ = ["hold_standard_streams", "log_option", "serve", "serving_options", "up_options", "wait_option"]

LAST_WORDS = 0.15
"""Seconds until a program that was told to end is gone, whatever waits for a store in it."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

wait_option = click.option(
    "--wait-for-store", metavar="DURATION", help='How long to wait at the start for a store that is not there yet, for example "60s".  [default: not at all]'
)
log_option = click.option(
    "--log-format", type=OneOf("text", "json"), help="Lines for people, or one JSON object a line.  [default: the setting log_format, text]"
)
_OPTIONS = (
    click.argument("target", metavar="APP"),
    click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only tasks of this queue; may be given again.  [default: all of the app's]"),
    click.option("--concurrency", type=click.IntRange(1, 4_000), help="Tasks at once in one process.  [default: the setting concurrency, 10]"),
    click.option("--processes", type=click.IntRange(1, 256), help="Processes that run tasks.  [default: the setting processes, 1]"),
    click.option("--max-tasks", type=click.IntRange(0), help="Replace a process after so many tasks; 0: never."),
    click.option("--max-memory", metavar="BYTES", help='Replace a process that has grown to this size, for example "512MiB"; 0: never.'),
    click.option("--grace-period", metavar="DURATION", help='How long running tasks may go on after SIGTERM.  [default: "20s"]'),
    click.option("--no-maintenance", is_flag=True, help="Leave recovery, schedules, pruning and the outbox to others."),
    click.option("--log-level", type=OneOf("debug", "info", "warning", "error"), help="The least important lines that are written.  [default: info]"),
    log_option,
    wait_option,
)


_PROBES = (
    click.option("--port", type=click.IntRange(0, 65_535), help="Serve /livez, /readyz and /metrics on this port.  [default: no port]"),
    click.option("--host", default="127.0.0.1", show_default=True, help="The address of that port."),
)
_API = (
    click.option("--port", type=click.IntRange(0, 65_535), help="The port of the API; 0: any that is free.  [default: the setting port, 8080]"),
    click.option("--host", help="The address of the API; beside this machine's own it needs API keys.  [default: the setting host, 127.0.0.1]"),
    click.option("--grpc-port", type=click.IntRange(0, 65_535), help="The port of gRPC; 0: any that is free.  [default: the setting grpc_port, 9090]"),
    click.option("--no-api", is_flag=True, help="Run without the API."),
)


def serving_options(function: Decorated) -> Decorated:
    """The argument APP and the options of a supervisor with probes, passed on as one dictionary."""
    return _with((*_OPTIONS, *_PROBES), function)


def up_options(function: Decorated) -> Decorated:
    """The same of a supervisor with an API."""
    return _with((*_OPTIONS, *_API), function)


def _with(options: Sequence[Callable[[Decorated], Decorated]], function: Decorated) -> Decorated:
    for option in reversed(options):
        function = option(function)
    return function


def serve(
    target: str,
    *,
    queues: Sequence[str] = (),
    processes: int | None = None,
    port: int | None = None,
    host: str = "127.0.0.1",
    no_maintenance: bool = False,
    log_level: str | None = None,
    companion: Companion | None = None,
    began: Callable[[Any], Coroutine[Any, Any, None]] | None = None,
    **settings: object,
) -> int:
    """Run a supervisor until a signal ends it; its exit code. With a companion, that has the port and asks for what the probes would tell."""
    from taskmill.worker import logs
    from taskmill.worker.probes import Probes
    from taskmill.worker.process import exit_soon
    from taskmill.worker.supervisor import Supervisor

    hold_standard_streams()
    logs.configure(log_level, log_format(settings.get("log_format")))
    env = {f"TASKMILL_{name.upper()}": str(value) for name, value in settings.items() if value is not None}

    async def run() -> int:
        supervisor = Supervisor(
            target, queues=queues, processes=processes, maintenance=not no_maintenance, env=env, log_level=log_level, ready=began, companion=companion
        )
        if companion is not None:
            companion.questions = Probes(supervisor).questions
        if port is None or companion is not None:
            code = await supervisor.run()
        else:
            async with Probes(supervisor, host, port):
                code = await supervisor.run()
        if supervisor.stopping:
            exit_soon(code, LAST_WORDS)
        return code

    return asyncio.run(run())


def log_format(given: object) -> str:
    """The one that was asked for; else that of the environment and of taskmill.toml, as far as they can be read: what is wrong with them is told elsewhere."""
    try:
        return config.load({"log_format": given}, os.environ).settings.log_format
    except TaskmillError:
        return "text"


def hold_standard_streams() -> None:
    """A stream that was closed before we began (`>&-`) leaves its number free; a socket that got it would be a child's stdout, and end it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
