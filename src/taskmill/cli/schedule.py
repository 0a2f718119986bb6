"""`taskmill schedule`: cron entries that make tasks, those that code declares and those put by hand."""

from __future__ import annotations

import click

from taskmill.cli.changing import agreed
from taskmill.cli.filters import DURATION, INSTANT, NAME, PRIORITY, TAG
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import OneOf, as_json, confirmed, example, url
from taskmill.cli.output import print_json, print_table, when
from taskmill.cli.pausing import pause_each, reason, resume_each
from taskmill.cli.payload import read_payload
from taskmill.cli.store import place, run
from taskmill.cli.views import SCHEDULE_COLUMNS, schedule_row
from taskmill.clock import rfc3339
from taskmill.cron import Cron, Misfire, Overlap
from taskmill.errors import Conflict
from taskmill.operations import Operations
from taskmill.schedule import Schedule
from taskmill.task import Priority
from taskmill.views import schedule_data, submitted_data

__all__ = ["schedule"]

_name = click.argument("name", type=NAME)
_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, type=NAME)


@click.group(cls=NounGroup)
def schedule() -> None:
    """List, put, pause and trigger schedules."""


@example("taskmill schedule list", "taskmill schedule list --json")
@schedule.command("list")
@url
@as_json
def list_(url: str | None, as_json: bool) -> None:
    """List schedules and when each fires next."""
    found = run(place(url), lambda operations: operations.schedules())
    if as_json:
        for info in found:
            print_json(schedule_data(info))
    else:
        print_table(SCHEDULE_COLUMNS, map(schedule_row, found))


@example(
    "taskmill schedule put morning '0 9 * * MON-FRI' --type report --timezone Europe/Paris --overlap skip",
    """taskmill schedule put ping '@every 5m' --type ping --payload '{"host": "db1"}'""",
)
@schedule.command()
@_name
@click.argument("cron")
@click.option("--type", "type_name", type=NAME, required=True, help="The type of its tasks.")
@click.option("--payload", metavar="JSON|@FILE|-", help="The payload of its tasks.  [default: null]")
@click.option("--timezone", default="UTC", show_default=True, help="The zone of the cron entry.")
@click.option("--start", type=INSTANT, metavar="TIME", help="It fires only after this time; @every counts from it.")
@click.option("--overlap", type=OneOf(*Overlap), default=Overlap.ALLOW.value, show_default=True, help="When the task before has not ended yet.")
@click.option(
    "--misfire",
    type=OneOf(*Misfire),
    default=Misfire.ONCE.value,
    show_default=True,
    help="Times that passed while nothing ran: skip them, make one task for all, or one for each (the newest 100).",
)
@click.option("--queue", type=NAME, help="The queue of its tasks.  [default: that of the type]")
@click.option("--priority", type=PRIORITY, help="The priority of its tasks.  [default: that of the type]")
@click.option("--timeout", type=DURATION, metavar="DURATION", help="How long an attempt may take.  [default: that of the type]")
@click.option("--expires", type=DURATION, metavar="DURATION", help="The deadline of its tasks, this long after their time; one that waits then is cancelled.")
@click.option("--tenant", default="", help="The tenant of its tasks.")
@click.option("--tag", "tags", type=TAG, multiple=True, metavar="NAME=VALUE", help="A tag of its tasks.")
@click.option("--new", is_flag=True, help="Refuse to change one that exists.")
@url
@as_json
def put(
    url: str | None,
    name: str,
    cron: str,
    type_name: str,
    payload: str | None,
    timezone: str,
    start: int | None,
    overlap: str,
    misfire: str,
    queue: str | None,
    priority: str | None,
    timeout: int | None,
    expires: int | None,
    tenant: str,
    tags: tuple[tuple[str, str], ...],
    new: bool,
    as_json: bool,
) -> None:
    """Make or change a schedule.

    CRON has five fields (minute hour day month weekday), six with the second first, or is a name such as @daily or '@every 5m'. Over
    a schedule that code declares it stands until it is deleted.
    """
    wanted = Schedule(
        type=type_name,
        cron=Cron.parse(cron, timezone, start=start),
        payload=read_payload(payload, "--payload"),
        overlap=Overlap(overlap),
        misfire=Misfire(misfire),
        queue=queue,
        priority=None if priority is None else Priority[priority.upper()],
        timeout=timeout,
        expires=expires,
        tenant=tenant,
        tags=dict(tags),
    )

    async def act(operations: Operations) -> None:
        info = await operations.put_schedule(name, wanted, version=0 if new else None)
        times = await operations.next_times(name, 3)
        if as_json:
            print_json(schedule_data(info))
        else:
            click.echo(f"{name} fires next at {', '.join(map(when, times))}")

    run(place(url), act)


@example("taskmill schedule pause morning --reason 'holidays'")
@schedule.command()
@_names
@reason
@url
def pause(url: str | None, names: tuple[str, ...], reason: str) -> None:
    """Let a schedule fire no more until it is resumed."""
    pause_each(place(url), names, lambda operations, name: operations.pause_schedule(name, reason=reason))


@example("taskmill schedule resume morning")
@schedule.command()
@_names
@url
def resume(url: str | None, names: tuple[str, ...]) -> None:
    """Let a schedule fire again."""
    resume_each(place(url), names, Operations.resume_schedule, "fires again")


@example("taskmill schedule trigger morning")
@schedule.command()
@_name
@url
@as_json
def trigger(url: str | None, name: str, as_json: bool) -> None:
    """Make a schedule's task now; its times stay as they are."""
    answer = run(place(url), lambda operations: operations.trigger_schedule(name))
    if as_json:
        print_json(submitted_data(answer))
    else:
        click.echo(answer.id)


@example("taskmill schedule next morning -n 10")
@schedule.command("next")
@_name
@click.option("-n", "number", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many.")
@url
@as_json
def next_(url: str | None, name: str, number: int, as_json: bool) -> None:
    """Show when a schedule would fire next, paused or not."""
    for time in run(place(url), lambda operations: operations.next_times(name, number)):
        if as_json:
            print_json({"schedule": name, "at": rfc3339(time)})
        else:
            click.echo(rfc3339(time))


@example("taskmill schedule delete morning --yes")
@schedule.command()
@_names
@confirmed
@url
def delete(url: str | None, names: tuple[str, ...], yes: bool, dry_run: bool) -> int:
    """Delete schedules that were put by hand.

    What code declares under the same name holds again.
    """
    where = place(url)

    async def look(operations: Operations) -> None:
        for name in names:
            if not (await operations.schedule(name)).operator:
                raise Conflict(f"{name} is declared by code", code="declared", field="NAME", hint="`taskmill schedule pause` keeps it from firing")

    async def act(operations: Operations) -> None:
        for name in names:
            await operations.delete_schedule(name)
            click.echo(f"{name} is deleted")

    run(where, look)
    if dry_run:
        click.echo(f"{', '.join(names)} would be deleted")
        return 0
    if not agreed(yes, f"delete {', '.join(names)}?"):
        return 1
    run(where, act)
    return 0
