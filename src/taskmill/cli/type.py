"""`taskmill type`: the types that workers have registered."""

from __future__ import annotations

import click

from taskmill.cli.filters import NAME
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, example, url
from taskmill.cli.output import print_json, print_table
from taskmill.cli.pausing import pause_each, reason, resume_each
from taskmill.cli.store import place, run
from taskmill.cli.views import TYPE_COLUMNS, type_row
from taskmill.operations import Operations
from taskmill.views import type_data

__all__ = ["type_"]

_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, type=NAME)


@click.group("type", cls=NounGroup)
def type_() -> None:
    """List, pause and resume types."""


@example("taskmill type list", "taskmill type list --json")
@type_.command("list")
@url
@as_json
def list_(url: str | None, as_json: bool) -> None:
    """List types and what their tasks get."""
    found = run(place(url), lambda operations: operations.types())
    if as_json:
        for info in found:
            print_json(type_data(info))
    else:
        print_table(TYPE_COLUMNS, map(type_row, found))


@example("taskmill type pause charge --reason 'bank holiday'")
@type_.command()
@_names
@reason
@url
def pause(url: str | None, names: tuple[str, ...], reason: str) -> None:
    """Give out no task of a type until it is resumed; what runs goes on."""
    pause_each(place(url), names, lambda operations, name: operations.pause_type(name, reason=reason))


@example("taskmill type resume charge")
@type_.command()
@_names
@url
def resume(url: str | None, names: tuple[str, ...]) -> None:
    """Give out tasks of a type again."""
    resume_each(place(url), names, Operations.resume_type, "is open again")
