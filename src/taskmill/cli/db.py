"""`taskmill db`: the schema of the store that the settings name. Looking (`plan`, `sql`, `verify`) changes nothing."""

from __future__ import annotations

import contextlib

import click

from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, example, url
from taskmill.cli.output import print_json
from taskmill.cli.store import place

__all__ = ["db"]

WRONG = 1

_contract = click.option("--contract", is_flag=True, help="Also what takes away things that older programs need: when none of them runs any more.")


@click.group(cls=NounGroup)
def db() -> None:
    """Make, upgrade and verify the schema of a store."""


@example("taskmill db upgrade --url sqlite:////var/lib/shop/taskmill.db")
@db.command()
@url
@_contract
def upgrade(url: str | None, contract: bool) -> None:
    """Bring the store to this program's schema.

    What it adds leaves the version before this one able to work, so that a deployment can roll; --contract then removes what only that one
    needed. A store that does not exist is made. Each migration is one transaction: stopped in the middle, it is as if that one had not begun,
    and the next upgrade goes on from there. Two upgrades at once take turns.
    """
    store = place(url).schema()
    applied = store.upgrade(_tell, contract=contract)
    click.echo(f"{store}: {_migrations(applied)} applied" if applied else f"{store}: up to date")


def _tell(title: str) -> None:
    """A reader that went away does not stop an upgrade half-way."""
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"applied {title}")


@example("taskmill db plan", "taskmill db plan --json")
@db.command()
@url
@_contract
@as_json
def plan(url: str | None, contract: bool, as_json: bool) -> None:
    """Show what an upgrade would apply; changes nothing."""
    store = place(url).schema()
    pending = store.plan(contract=contract)
    if as_json:
        print_json({"store": str(store), "pending": pending})
        return
    for title in pending:
        click.echo(f"pending {title}")
    click.echo(f"{store}: {_migrations(pending)} to apply with `taskmill db upgrade`" if pending else f"{store}: up to date")


@example("taskmill db sql > upgrade.sql", "taskmill db sql --contract | psql shop")
@db.command()
@url
@_contract
@as_json
def sql(url: str | None, contract: bool, as_json: bool) -> None:
    """Print what an upgrade would apply, as a script for psql; changes nothing.

    For a store whose schema a DBA makes: the program itself then needs no right to change it.
    """
    store = place(url).schema()
    script = store.sql(contract=contract)
    if as_json:
        print_json({"store": str(store), "script": script})
    else:
        click.echo(script, nl=False)


@example("taskmill db verify && echo fine", "taskmill db verify --json")
@db.command()
@url
@as_json
def verify(url: str | None, as_json: bool) -> int:
    """Check the store for damage and for a schema that differs.

    Reads the whole store and changes nothing. Exit code 1 when something is wrong.
    """
    store = place(url).schema()
    problems = store.verify()
    if as_json:
        print_json({"store": str(store), "ok": not problems, "problems": problems})
    else:
        for problem in problems:
            click.echo(f"problem: {problem}")
        click.echo(f"{store}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}" if problems else f"{store}: in order")
    return WRONG if problems else 0


def _migrations(titles: list[str]) -> str:
    return f"{len(titles)} migration{'' if len(titles) == 1 else 's'}"
