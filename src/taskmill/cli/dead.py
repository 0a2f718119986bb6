"""`taskmill dead`: the dead letters, tasks that failed for good and wait for a person."""

from __future__ import annotations

from collections.abc import Callable

import click
import msgspec

from taskmill.cli.changing import Change, change, chosen
from taskmill.cli.filters import filters
from taskmill.cli.groups import NounGroup
from taskmill.cli.listing import limit, list_tasks
from taskmill.cli.options import as_json, confirmed, example, url
from taskmill.cli.store import place
from taskmill.engine import Filter, Target
from taskmill.errors import Conflict
from taskmill.operations import Operations, Tally
from taskmill.task import State

__all__ = ["dead"]

_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_everything = click.option("--all", "everything", is_flag=True, help="Every dead task.")


@click.group(cls=NounGroup)
def dead() -> None:
    """Look at dead letters, run them again, throw them away."""


def _dead(which: Filter) -> Filter:
    return msgspec.structs.replace(which, states=frozenset({State.DEAD}))


def _chosen(ids: tuple[str, ...], which: Filter, everything: bool) -> list[Target] | Filter:
    wanted = chosen(ids, which, everything)
    return _dead(wanted) if isinstance(wanted, Filter) else wanted


async def _all_dead(operations: Operations, wanted: list[Target] | Filter) -> list[Target] | Filter:
    """The same; refused when an id is that of a task which is not dead."""
    for target in wanted if isinstance(wanted, list) else ():
        state = (await operations.get(target.task)).state
        if state is not State.DEAD:
            raise Conflict(f"{target.task} is {state}, not dead", code="not_dead", field="ID", hint="`taskmill task` acts on all others")
    return wanted


@example("taskmill dead list --type charge --since 1d", "taskmill dead list --json")
@dead.command("list")
@filters(states=False)
@limit
@url
@as_json
def list_(url: str | None, which: Filter, limit: int | None, as_json: bool) -> None:
    """List dead tasks, newest first, with what they died of."""
    list_tasks(place(url), _dead(which), limit, as_json=as_json)


@example("taskmill dead requeue --type charge --since 1d", "taskmill dead requeue --all --yes")
@dead.command()
@_ids
@filters(states=False)
@_everything
@click.option("--from-start", is_flag=True, help="Forget the checkpoints: every step is done again.")
@confirmed
@url
@as_json
def requeue(url: str | None, ids: tuple[str, ...], which: Filter, everything: bool, from_start: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Run dead tasks again, those named or all that match."""
    wanted = _chosen(ids, which, everything)

    async def act(operations: Operations, dry: bool, told: Callable[[int], None] | None) -> Tally:
        return await operations.requeue(await _all_dead(operations, wanted), from_start=from_start, dry_run=dry, progress=told)

    return change(place(url), Change("requeue", "requeued", act), wanted, yes=yes, dry_run=dry_run, as_json=as_json)


@example("taskmill dead purge --until 7d --dry-run", "taskmill dead purge --all --yes")
@dead.command()
@_ids
@filters(states=False)
@_everything
@confirmed
@url
@as_json
def purge(url: str | None, ids: tuple[str, ...], which: Filter, everything: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Delete the records of dead tasks, those named or all that match."""
    wanted = _chosen(ids, which, everything)

    async def act(operations: Operations, dry: bool, told: Callable[[int], None] | None) -> Tally:
        return await operations.delete(await _all_dead(operations, wanted), dry_run=dry, progress=told)

    return change(place(url), Change("delete", "deleted", act), wanted, yes=yes, dry_run=dry_run, as_json=as_json)
