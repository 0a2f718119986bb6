"""When a store holds no task any more that has not ended: asked from outside, in the same way for every system of an engine."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Protocol, Self

import asyncpg
import redis

from bench.stores import REDIS

__all__ = ["Watch"]

PAUSE = 0.005


class _Asker(Protocol):
    """One connection to the store."""

    def unfinished(self) -> bool: ...

    def close(self) -> None: ...


class Watch:
    """Connected before the worker starts; it asks nothing until all no-ops have run. Without a question there is nothing to watch.

    The question is a statement in SQL, or a script of Redis; its answer says whether something is left.
    """

    def __init__(self, url: str, unfinished: str) -> None:
        self._url = url
        self._unfinished = unfinished
        self._asker: _Asker | None = None

    def __enter__(self) -> Self:
        if self._unfinished:
            asker = _Scripts if self._url.startswith(REDIS) else _Statements
            self._asker = asker(self._url, self._unfinished)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._asker is not None:
            self._asker.close()

    def emptied(self, patience: float) -> int | None:
        """The moment (monotonic ns), to within one question and its pause; None where it cannot be seen."""
        if self._asker is None:
            return None
        end = time.monotonic() + patience
        while self._asker.unfinished():
            if time.monotonic() > end:
                raise RuntimeError(f"after {patience:g} s there still are tasks that have not ended: {self._unfinished}")
            time.sleep(PAUSE)
        return time.monotonic_ns()


class _Statements:
    def __init__(self, url: str, statement: str) -> None:
        self._statement = statement
        self._runner = asyncio.Runner()
        self._connection: Any = self._runner.run(asyncpg.connect(url))

    def unfinished(self) -> bool:
        return bool(self._runner.run(self._connection.fetchval(self._statement)))

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


class _Scripts:
    def __init__(self, url: str, script: str) -> None:
        self._script = script
        self._client: Any = redis.Redis.from_url(url)
        self._client.ping()

    def unfinished(self) -> bool:
        return bool(self._client.eval(self._script, 0))

    def close(self) -> None:
        self._client.close()
