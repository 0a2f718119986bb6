"""`taskmill db`: the schema of the store that the settings name. Looking (`plan`, `verify`) changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import click

from taskmill import config
from taskmill.cli.groups import NounGroup
from taskmill.engine import Durability
from taskmill.engines import Schema, schema

__all__ = ["db"]

WRONG = 1

_url = click.option("--url", metavar="URL", help="The store, for example sqlite:///taskmill.db.  [default: TASKMILL_URL, then url in taskmill.toml]")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


def _example(*lines: str) -> Callable[[click.Command], click.Command]:
    """Lines under the help, as they are."""

    def add(command: click.Command) -> click.Command:
        command.epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
        return command

    return add


@click.group(cls=NounGroup)
def db() -> None:
    """Make, upgrade and verify the schema of a store."""


@_example("taskmill db upgrade --url sqlite:////var/lib/shop/taskmill.db")
@db.command()
@_url
def upgrade(url: str | None) -> None:
    """Bring the store to this program's schema.

    A store that does not exist is made. Each migration is one transaction: stopped in the middle, it is as if that one had not begun, and
    the next upgrade goes on from there. Two upgrades at once take turns.
    """
    store = _store(url)
    applied = store.upgrade(lambda title: click.echo(f"applied {title}"))
    click.echo(f"{store}: {_migrations(applied)} applied" if applied else f"{store}: up to date")


@_example("taskmill db plan", "taskmill db plan --json")
@db.command()
@_url
@_json
def plan(url: str | None, as_json: bool) -> None:
    """Show what an upgrade would apply; changes nothing."""
    store = _store(url)
    pending = store.plan()
    if as_json:
        _print_json({"store": str(store), "pending": pending})
        return
    for title in pending:
        click.echo(f"pending {title}")
    click.echo(f"{store}: {_migrations(pending)} to apply with `taskmill db upgrade`" if pending else f"{store}: up to date")


@_example("taskmill db verify && echo fine", "taskmill db verify --json")
@db.command()
@_url
@_json
def verify(url: str | None, as_json: bool) -> int:
    """Check the store for damage and for a schema that differs.

    Reads the whole store and changes nothing. Exit code 1 when something is wrong.
    """
    store = _store(url)
    problems = store.verify()
    if as_json:
        _print_json({"store": str(store), "ok": not problems, "problems": problems})
    else:
        for problem in problems:
            click.echo(f"problem: {problem}")
        click.echo(f"{store}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}" if problems else f"{store}: in order")
    return WRONG if problems else 0


def _store(url: str | None) -> Schema:
    """The store of the settings in force, its relative path from where they were written."""
    loaded = config.load({"url": url}, os.environ)
    for warning in loaded.warnings:
        click.echo(f"taskmill: {warning}", err=True)
    settings = loaded.settings
    return schema(settings.url.reveal(), base=loaded.folder(Path.cwd()), durability=Durability(settings.durability), busy_timeout=settings.busy_timeout)


def _migrations(titles: list[str]) -> str:
    return f"{len(titles)} migration{'' if len(titles) == 1 else 's'}"


def _print_json(answer: dict[str, object]) -> None:
    click.echo(json.dumps(answer, ensure_ascii=False))
