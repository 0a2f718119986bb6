"""When a database holds no task any more that has not ended: asked from outside, in the same way for every system."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

import asyncpg

__all__ = ["Watch"]

PAUSE = 0.005


class Watch:
    """One connection, open before the worker starts; it asks nothing until all no-ops have run. Without a statement there is nothing to watch."""

    def __init__(self, url: str, unfinished: str) -> None:
        self._url = url
        self._unfinished = unfinished
        self._runner = asyncio.Runner()
        self._connection: Any = None

    def __enter__(self) -> Self:
        if self._unfinished:
            self._connection = self._runner.run(asyncpg.connect(self._url))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._connection is not None:
            self._runner.run(self._connection.close())
        self._runner.close()

    def emptied(self, patience: float) -> int | None:
        """The moment (monotonic ns), to within one question and its pause; None where it cannot be seen."""
        return None if self._connection is None else self._runner.run(self._emptied(patience))

    async def _emptied(self, patience: float) -> int:
        end = time.monotonic() + patience
        while await self._connection.fetchval(self._unfinished):
            if time.monotonic() > end:
                raise RuntimeError(f"after {patience:g} s there still are tasks that have not ended: {self._unfinished}")
            await asyncio.sleep(PAUSE)
        return time.monotonic_ns()
