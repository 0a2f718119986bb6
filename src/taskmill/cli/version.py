"""`taskmill version`: what is installed, for a bug report."""

from __future__ import annotations

import json
import platform

import click

from taskmill.cli.options import as_json, example
from taskmill.version import __version__

__all__ = ["version"]


@example("taskmill version", "taskmill version --json")
@click.command()
@as_json
def version(as_json: bool) -> None:
    """Show the version of Taskmill and of Python."""
    python = platform.python_version()
    click.echo(json.dumps({"taskmill": __version__, "python": python}) if as_json else f"taskmill {__version__} (Python {python})")
