"""`taskmill type`: the types that workers have registered."""

from __future__ import annotations

import click

from taskmill.cli.filters import NAME
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, example, url
from taskmill.cli.output import note, print_json, print_table
from taskmill.cli.store import place, run
from taskmill.cli.views import TYPE_COLUMNS, type_data, type_row
from taskmill.operations import Operations

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
@click.option("--reason", default="", help="Why, for those who find it paused.")
@url
def pause(url: str | None, names: tuple[str, ...], reason: str) -> None:
    """Give out no task of a type until it is resumed; what runs goes on."""

    async def act(operations: Operations) -> None:
        for name in names:
            click.echo(f"{name} is paused" if await operations.pause_type(name, reason=reason) else f"{name} was paused already")

    run(place(url), act)


@example("taskmill type resume charge")
@type_.command()
@_names
@url
def resume(url: str | None, names: tuple[str, ...]) -> None:
    """Give out tasks of a type again."""

    async def act(operations: Operations) -> None:
        for name in names:
            if await operations.resume_type(name):
                click.echo(f"{name} is open again")
            else:
                note(f"{name} was not paused")

    run(place(url), act)
