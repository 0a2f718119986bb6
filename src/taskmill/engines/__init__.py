"""The engines; `create` picks one by its URL, and only then is its driver imported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from taskmill.clock import SECOND, Clock, duration
from taskmill.codec import PAYLOAD_LIMIT
from taskmill.config import MEMORY, Secret, Settings, engine_kind, sqlite_path, url_parameters
from taskmill.engine import Durability, Engine, Entry
from taskmill.errors import InvalidSettings
from taskmill.task import DEFAULT_DEDUPE_WINDOW, Rules

if TYPE_CHECKING:
    from taskmill.engines.postgres.target import Target
    from taskmill.engines.redis.target import Target as Place

__all__ = ["Schema", "create", "deliverers", "of_settings", "schema"]


class Schema(Protocol):
    """A store's schema, for those who look after it; its text names the store for people."""

    def upgrade(self, report: Callable[[str], None] = ..., *, contract: bool = ...) -> list[str]:
        """Apply what is missing, each migration told to `report` when it stands; what was applied. What older programs could not work with is applied only with
        `contract`."""

    def plan(self, *, contract: bool = ...) -> list[str]:
        """What `upgrade` would apply. Changes nothing."""

    def sql(self, *, contract: bool = ...) -> str:
        """What `upgrade` would apply, as a script for the store's own shell. Changes nothing."""

    def verify(self) -> list[str]:
        """What is wrong with the store; nothing, if the list is empty. Changes nothing."""


def create(
    url: str,
    *,
    clock: Clock | None = None,
    base: Path | None = None,
    durability: Durability | None = None,
    busy_timeout: int = 30 * SECOND,
    lease: int = 4 * SECOND,
    term: int = 4 * SECOND,
    payload_limit: int = PAYLOAD_LIMIT,
    dedupe_window: int = DEFAULT_DEDUPE_WINDOW,
) -> Engine:
    """The engine of a URL, not yet opened. `base` is where a relative path starts; what the URL itself says goes before the arguments.
    Without a word on durability a file and PostgreSQL wait for the disk, and Redis for its memory."""
    rules = Rules(payload_limit, dedupe_window)
    if engine_kind(url) == "postgres":
        target = _postgres(url, durability, busy_timeout)
        from taskmill.engines.postgres.engine import PostgresEngine

        return PostgresEngine(target, clock=clock, lease=lease, term=term, rules=rules)
    if engine_kind(url) == "redis":
        place = _redis(url, durability, busy_timeout)
        from taskmill.engines.redis.engine import engine_of

        engine = engine_of(place, clock=clock, lease=lease, term=term, rules=rules)
        return engine if place.archive is None else _with_archive(engine, place.archive, place.busy_timeout)
    path, durability, busy_timeout = _sqlite(url, base, durability, busy_timeout)
    from taskmill.engines.sqlite.engine import SQLiteEngine

    where = None if path == MEMORY else path
    return SQLiteEngine(where, clock=clock, durability=durability, busy_timeout=busy_timeout, lease=lease, term=term, rules=rules)


def of_settings(settings: Settings, base: Path, *, clock: Clock | None = None) -> Engine:
    """The engine that the settings name, not yet opened."""
    return create(
        settings.url.reveal(), clock=clock, base=base, durability=Durability(settings.durability), busy_timeout=settings.busy_timeout,
        lease=settings.lease, term=settings.term, payload_limit=settings.payload_limit, dedupe_window=settings.dedupe_window,
    )  # fmt: skip


def deliverers(engine: Engine) -> Mapping[str, Callable[[Sequence[Entry]], Awaitable[None]]]:
    """By kind of the outbox, what the engine itself brings to other places; whoever looks after its store runs them."""
    found: Mapping[str, Callable[[Sequence[Entry]], Awaitable[None]]] = getattr(engine, "deliverers", {})
    return found


def schema(url: str, *, clock: Clock | None = None, base: Path | None = None, durability: Durability | None = None, busy_timeout: int = 30 * SECOND) -> Schema:
    """The schema of the store that a URL names; nothing is opened yet."""
    if engine_kind(url) == "postgres":
        target = _postgres(url, durability, busy_timeout)
        from taskmill.engines.postgres.schema import PostgresSchema

        return PostgresSchema(target)
    if engine_kind(url) == "redis":
        from taskmill.engines.redis.schema import RedisSchema

        return RedisSchema(_redis(url, durability, busy_timeout))
    path, durability, busy_timeout = _sqlite(url, base, durability, busy_timeout)
    if path == MEMORY:
        raise InvalidSettings("a store in memory ends with its program", code="no_file", field="url", hint="name a file: sqlite:///taskmill.db")
    from taskmill.engines.sqlite.schema import SQLiteSchema

    return SQLiteSchema(path, clock=clock, durability=durability, busy_timeout=busy_timeout)


def _postgres(url: str, durability: Durability | None, busy_timeout: int) -> Target:
    """What a URL of PostgreSQL says, if there is a driver for it."""
    if find_spec("asyncpg") is None:
        raise InvalidSettings("the PostgreSQL engine needs asyncpg", code="missing_driver", field="url", hint="pip install 'taskmill[postgres]'")
    from taskmill.engines.postgres.target import parse

    return parse(url, durability=durability or Durability.FSYNC, busy_timeout=busy_timeout)


def _redis(url: str, durability: Durability | None, busy_timeout: int) -> Place:
    """What a URL of Redis says, if there is a driver for it."""
    if find_spec("redis") is None:
        raise InvalidSettings("the Redis engine needs redis-py", code="missing_driver", field="url", hint="pip install 'taskmill[redis]'")
    from taskmill.engines.redis.target import parse

    return parse(url, durability=durability, busy_timeout=busy_timeout)


def _with_archive(engine: Engine, url: Secret, busy_timeout: int) -> Engine:
    """The engine, and behind it the archive that its URL names."""
    if find_spec("asyncpg") is None:
        raise InvalidSettings("an archive needs asyncpg", code="missing_driver", field="archive", hint="pip install 'taskmill[postgres]'")
    from taskmill.engines.archive.engine import archived

    return archived(engine, url, busy_timeout=busy_timeout)


def _sqlite(url: str, base: Path | None, durability: Durability | None, busy_timeout: int) -> tuple[Path, Durability, int]:
    """What a URL of SQLite says; every other one is refused."""
    kind = engine_kind(url)
    if kind != "sqlite":
        raise InvalidSettings(
            f"the {kind} engine is not part of this version",
            code="unknown_engine",
            field="url",
            hint="use sqlite:///path/to/taskmill.db, postgresql://user@host/database or redis://host:6379/0",
        )
    parameters = url_parameters(url)
    wanted = parameters.get("durability", durability or Durability.FSYNC)
    if wanted not in (Durability.FSYNC, Durability.LOCAL):
        raise InvalidSettings(f"SQLite has no durability {wanted[:40]!r}", code="contradiction", field="durability", hint="fsync or local")
    if "busy_timeout" in parameters:
        busy_timeout = duration(parameters["busy_timeout"], field="busy_timeout")
    return sqlite_path(url, base or Path.cwd()), Durability(wanted), busy_timeout
