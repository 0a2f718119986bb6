"""`taskmill workers`: who runs tasks, and commands to them."""

from __future__ import annotations

import click

from taskmill.cli.changing import agreed, many
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, confirmed, did_you_mean, example, url
from taskmill.cli.output import print_json, print_table
from taskmill.cli.store import Place, place, run
from taskmill.cli.views import WORKER_COLUMNS, worker_row
from taskmill.engine import WorkerInfo
from taskmill.errors import NotFound
from taskmill.operations import Operations
from taskmill.views import worker_data

__all__ = ["workers"]

_ids = click.argument("ids", metavar="[WORKER]...", nargs=-1)
_everybody = click.option("--all", "everybody", is_flag=True, help="Every worker that is alive.")


@click.group(cls=NounGroup)
def workers() -> None:
    """List workers; let them pause, go quiet, stop, resume."""


@example("taskmill workers list", "taskmill workers list --json")
@workers.command("list")
@url
@as_json
def list_(url: str | None, as_json: bool) -> None:
    """List workers: what each runs, and when it was last heard of."""
    found = run(place(url), lambda operations: operations.workers())
    if as_json:
        for worker in found:
            print_json(worker_data(worker))
    else:
        print_table(WORKER_COLUMNS, map(worker_row, found))


@example("taskmill workers pause --all")
@workers.command()
@_ids
@_everybody
@url
def pause(url: str | None, ids: tuple[str, ...], everybody: bool) -> None:
    """Let workers claim nothing until they are resumed; what they have in hand waits."""
    _tell(place(url), ids, everybody, "pause", "told to pause")


@example("taskmill workers quiet anna-1")
@workers.command()
@_ids
@_everybody
@url
def quiet(url: str | None, ids: tuple[str, ...], everybody: bool) -> None:
    """Let workers finish what they run and claim nothing more, before a stop."""
    _tell(place(url), ids, everybody, "quiet", "told to go quiet")


@example("taskmill workers resume --all")
@workers.command()
@_ids
@_everybody
@url
def resume(url: str | None, ids: tuple[str, ...], everybody: bool) -> None:
    """Take back pause and quiet."""
    _tell(place(url), ids, everybody, None, "told to resume")


@example("taskmill workers stop anna-1 --yes", "taskmill workers stop --all --dry-run")
@workers.command()
@_ids
@_everybody
@confirmed
@url
def stop(url: str | None, ids: tuple[str, ...], everybody: bool, yes: bool, dry_run: bool) -> int:
    """Let workers finish or release what they run, and end."""
    where = place(url)
    found = run(where, lambda operations: _chosen(operations, ids, everybody))
    names = ", ".join(worker.id for worker in found)
    if not found:
        click.echo("no worker is alive")
        return 0
    if dry_run:
        click.echo(f"{names} would be stopped, with {many(sum(worker.running for worker in found))} running")
        return 0
    if not agreed(yes, f"stop {names}, with {many(sum(worker.running for worker in found))} running?"):
        return 1
    _tell(where, ids, everybody, "stop", "told to stop")
    return 0


async def _chosen(operations: Operations, ids: tuple[str, ...], everybody: bool) -> list[WorkerInfo]:
    """The workers that are meant, in the order named."""
    if bool(ids) == everybody:
        raise click.UsageError("name workers, or --all for every one" if not ids else "workers are named and --all is given (keep one)")
    known = {worker.id: worker for worker in await operations.workers()}
    if everybody:
        return [worker for worker in known.values() if worker.alive]
    for id in ids:
        if id not in known:
            hint = did_you_mean(id, list(known)) or "`taskmill workers list` shows them"
            raise NotFound(f"there is no worker {id[:80]!r}", field="WORKER", hint=hint)
    return [known[id] for id in dict.fromkeys(ids)]


def _tell(where: Place, ids: tuple[str, ...], everybody: bool, command: str | None, told: str) -> None:
    async def act(operations: Operations) -> None:
        for worker in await _chosen(operations, ids, everybody):
            await operations.command_worker(worker.id, command)
            click.echo(f"{worker.id} is {told}")

    run(where, act)
