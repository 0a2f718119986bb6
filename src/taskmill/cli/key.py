"""`taskmill key`: who may call the server, and to do what."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from taskmill import config
from taskmill.cli.changing import agreed
from taskmill.cli.groups import NounGroup
from taskmill.cli.options import OneOf, as_json, confirmed, example, url
from taskmill.cli.output import note, print_json, print_table, when
from taskmill.cli.store import Place, place, place_of, run
from taskmill.clock import SystemClock
from taskmill.engine import Engine
from taskmill.errors import NotFound
from taskmill.operations import Operations
from taskmill.server.access import Key, Scope, create_key, key_data, key_details, list_keys, new_key_id, revoke_key
from taskmill.server.audit import Audit, Detail, path_of

__all__ = ["key"]

KEY_COLUMNS = ("key", "name", "scopes", "tenant", "rate", "depth", "created")

Answer = TypeVar("Answer")


@click.group(cls=NounGroup)
def key() -> None:
    """Make, list and revoke API keys."""


@example("taskmill key create --scope admin --name ops", "taskmill key create --scope submit --scope read --tenant acme --name shop --rate 100 --depth 10000")
@key.command()
@click.option("--scope", "scopes", type=OneOf(*Scope), multiple=True, required=True, help="What it may do; may be given again.")
@click.option("--tenant", help="Whose tasks it is for.  [default: the whole store]")
@click.option("--name", default="", help="What people call it.")
@click.option("--rate", type=click.IntRange(1, 1 << 30), metavar="N", help="Requests in a second.  [default: any number]")
@click.option("--depth", type=click.IntRange(1, 1 << 30), metavar="N", help="It may submit while a queue holds fewer live tasks.  [default: always]")
@url
@as_json
def create(url: str | None, scopes: tuple[str, ...], tenant: str | None, name: str, rate: int | None, depth: int | None, as_json: bool) -> None:
    """Make a key; its token is printed once, and nobody can read it again.

    submit: submit tasks and send signals. read: look at tasks and at the store. read-payload: payloads, results and errors too. cancel: cancel, requeue and
    delete tasks. worker: claim and finish tasks. admin: all of it, and the store itself. A key with a tenant sees and touches the tasks of that tenant alone.
    """
    id = new_key_id()

    def make(engine: Engine) -> Awaitable[tuple[str, Key]]:
        return create_key(engine, name=name, scopes=scopes, tenant=tenant, rate=rate, depth=depth, id=id)

    token, found = _noted(url, "key.create", name or "a key", make, **key_details(id, scopes, tenant, rate, depth))
    if as_json:
        print_json({**key_data(found), "token": token})
    else:
        click.echo(token)
    note(f"this is key {found.id}; keep its token now, it is shown here and never again")


@example("taskmill key list", "taskmill key list --json")
@key.command("list")
@url
@as_json
def list_(url: str | None, as_json: bool) -> None:
    """List keys, the oldest first; never what they are made of."""
    found = run(place(url), lambda operations: list_keys(operations.engine))
    if as_json:
        for each in found:
            print_json(key_data(each))
    else:
        print_table(KEY_COLUMNS, map(_row, found))


def _row(key: Key) -> tuple[object, ...]:
    return (key.id, key.name, ",".join(key.scopes), key.tenant, key.rate, key.depth, when(key.created_at))


@example("taskmill key revoke 3f9a0c1d2e4b --yes")
@key.command()
@click.argument("ids", metavar="KEY...", nargs=-1, required=True)
@confirmed
@url
def revoke(url: str | None, ids: tuple[str, ...], yes: bool, dry_run: bool) -> int:
    """Revoke keys; every server refuses them within 5 s, open streams included."""
    known = {found.id: found for found in run(place(url), lambda operations: list_keys(operations.engine))}
    for id in ids:
        if id not in known:
            raise NotFound(f"there is no key {id[:40]!r}", field="KEY", hint="`taskmill key list` shows them")
    names = ", ".join(f"{id} ({known[id].name})" if known[id].name else id for id in ids)
    if dry_run:
        click.echo(f"{names} would be revoked")
        return 0
    if not agreed(yes, f"revoke {names}?"):
        return 1
    for id in dict.fromkeys(ids):
        _noted(url, "key.revoke", id, partial(revoke_key, id=id))
        click.echo(f"{id} is revoked")
    return 0


def _noted(url: str | None, action: str, target: str, act: Callable[[Engine], Awaitable[Answer]], **details: Detail) -> Answer:
    """A change of the store, in the same audit log as the server's."""
    loaded = config.load({"url": url}, os.environ)
    where: Place = place_of(loaded, Path.cwd())
    audit = Audit(path_of(loaded.settings, where.base), SystemClock())

    async def work(operations: Operations) -> Answer:
        async with audit.deed(action, target, details={**details, "by": "command line"}):
            return await act(operations.engine)

    return run(where, work)
