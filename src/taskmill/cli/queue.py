"""`taskmill queue`: what waits where, and whether it is given out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from taskmill.cli.changing import Change, change
from taskmill.cli.filters import NAME, PRIORITIES, WEIGHT
from taskmill.cli.groups import NounGroup
from taskmill.cli.listing import watch, watching
from taskmill.cli.options import as_json, confirmed, example, url
from taskmill.cli.output import drawn, print_fields, print_json, print_table
from taskmill.cli.pausing import pause_each, reason, resume_each
from taskmill.cli.store import place, run
from taskmill.cli.views import QUEUE_COLUMNS, queue_row, queue_settings_fields
from taskmill.engine import Filter
from taskmill.operations import Operations, QueueInfo, QueueSettings
from taskmill.views import queue_data

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["queue"]

_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, type=NAME)


@click.group(cls=NounGroup)
def queue() -> None:
    """List, set, pause, resume and purge queues."""


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
        print_table(QUEUE_COLUMNS, map(queue_row, found), heading=True)


async def _look(operations: Operations) -> RenderableType:
    return drawn(QUEUE_COLUMNS, map(queue_row, await operations.queues()), title="queues; Ctrl-C ends it")


@example(
    "taskmill queue set mail --fair tenant --weight acme=3",
    "taskmill queue set mail --priorities 8,4,2,1",
    "taskmill queue set bulk --partitions 16",
    "taskmill queue set mail --defaults",
)
@queue.command("set")
@click.argument("name", type=NAME)
@click.option(
    "--fair", metavar="KEY", help='What types of the queue take turns by, where they do not say it themselves: "tenant", or a field of the payload, "{field}".'
)
@click.option("--weight", "weights", type=WEIGHT, multiple=True, metavar="SHARE=N", help="Turns of a share while another has one; more than one may be given.")
@click.option("--priorities", type=PRIORITIES, metavar="C,H,N,L", help="Turns of critical, high, normal and low tasks; without it the highest goes first.")
@click.option("--partitions", type=int, metavar="N", help="Over how many shards of a Redis Cluster it is spread; it can only grow.")
@click.option("--defaults", is_flag=True, help="Forget what was set before; with other options, begin from the defaults.")
@url
@as_json
def set_(
    url: str | None,
    name: str,
    fair: str | None,
    weights: tuple[tuple[str, int], ...],
    priorities: tuple[int, int, int, int] | None,
    partitions: int | None,
    defaults: bool,
    as_json: bool,
) -> None:
    """Set how a queue shares itself out among tenants or other keys, and among priorities.

    What no option names stays as it was set before.
    """
    given = {"fair": fair, "priorities": priorities, "partitions": partitions}
    wanted = {field: value for field, value in given.items() if value is not None}
    if not (wanted or weights or defaults):
        raise click.UsageError("nothing is set (give --fair, --weight, --priorities, --partitions or --defaults)")

    async def act(operations: Operations) -> QueueInfo:
        seen = await operations.queue(name)
        if defaults and not wanted and not weights:
            await operations.drop_queue_settings(name)
            return await operations.queue(name)
        before = QueueSettings() if defaults else seen.settings
        settings = msgspec.structs.replace(before, weights={**before.weights, **dict(weights)}, **wanted)
        return await operations.put_queue_settings(name, settings, version=seen.version)

    info = run(place(url), act)
    if as_json:
        print_json(queue_data(info))
    else:
        print_fields([("queue", info.name), *queue_settings_fields(info.settings)])


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
