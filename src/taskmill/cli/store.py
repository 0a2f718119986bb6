"""The store of the settings in force, opened for one command and closed behind it.

A command never makes a store: one that is mistyped would be born empty, and `task list` would say that there is no task. And it gives
up soon: a person waits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from taskmill import config
from taskmill.clock import SECOND
from taskmill.engine import Durability, Engine
from taskmill.engines import Schema, create, schema
from taskmill.errors import WrongStore
from taskmill.operations import Operations

__all__ = ["Place", "place", "run"]

PATIENCE = 4 * SECOND

Answer = TypeVar("Answer")


class Place(NamedTuple):
    """Where a store is and how it is opened."""

    url: str
    base: Path
    durability: Durability
    busy_timeout: int

    def schema(self) -> Schema:
        return schema(self.url, base=self.base, durability=self.durability, busy_timeout=self.busy_timeout)

    def engine(self) -> Engine:
        return create(self.url, base=self.base, durability=self.durability, busy_timeout=min(self.busy_timeout, PATIENCE))


def place(url: str | None) -> Place:
    """The store of the settings in force, its relative path from where they were written; warnings go to stderr."""
    loaded = config.load({"url": url}, os.environ)
    for warning in loaded.warnings:
        click.echo(f"taskmill: {warning}", err=True)
    return place_of(loaded, Path.cwd())


def place_of(loaded: config.Loaded, folder: Path) -> Place:
    settings = loaded.settings
    return Place(settings.url.reveal(), loaded.folder(folder), Durability(settings.durability), settings.busy_timeout)


def run(where: Place, work: Callable[[Operations], Awaitable[Answer]]) -> Answer:
    """Open the store, do one command's work on it, close it."""
    store = where._replace(busy_timeout=min(where.busy_timeout, PATIENCE)).schema()
    if store.plan():
        raise WrongStore(
            f"there is no store of this version at {store}",
            code="no_store",
            field="url",
            hint="`taskmill db upgrade` makes or upgrades it; --url, TASKMILL_URL and taskmill.toml name another",
        )
    return asyncio.run(_run(where.engine(), work))


async def _run(engine: Engine, work: Callable[[Operations], Awaitable[Answer]]) -> Answer:
    await engine.open()
    try:
        return await work(Operations(engine))
    finally:
        await engine.close()
