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
import msgspec

from taskmill import config
from taskmill.clock import SECOND
from taskmill.config import Settings
from taskmill.engine import Durability, Engine
from taskmill.engines import Schema, of_settings, schema
from taskmill.errors import WrongStore
from taskmill.operations import Operations

__all__ = ["Place", "place", "run"]

PATIENCE = 4 * SECOND

Answer = TypeVar("Answer")


class Place(NamedTuple):
    """Where a store is and how it is opened."""

    settings: Settings
    base: Path

    def hurried(self) -> Place:
        """The same for a person who waits."""
        return self._replace(settings=msgspec.structs.replace(self.settings, busy_timeout=min(self.settings.busy_timeout, PATIENCE)))

    def schema(self) -> Schema:
        settings = self.settings
        return schema(settings.url.reveal(), base=self.base, durability=Durability(settings.durability), busy_timeout=settings.busy_timeout)

    def engine(self) -> Engine:
        return of_settings(self.settings, self.base)


def place(url: str | None) -> Place:
    """The store of the settings in force, its relative path from where they were written; warnings go to stderr."""
    loaded = config.load({"url": url}, os.environ)
    for warning in loaded.warnings:
        click.echo(f"taskmill: {warning}", err=True)
    return place_of(loaded, Path.cwd())


def place_of(loaded: config.Loaded, folder: Path) -> Place:
    return Place(loaded.settings, loaded.folder(folder))


def run(where: Place, work: Callable[[Operations], Awaitable[Answer]]) -> Answer:
    """Open the store, do one command's work on it, close it."""
    where = where.hurried()
    store = where.schema()
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
