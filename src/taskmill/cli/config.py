"""`taskmill config`: the settings in force, and who said so."""

from __future__ import annotations

import os

import click

from taskmill import config as settings
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, example, url
from taskmill.cli.output import note, print_json, print_table

__all__ = ["config"]


@click.group(cls=NounGroup)
def config() -> None:
    """Show the settings in force."""


@example("taskmill config show --origin", "taskmill config show --json")
@config.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@url
@as_json
def show(url: str | None, origin: bool, as_json: bool) -> None:
    """Show every setting and its value; secrets are masked.

    An argument goes before the environment (TASKMILL_URL, ...), that before taskmill.toml, and that before the default.
    """
    loaded = settings.load({"url": url}, os.environ)
    for warning in loaded.warnings:
        note(warning)
    rows = loaded.rows()
    if as_json:
        print_json({name: {"value": value, "origin": source} if origin else value for name, value, source in rows})
    else:
        columns = ("setting", "value", "origin") if origin else ("setting", "value")
        print_table(columns, (row[: len(columns)] for row in rows))
