"""`taskmill worker`: processes that run an app's tasks."""

from __future__ import annotations

from typing import Any

import click

from taskmill.cli.options import example
from taskmill.cli.serving import serve, serving_options

__all__ = ["worker"]


@example("taskmill worker app.py", "taskmill worker shop.tasks:app --queue mail --processes 2 --port 9100")
@click.command()
@serving_options
def worker(**options: Any) -> int:
    """Run the tasks of an app.

    APP is a file (app.py), a module (shop.tasks), or either with the name of its App (app.py:app).

    SIGTERM or Ctrl-C: no new tasks, running ones may end within the grace period, the rest is handed back. A second one stops at once.
    """
    return serve(**options)
