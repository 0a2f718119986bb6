"""The engines; `create` picks one by its URL, and only then is its driver imported."""

from __future__ import annotations

from pathlib import Path

from taskmill.clock import Clock
from taskmill.config import MEMORY, engine_kind, sqlite_path, url_parameters
from taskmill.engine import Durability, Engine
from taskmill.errors import InvalidSettings

__all__ = ["create"]


def create(
    url: str, *, clock: Clock | None = None, base: Path | None = None, durability: Durability = Durability.FSYNC, busy_timeout: int = 30_000_000
) -> Engine:
    """The engine of a URL, not yet opened. `base` is where a relative path starts."""
    kind = engine_kind(url)
    if kind != "sqlite":
        raise InvalidSettings(f"the {kind} engine is not part of this version", code="unknown_engine", field="url", hint="use sqlite:///path/to/taskmill.db")
    from taskmill.engines.sqlite.engine import SQLiteEngine

    parameters = url_parameters(url)
    path = sqlite_path(url, base or Path.cwd())
    return SQLiteEngine(
        None if path == MEMORY else path, clock=clock, durability=Durability(parameters.get("durability", durability)), busy_timeout=busy_timeout
    )
