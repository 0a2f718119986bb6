"""What `worker`, `up` and `dev` share: the options of a supervisor, and running one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import click

from taskmill.cli.options import OneOf

__all__ = ["hold_standard_streams", "serve", "serving_options"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("target", metavar="APP"),
    click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only tasks of this queue; may be given again.  [default: all of the app's]"),
    click.option("--concurrency", type=click.IntRange(1, 4_000), help="Tasks at once in one process.  [default: the setting concurrency, 10]"),
    click.option("--processes", type=click.IntRange(1, 256), help="Processes that run tasks.  [default: the setting processes, 1]"),
    click.option("--max-tasks", type=click.IntRange(0), help="Replace a process after so many tasks; 0: never."),
    click.option("--max-memory", metavar="BYTES", help='Replace a process that has grown to this size, for example "512MiB"; 0: never.'),
    click.option("--grace-period", metavar="DURATION", help='How long running tasks may go on after SIGTERM.  [default: "20s"]'),
    click.option("--port", type=click.IntRange(0, 65_535), help="Serve /livez, /readyz and /metrics on this port.  [default: no port]"),
    click.option("--host", default="127.0.0.1", show_default=True, help="The address of that port."),
    click.option("--no-maintenance", is_flag=True, help="Leave recovery, schedules, pruning and the outbox to others."),
    click.option("--log-level", type=OneOf("debug", "info", "warning", "error"), help="The least important lines that are written.  [default: info]"),
)


def serving_options(function: Decorated) -> Decorated:
    """The argument APP and the options of a supervisor, passed on as one dictionary."""
    for option in reversed(_OPTIONS):
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
    began: Callable[[Any], Coroutine[Any, Any, None]] | None = None,
    **settings: object,
) -> int:
    """Run a supervisor until a signal ends it; its exit code."""
    from taskmill.worker import logs
    from taskmill.worker.supervisor import Supervisor

    hold_standard_streams()
    logs.configure(log_level)
    env = {f"TASKMILL_{name.upper()}": str(value) for name, value in settings.items() if value is not None}

    async def run() -> int:
        supervisor = Supervisor(target, queues=queues, processes=processes, maintenance=not no_maintenance, env=env, log_level=log_level, ready=began)
        if port is None:
            return await supervisor.run()
        from taskmill.worker.probes import Probes

        async with Probes(supervisor, host, port):
            return await supervisor.run()

    return asyncio.run(run())


def hold_standard_streams() -> None:
    """A stream that was closed before we began (`>&-`) leaves its number free; a socket that got it would be a child's stdout, and end it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
