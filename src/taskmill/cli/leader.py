"""`taskmill leader`: which process does what only one may do."""

from __future__ import annotations

import click

from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, example, url
from taskmill.cli.output import print_json, print_table
from taskmill.cli.store import place, run

__all__ = ["leader"]

LEADER_COLUMNS = ("role", "holder", "term")


@click.group(cls=NounGroup)
def leader() -> None:
    """Show which process leads."""


@example("taskmill leader list", "taskmill leader list --json")
@leader.command("list")
@url
@as_json
def list_(url: str | None, as_json: bool) -> None:
    """List the roles of maintenance (schedules, pruning, outbox), and which process has each.

    An empty holder: no process does it now. Start a worker or `taskmill scheduler`.
    """
    found = run(place(url), lambda operations: operations.leaders())
    rows = [(role, "" if term is None else term.holder, None if term is None else term.number) for role, term in found.items()]
    if as_json:
        for role, holder, number in rows:
            print_json({"role": role, "holder": holder or None, "term": number})
    else:
        print_table(LEADER_COLUMNS, rows, heading=True)
