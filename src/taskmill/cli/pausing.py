"""Pause and resume of what has a name: queues, types and schedules alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from taskmill.cli.output import note
from taskmill.cli.store import Place, run
from taskmill.operations import Operations

__all__ = ["pause_each", "reason", "resume_each"]

Change = Callable[[Operations, str], Awaitable[bool]]

reason = click.option("--reason", default="", help="Why, for those who find it paused.")


def pause_each(where: Place, names: Sequence[str], pause: Change) -> None:
    """Pause these; each says whether it was so already."""

    async def act(operations: Operations) -> None:
        for name in names:
            click.echo(f"{name} is paused" if await pause(operations, name) else f"{name} was paused already")

    run(where, act)


def resume_each(where: Place, names: Sequence[str], resume: Change, again: str) -> None:
    """Resume these; `again` says what they do then."""

    async def act(operations: Operations) -> None:
        for name in names:
            if await resume(operations, name):
                click.echo(f"{name} {again}")
            else:
                note(f"{name} was not paused")

    run(where, act)
