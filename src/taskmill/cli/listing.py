"""Lists of tasks: page after page as they come, or a live table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import click

from taskmill.cli.output import drawn, note, on_terminal, print_json, print_table
from taskmill.cli.store import Place, run
from taskmill.cli.views import TASK_COLUMNS, task_row
from taskmill.clock import SystemClock, rfc3339
from taskmill.engine import Filter
from taskmill.operations import Operations
from taskmill.task import Task
from taskmill.views import task_data

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["limit", "list_tasks", "watch", "watch_tasks", "watching"]

FITS = 50
EVERY = 1.0
PAGE = 500

limit = click.option("--limit", type=click.IntRange(min=1), metavar="N", help=f"Show at most this many.  [default: {FITS} on a terminal, all elsewhere]")
watch = click.option("--watch", is_flag=True, help="A live table, until Ctrl-C; needs a terminal.")


def list_tasks(where: Place, which: Filter, limit: int | None, *, as_json: bool) -> None:
    """Everything that matches, or its beginning; says so when more would follow."""
    most = limit or (FITS if on_terminal() and not as_json else None)

    async def show(operations: Operations) -> None:
        await operations.check_names(which)
        if as_json or not on_terminal():
            async for task in _tasks(operations, which, most):
                _print_one(task, as_json=as_json)
            return
        fit = most or FITS
        tasks = [task async for task in _tasks(operations, which, fit + 1)]
        print_table(TASK_COLUMNS, map(task_row, tasks[:fit]))
        if len(tasks) > fit and not limit:
            note(f"more match than the {fit} newest shown here; --limit shows more, and a filter narrows")
        elif not tasks:
            note("no task matches")

    run(where, show)


def _print_one(task: Task, *, as_json: bool) -> None:
    if as_json:
        print_json(task_data(task))
    else:
        print_table(TASK_COLUMNS, [task_row(task)])


async def _tasks(operations: Operations, which: Filter, most: int | None) -> AsyncIterator[Task]:
    left = most
    async for page in operations.stream(which, n=min(most or PAGE, PAGE)):
        for task in page.tasks[:left]:
            yield task
        if left is not None:
            left -= len(page.tasks)
            if left <= 0:
                return


def watch_tasks(where: Place, which: Filter, limit: int | None, *, as_json: bool) -> None:
    """The newest that match, drawn anew every second."""

    async def look(operations: Operations) -> RenderableType:
        await operations.check_names(which)
        page = await operations.list(which, n=limit or 20)
        return drawn(TASK_COLUMNS, map(task_row, page.tasks), title=_now())

    watching(where, look, as_json=as_json)


def watching(where: Place, look: Callable[[Operations], Awaitable[RenderableType]], *, as_json: bool) -> None:
    """What `look` draws, again and again, until Ctrl-C."""
    if as_json or not on_terminal():
        raise click.UsageError("--watch draws on a terminal (taskmill task tail --json tells what happens, line by line)")

    async def draw(operations: Operations) -> None:
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(await look(operations), refresh=True)
                await asyncio.sleep(EVERY)

    run(where, draw)


def _now() -> str:
    return f"{rfc3339(SystemClock().now() // 1_000_000 * 1_000_000)}, every second; Ctrl-C ends it"
