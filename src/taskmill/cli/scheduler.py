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
from taskmill.cli.serving import log_option
from taskmill.cli.store import place_of

__all__ = ["scheduler"]


@example("taskmill scheduler", "taskmill scheduler --url sqlite:////var/lib/shop/taskmill.db")
@click.command()
@url
@log_option
def scheduler(url: str | None, log_format: str | None) -> int:
    """Look after a store without running tasks.

    It recovers lost tasks, fires schedules, prunes and delivers the outbox. Every worker does this too, unless started with --no-maintenance.
    Any number may run: recovery needs no leader, and of the rest one leads at a time.
    """
    from taskmill.worker import logs

    loaded = config.load({"url": url, "log_format": log_format}, os.environ)
    logs.configure(loaded.settings.log_level, loaded.settings.log_format)
    asyncio.run(_run(loaded))
    return 0


async def _run(loaded: config.Loaded) -> None:
    from taskmill.maintenance import Maintenance
    from taskmill.worker.offspring import worker_id

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = place_of(loaded, Path.cwd()).engine()
    await engine.open()
    maintaining = asyncio.create_task(Maintenance(engine, loaded.settings, worker_id()).run())
    try:
        await asyncio.wait({maintaining, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        maintaining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await maintaining
    finally:
        await engine.close()
