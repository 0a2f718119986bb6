"""What several tests of the PostgreSQL engine's foundation need."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.target import Target, parse

__all__ = ["opened", "target_of", "url_with"]


def url_with(url: str, **parameters: object) -> str:
    """The URL with more parameters."""
    added = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{url}{'&' if '?' in url else '?'}{added}"


def target_of(url: str, **changes: Any) -> Target:
    return replace(parse(url), **changes)


@contextlib.asynccontextmanager
async def opened(url: str, **changes: Any) -> AsyncIterator[Pool]:
    """A pool that is closed again."""
    pool = Pool(target_of(url, **changes))
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close()
