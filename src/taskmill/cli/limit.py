"""`taskmill limit`: numbers that every claim obeys, those that code declares and those put by hand."""

from __future__ import annotations

import click
import msgspec

from taskmill.cli.changing import agreed
from taskmill.cli.filters import NAME
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, confirmed, example, url
from taskmill.cli.output import print_json, print_table
from taskmill.cli.store import place, run
from taskmill.cli.views import LIMIT_COLUMNS, limit_row
from taskmill.operations import Limit, Operations
from taskmill.options import limit_value
from taskmill.views import limit_data

__all__ = ["limit"]


@click.group(cls=NounGroup)
def limit() -> None:
    """List, put and drop limits."""


@example("taskmill limit list", "taskmill limit list --json")
@limit.command("list")
@url
@as_json
def list_(url: str | None, as_json: bool) -> None:
    """List limits: how many starts in which time, how many at once."""
    found = run(place(url), lambda operations: operations.limits())
    if as_json:
        for info in found:
            print_json(limit_data(info))
    else:
        print_table(LIMIT_COLUMNS, map(limit_row, found))


@example("taskmill limit put gateway --rate 100/m", "taskmill limit put gateway --rate 10/5s --cap 3", "taskmill limit put per-user --cap 1")
@limit.command()
@click.argument("name", type=NAME)
@click.option("--rate", metavar="N/TIME", help="At most so many starts in any such time: 100/m, 10/5s.")
@click.option("--cap", type=int, metavar="N", help="At most so many at once.")
@url
@as_json
def put(url: str | None, name: str, rate: str | None, cap: int | None, as_json: bool) -> None:
    """Make or change a limit; every claim from now on obeys it.

    What no option names is not limited: a rate that was there before goes when only --cap is given.
    Over a limit that code declares it stands until it is dropped. Tasks stand under it by name ("gateway"), or each value by itself ("per-user:{user_id}").
    """
    wanted = msgspec.json.decode(limit_value(rate, cap, "--rate"), type=Limit)
    info = run(place(url), lambda operations: operations.put_limit(name, wanted))
    if as_json:
        print_json(limit_data(info))
    else:
        click.echo(f"{name} allows {' and '.join(part for part in limit_row(info)[1:3] if part)}")


@example("taskmill limit drop gateway --yes")
@limit.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=NAME)
@confirmed
@url
def drop(url: str | None, names: tuple[str, ...], yes: bool, dry_run: bool) -> int:
    """Drop limits that were put by hand.

    What code declares under the same name holds again.
    """
    where = place(url)

    async def look(operations: Operations) -> None:
        for name in names:
            await operations.limit(name)

    async def act(operations: Operations) -> None:
        for name in names:
            await operations.drop_limit(name)
            click.echo(f"{name} is dropped")

    run(where, look)
    if dry_run:
        click.echo(f"{', '.join(names)} would be dropped")
        return 0
    if not agreed(yes, f"drop {', '.join(names)}?"):
        return 1
    run(where, act)
    return 0
