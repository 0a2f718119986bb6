"""`taskmill bench`: what a store and this machine can do, through the SDK and a real worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from taskmill import config
from taskmill.cli.options import as_json, example
from taskmill.cli.output import note, print_json, print_table, progress
from taskmill.errors import InvalidInput

if TYPE_CHECKING:
    from taskmill.cli.bench_measures import Measure

__all__ = ["bench"]


class Measured(NamedTuple):
    """The store that is measured: its URL with an absolute path, and what is shown of it."""

    url: str
    engine: str
    shown: str
    durability: str


@example("taskmill bench --quick", "taskmill bench --json > bench.json", "taskmill bench --url sqlite:////srv/data/scratch.db")
@click.command()
@click.option("--url", metavar="URL", help="Measure this store, in a queue of its own that is emptied afterwards.  [default: a new SQLite file]")
@click.option("--dir", "folder", metavar="DIR", help="Where the new file is made.  [default: beside the store of the settings]")
@click.option("--quick", is_flag=True, help="A tenth of everything: to see that it runs, not to believe its numbers.")
@as_json
def bench(url: str | None, folder: str | None, quick: bool, as_json: bool) -> None:
    """Measure submits, drains and waits on a store.

    Submits one by one, from many coroutines and in bulk; drains with one and two worker processes; how soon an idle worker starts what
    another process submits; CPU and memory. It takes about a minute, and is worth reading only on a machine that does nothing else.

    Your own store is measured only when --url names it: then its queue taskmill-bench is used and emptied; two types stay registered there,
    and the ids of its tasks are remembered for the dedupe window.
    """
    if url is not None and folder is not None:
        raise click.UsageError("--url and --dir are both given (--dir is for the new file that is used without --url)")
    with _named(url) if url is not None else _scratch(folder) as store:
        measures = _run(store, quick, tidy=url is not None)
    _show(store, measures, as_json)


def _run(store: Measured, quick: bool, *, tidy: bool) -> list[Measure]:
    from taskmill.cli.bench_app import declare
    from taskmill.cli.bench_measures import FULL, QUICK, measure

    note(f"measuring {store.shown}")
    return asyncio.run(measure(declare(store.url), store.url, QUICK if quick else FULL, progress, tidy=tidy))


@contextmanager
def _named(url: str) -> Iterator[Measured]:
    """The store that the caller names, opened as it is."""
    yield _measured(config.load({"url": url}, os.environ), Path.cwd())


@contextmanager
def _scratch(folder: str | None) -> Iterator[Measured]:
    """A new file on the disk where the store of the settings is or would be, gone afterwards."""
    loaded = config.load({}, os.environ)
    parent = Path(folder) if folder is not None else _folder_of(loaded)
    if not parent.is_dir():
        raise InvalidInput(f"there is no folder {parent}", code="no_such_folder", field="dir", hint="make it, or name another with --dir")
    path = Path(tempfile.mkdtemp(prefix="taskmill-bench-", dir=parent.resolve()))
    try:
        yield _measured(config.load({"url": f"sqlite:///{quote(str(path / 'bench.db'))}"}, os.environ), Path.cwd())
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _folder_of(loaded: config.Loaded) -> Path:
    here = loaded.folder(Path.cwd())
    if config.engine_kind(loaded.settings.url) != "sqlite":
        note(f"the settings name {loaded.settings.url}: that store is measured only with --url; this is an SQLite file in {here}")
        return here
    path = config.sqlite_path(loaded.settings.url, here)
    return here if path == config.MEMORY else path.parent


def _measured(loaded: config.Loaded, folder: Path) -> Measured:
    """Workers start elsewhere, so a relative path is made absolute; a store in memory has no second process."""
    url, durability = loaded.settings.url, loaded.settings.durability
    kind = config.engine_kind(url)
    if kind != "sqlite":
        return Measured(url.reveal(), kind, str(url), durability)
    path = config.sqlite_path(url, loaded.folder(folder))
    if path == config.MEMORY:
        raise InvalidInput("a store in memory has no place for a worker", code="invalid_value", field="url", hint="leave out --url: a new file is used")
    query = url.reveal().partition("?")[2]
    return Measured(f"sqlite:///{quote(str(path))}{'?' if query else ''}{query}", kind, str(path), durability)


def _show(store: Measured, measures: Sequence[Measure], as_json: bool) -> None:
    if as_json:
        print_json({"engine": store.engine, "store": store.shown, "durability": store.durability, **{one.key: round(one.value, 2) for one in measures}})
        return
    print_table(("measure", "result", ""), [(one.name, _number(one), one.note) for one in measures])
    click.echo(f"{store.engine}, durability={store.durability}; absolute figures belong to this machine and this hour")


def _number(one: Measure) -> str:
    return f"{one.value:,.0f} {one.unit}" if one.value >= 100 else f"{one.value:.1f} {one.unit}"
