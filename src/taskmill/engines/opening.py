"""Opening a store that may not be up yet: programs that start together with it can wait for it (the setting `wait_for_store`)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from taskmill.clock import SECOND, format_duration
from taskmill.errors import StoreError

__all__ = ["open_in_time"]

log = logging.getLogger("taskmill")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


async def open_in_time(open: Callable[[], Awaitable[object]], patience: int, stop: asyncio.Event | None = None) -> bool:
    """Ask again for so long while the store is away; any other refusal is raised at once. False when told to stop before it was there."""
    deadline = time.monotonic() + patience / SECOND
    pause = FIRST_PAUSE
    while stop is None or not stop.is_set():
        try:
            await open()
            return True
        except StoreError as error:
            if time.monotonic() >= deadline:
                raise
            if pause == FIRST_PAUSE:
                log.warning("the store is not there yet, waiting for it for up to %s: %s", format_duration(patience), error)
        await _sleep(pause * random.uniform(0.8, 1.2), stop)
        pause = min(2 * pause, LONGEST_PAUSE)
    return False


async def _sleep(seconds: float, stop: asyncio.Event | None) -> None:
    if stop is None:
        await asyncio.sleep(seconds)
        return
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({stopping}, timeout=seconds)
    stopping.cancel()
