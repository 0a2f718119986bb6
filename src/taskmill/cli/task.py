"""`taskmill task`: look at tasks, wait for them, follow them, and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import click

from taskmill.cli import tail as live
from taskmill.cli.changing import Change, change, chosen
from taskmill.cli.ending import end_of
from taskmill.cli.filters import DURATION, NAME, filters
from taskmill.cli.groups import NounGroup
from taskmill.cli.listing import limit, list_tasks, watch, watch_tasks
from taskmill.cli.options import as_json, confirmed, example, url
from taskmill.cli.output import print_fields, print_json, print_table
from taskmill.cli.payload import read_payload
from taskmill.cli.store import place, run
from taskmill.cli.views import ATTEMPT_COLUMNS, EDGE_COLUMNS, attempt_row, edge_row, task_fields
from taskmill.engine import Filter
from taskmill.operations import Operations
from taskmill.task import EdgeResult
from taskmill.views import attempt_data, edge_data, task_data

__all__ = ["task"]

_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_everything = click.option("--all", "everything", is_flag=True, help="Every task that this can be done to.")


@click.group(cls=NounGroup)
def task() -> None:
    """Look at tasks, wait for them, follow them, change them."""


@example("taskmill task list --state dead --since 1d", "taskmill task list --queue mail --watch", "taskmill task list --tag customer=acme --json")
@task.command("list")
@filters()
@limit
@watch
@url
@as_json
def list_(url: str | None, which: Filter, limit: int | None, watch: bool, as_json: bool) -> None:
    """List tasks, newest first."""
    if watch:
        watch_tasks(place(url), which, limit, as_json=as_json)
    else:
        list_tasks(place(url), which, limit, as_json=as_json)


@example("taskmill task get 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e", "taskmill task get 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --json")
@task.command()
@click.argument("id")
@url
@as_json
def get(url: str | None, id: str, as_json: bool) -> None:
    """Show everything about one task."""
    found = run(place(url), lambda operations: operations.get(id))
    if as_json:
        print_json(task_data(found))
    else:
        print_fields(task_fields(found))


@example("taskmill task attempts 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e")
@task.command()
@click.argument("id")
@url
@as_json
def attempts(url: str | None, id: str, as_json: bool) -> None:
    """Show each attempt of one task: when, where, how it ended."""
    found = run(place(url), lambda operations: operations.attempts(id))
    if as_json:
        for attempt in found:
            print_json(attempt_data(attempt))
    else:
        print_table(ATTEMPT_COLUMNS, map(attempt_row, found))


@example("taskmill task edges 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e", "taskmill task edges 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --json")
@task.command()
@click.argument("id")
@url
@as_json
def edges(url: str | None, id: str, as_json: bool) -> None:
    """Show the tasks that one task waits or waited for, and what each came to."""

    async def show(operations: Operations) -> None:
        rows = [edge async for page in _edge_pages(operations, id) for edge in page]
        if as_json:
            for edge in rows:
                print_json(edge_data(edge, raw=False))
        else:
            print_table(EDGE_COLUMNS, map(edge_row, rows))

    run(place(url), show)


async def _edge_pages(operations: Operations, id: str) -> AsyncIterator[Sequence[EdgeResult]]:
    seen = 0
    while page := await operations.edges(id, after=seen):
        yield page
        seen += len(page)


@example(
    """taskmill task signal 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e approved '{"by": "ann"}'""",
    "taskmill task signal 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e approved @answer.json --signal-id form-17",
)
@task.command()
@click.argument("id")
@click.argument("name", type=NAME)
@click.argument("data", metavar="[JSON|@FILE|-]", required=False)
@click.option("--signal-id", metavar="ID", help="With the same id there is one signal: a second send answers with the first number.")
@url
@as_json
def signal(url: str | None, id: str, name: str, data: str | None, signal_id: str | None, as_json: bool) -> None:
    """Send a task a named value; one that waits for it goes on.

    Prints the number of the signal among those of the task.
    """
    value = read_payload(data, "data")
    number = run(place(url), lambda operations: operations.signal(id, name, value, signal_id=signal_id))
    if as_json:
        print_json({"id": id, "name": name, "number": number})
    else:
        click.echo(str(number))


@example("taskmill task cancel 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --yes", "taskmill task cancel --queue mail --type newsletter --dry-run")
@task.command()
@_ids
@filters()
@_everything
@confirmed
@url
@as_json
def cancel(url: str | None, ids: tuple[str, ...], which: Filter, everything: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Cancel tasks that have not ended.

    Those that wait are cancelled at once; the worker of a running one is told. The tasks are those named, or all that match.
    """
    wanted = chosen(ids, which, everything)
    cancelling = Change("cancel", "cancelled", lambda operations, dry, told: operations.cancel(wanted, dry_run=dry, progress=told))
    return change(place(url), cancelling, wanted, yes=yes, dry_run=dry_run, as_json=as_json)


@example("taskmill task requeue 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --yes", "taskmill task requeue --state dead --type charge --since 1d --dry-run")
@task.command()
@_ids
@filters()
@_everything
@click.option("--from-start", is_flag=True, help="Forget the checkpoints: every step is done again.")
@confirmed
@url
@as_json
def requeue(url: str | None, ids: tuple[str, ...], which: Filter, everything: bool, from_start: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Run ended tasks again.

    Failures and crashes count from 0, the numbers of attempts go on. The tasks are those named, or all that match; a filter without
    --state means the dead ones.
    """
    wanted = chosen(ids, which, everything)
    requeueing = Change("requeue", "requeued", lambda operations, dry, told: operations.requeue(wanted, from_start=from_start, dry_run=dry, progress=told))
    return change(place(url), requeueing, wanted, yes=yes, dry_run=dry_run, as_json=as_json)


@example("taskmill task delete 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --yes", "taskmill task delete --state completed --until 7d --dry-run")
@task.command()
@_ids
@filters()
@_everything
@confirmed
@url
@as_json
def delete(url: str | None, ids: tuple[str, ...], which: Filter, everything: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Delete the records of ended tasks.

    A task that has not ended is refused: cancel it first. The tasks are those named, or all that match.
    """
    wanted = chosen(ids, which, everything)
    deleting = Change("delete", "deleted", lambda operations, dry, told: operations.delete(wanted, dry_run=dry, progress=told))
    return change(place(url), deleting, wanted, yes=yes, dry_run=dry_run, as_json=as_json)


@example("taskmill task wait 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --timeout 30s && echo done")
@task.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--timeout", type=DURATION, metavar="DURATION", help="Wait no longer than this.  [default: for ever]")
@url
@as_json
def wait(url: str | None, ids: tuple[str, ...], timeout: int | None, as_json: bool) -> int:
    """Wait until tasks have ended.

    Exit code 0 when all have completed; 1 when one is dead or cancelled, or the time is over.
    """
    return run(place(url), lambda operations: end_of(operations, list(dict.fromkeys(ids)), timeout, as_json=as_json))


@example("taskmill task tail", "taskmill task tail --queue mail --json", "taskmill task tail 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e")
@task.command()
@_ids
@click.option("--type", "types", type=NAME, multiple=True, help="Of this type; more than one may be named.")
@click.option("--queue", "queues", type=NAME, multiple=True, help="In this queue; more than one may be named.")
@url
@as_json
def tail(url: str | None, ids: tuple[str, ...], types: tuple[str, ...], queues: tuple[str, ...], as_json: bool) -> None:
    """Follow what happens, as it happens.

    With ids, it ends when all of these tasks have ended. After `resync`, some events were missed.
    """

    async def follow(operations: Operations) -> None:
        async with aclosing(await operations.events()) as events:
            await live.follow(operations, events, live.Wanted(ids, types, queues), as_json=as_json)

    run(place(url), follow)
