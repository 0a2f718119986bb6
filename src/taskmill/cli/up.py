"""`taskmill up`: everything an app needs under one supervisor."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import click

from taskmill.cli.options import example
from taskmill.cli.serving import serve, serving_options

if TYPE_CHECKING:
    from taskmill.worker.supervisor import Supervisor

__all__ = ["up"]


@example("taskmill up app.py", "taskmill up app.py --processes 2 --port 8080")
@click.command()
@click.option("--with-parent", is_flag=True, hidden=True, help="End with the program that started this: `dev`, whose old code must not go on alone.")
@serving_options
def up(with_parent: bool, **options: Any) -> int:
    """Run an app: its workers, its schedules and all upkeep.

    One supervisor runs it all. It is `taskmill worker` that says where it stands. With --port it serves /livez, /readyz and /metrics.
    """
    if with_parent:
        from taskmill.worker.process import end_with_parent

        end_with_parent(signal.SIGTERM)
    return serve(began=_say, **options)


async def _say(supervisor: Supervisor) -> None:
    click.echo(f"taskmill is up on {supervisor.settings.url}; Ctrl-C ends it", err=True)
    click.echo("try: taskmill task list · taskmill queue list · taskmill schedule list · taskmill submit TYPE JSON --wait", err=True)
