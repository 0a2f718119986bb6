"""`taskmill queue`: what waits where, and whether it is given out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskmill.cli.changing import Change, change
from taskmill.cli.filters import NAME
from taskmill.cli.groups import NounGroup
from taskmill.cli.listing import watch, watching
from taskmill.cli.options import as_json, confirmed, example, url
from taskmill.cli.output import drawn, print_json, print_table
from taskmill.cli.pausing import pause_each, reason, resume_each
from taskmill.cli.store import place, run
from taskmill.cli.views import QUEUE_COLUMNS, queue_row
from taskmill.engine import Filter
from taskmill.operations import Operations
from taskmill.views import queue_data

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["queue"]

_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, type=NAME)


@click.group(cls=NounGroup)
def queue() -> None:
    """List, pause, resume and purge queues."""


@example("taskmill queue list", "taskmill queue list --watch", "taskmill queue list --json")
@queue.command("list")
@watch
@url
@as_json
def list_(url: str | None, watch: bool, as_json: bool) -> None:
    """List queues: how many tasks in which state, how long the oldest waits.

    The numbers may be 5 s old.
    """
    if watch:
        watching(place(url), _look, as_json=as_json)
        return
    found = run(place(url), lambda operations: operations.queues())
    if as_json:
        for info in found:
            print_json(queue_data(info))
    else:
        print_table(QUEUE_COLUMNS, map(queue_row, found))


async def _look(operations: Operations) -> RenderableType:
    return drawn(QUEUE_COLUMNS, map(queue_row, await operations.queues()), title="queues; Ctrl-C ends it")


@example("taskmill queue pause mail --reason 'provider is down'")
@queue.command()
@_names
@reason
@url
def pause(url: str | None, names: tuple[str, ...], reason: str) -> None:
    """Give out nothing of a queue until it is resumed.

    Tasks may still be submitted to it, and what runs goes on.
    """
    pause_each(place(url), names, lambda operations, name: operations.pause_queue(name, reason=reason))


@example("taskmill queue resume mail")
@queue.command()
@_names
@url
def resume(url: str | None, names: tuple[str, ...]) -> None:
    """Give out tasks of a queue again."""
    resume_each(place(url), names, Operations.resume_queue, "is open again")


@example("taskmill queue purge mail --dry-run", "taskmill queue purge mail --yes")
@queue.command()
@click.argument("name", type=NAME)
@confirmed
@url
@as_json
def purge(url: str | None, name: str, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Throw away every task that waits in a queue.

    Those that run and those that have ended stay.
    """
    purging = Change("throw away", "thrown away", lambda operations, dry, told: operations.purge_queue(name, dry_run=dry, progress=told))
    return change(place(url), purging, Filter(queues=frozenset({name})), yes=yes, dry_run=dry_run, as_json=as_json)
