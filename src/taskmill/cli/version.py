"""`taskmill version`: what is installed, for a bug report."""

from __future__ import annotations

import platform
from importlib import metadata

import click

__all__ = ["version"]


@click.command()
def version() -> None:
    """Show the version of Taskmill and of Python."""
    click.echo(f"taskmill {metadata.version('taskmill')} (Python {platform.python_version()})")
