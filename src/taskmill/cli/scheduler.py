"""`taskmill scheduler`: the upkeep of a store, without running tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import click

from taskmill import config
from taskmill.cli.options import example, url
from taskmill.cli.serving import log_option, wait_option
from taskmill.cli.store import place_of
from taskmill.engines.opening import open_in_time

__all__ = ["scheduler"]

LAST_WORDS = 1.0
"""Seconds for each part of its end: a store that is away must not keep it."""


@example("taskmill scheduler", "taskmill scheduler --url sqlite:////var/lib/shop/taskmill.db")
@click.command()
@url
@log_option
@wait_option
def scheduler(**settings: str | None) -> int:
    """Look after a store without running tasks.

    It recovers lost tasks, fires schedules, prunes and delivers the outbox. Every worker does this too, unless started with --no-maintenance.
    Any number may run: recovery needs no leader, and of the rest one leads at a time.
    """
    from taskmill.worker import logs

    loaded = config.load(settings, os.environ)
    logs.configure(loaded.settings.log_level, loaded.settings.log_format)
    asyncio.run(_run(loaded))
    return 0


async def _run(loaded: config.Loaded) -> None:
    from taskmill.maintenance import Maintenance
    from taskmill.worker.offspring import worker_id
    from taskmill.worker.process import exit_soon, let_go, within

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = place_of(loaded, Path.cwd()).engine()
    if not await open_in_time(engine.open, loaded.settings.wait_for_store, stop):
        return
    maintaining = asyncio.create_task(let_go(Maintenance(engine, loaded.settings, worker_id()).run(), LAST_WORDS))
    try:
        await asyncio.wait({maintaining, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        maintaining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await maintaining
    finally:
        await within(LAST_WORDS, engine.close())
        if stop.is_set():
            exit_soon(0, LAST_WORDS)
