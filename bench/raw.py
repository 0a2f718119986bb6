"""The raw loop beside which an engine is measured, by the engine that the store's URL names."""

from __future__ import annotations

from typing import Protocol

from bench import raw_postgres, raw_redis, raw_sqlite
from bench.store import PAYLOAD, batch_of
from bench.stores import REDIS, SQLITE, file_of

__all__ = ["Commits", "claim_and_finish", "commits"]


class Commits(Protocol):
    """Commits of one small row, each measured."""

    seconds: list[float]

    async def measure(self) -> None: ...

    async def close(self) -> None: ...


def claim_and_finish(url: str, jobs: int) -> float:
    """Jobs a second, in a store with nothing in it."""
    if url.startswith(SQLITE):
        return raw_sqlite.claim_and_finish(file_of(url), jobs, batch_of(url), PAYLOAD.decode())
    if url.startswith(REDIS):
        return raw_redis.claim_and_finish(url, jobs, batch_of(url), PAYLOAD)
    return raw_postgres.claim_and_finish(url, jobs, batch_of(url), PAYLOAD.decode())


def commits(url: str) -> Commits:
    """On the disk or the server of a store, beside it."""
    if url.startswith(SQLITE):
        return raw_sqlite.Commits(file_of(url).with_name("probe.db"))
    return raw_redis.Commits(url) if url.startswith(REDIS) else raw_postgres.Commits(url)
