"""The schema of a store on Redis: there is none to apply, a store is made when it is first opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from taskmill.engines.redis.check import guard
from taskmill.engines.redis.store import Shards
from taskmill.engines.redis.target import Target
from taskmill.errors import TaskmillError

__all__ = ["RedisSchema"]


class RedisSchema:
    """What there is to look after; its text names the store for people."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __str__(self) -> str:
        return str(self._target)

    def upgrade(self, report: Callable[[str], None] = lambda _: None, *, contract: bool = False) -> list[str]:
        asyncio.run(self._guard(make=True))
        return []

    def plan(self, *, contract: bool = False) -> list[str]:
        return []

    def sql(self, *, contract: bool = False) -> str:
        return ""

    def verify(self) -> list[str]:
        try:
            asyncio.run(self._guard(make=False))
        except TaskmillError as error:
            return [str(error)]
        return []

    async def _guard(self, *, make: bool) -> None:
        shards = Shards(self._target, None)
        try:
            await guard(shards, make=make)
        finally:
            await shards.close()
