"""What a URL of Redis says: the server, who asks it, the prefix of every key, and how far an acknowledged write must have come.

redis://user:password@host:port/database?prefix=tm&durability=local&busy_timeout=30s&archive=postgresql%3A%2F%2F…
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from taskmill.clock import SECOND, duration
from taskmill.config import Secret, mask_url, url_parameters
from taskmill.engine import Durability
from taskmill.errors import InvalidSettings
from taskmill.task import check_name

__all__ = ["PORT", "PREFIX", "Target", "parse"]

PORT = 6379
PREFIX = "tm"


class Target(Struct, frozen=True, kw_only=True):
    """Where a store is and how it is used. Its text names it for people, without the password."""

    host: str
    port: int = PORT
    user: str | None = None
    password: Secret | None = None
    database: int = 0
    prefix: str = PREFIX
    tls: bool = False
    durability: Durability = Durability.LOCAL
    """How far an acknowledged write must have come; so far this version can say no more than `local`."""
    busy_timeout: int = 30 * SECOND
    archive: Secret | None = None
    """The URL of the PostgreSQL database that finished tasks are copied to, or `none`."""

    def __str__(self) -> str:
        return f"{'rediss' if self.tls else 'redis'}://{self.host}:{self.port}/{self.database}?prefix={self.prefix}"

    @property
    def shard(self) -> str:
        """The prefix of all keys of a shard, with its hash tag: on Cluster they lie in one slot."""
        return f"{self.prefix}:{{0}}:"

    @property
    def patience(self) -> float:
        """Seconds to wait for a connection, or for the answer to one command."""
        return max(self.busy_timeout, SECOND) / SECOND

    def arguments(self) -> dict[str, Any]:
        """What a connection of redis-py is given."""
        given: dict[str, Any] = {"host": self.host, "port": self.port, "db": self.database}
        if self.user is not None:
            given["username"] = self.user
        if self.password is not None:
            given["password"] = self.password.reveal()
        return given


def parse(url: str, *, busy_timeout: int = 30 * SECOND) -> Target:
    parts = urlsplit(url)
    parameters = url_parameters(url)
    database = parts.path.strip("/") or "0"
    if not database.isdecimal():
        raise InvalidSettings(f"{database[:40]!r} is no number of a database", code="invalid_url", field="url", hint="redis://host:6379/0")
    for name in ("cluster", "sentinel"):
        if name in parameters:
            raise InvalidSettings(f"{name}= is not part of this version", code="unknown_engine", field="url", hint="name one server: redis://host:6379/0")
    if parameters.get("durability", Durability.LOCAL) != Durability.LOCAL:
        raise InvalidSettings(
            "Redis gives no more than durability=local in this version", code="contradiction", field="durability", hint="use PostgreSQL or SQLite for more"
        )
    if "busy_timeout" in parameters:
        busy_timeout = duration(parameters["busy_timeout"], field="busy_timeout")
    return Target(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or PORT,
        user=None if not parts.username else unquote(parts.username),
        password=None if not parts.password else Secret(unquote(parts.password)),
        database=int(database),
        prefix=check_name(parameters.get("prefix", PREFIX), "prefix"),
        tls=parts.scheme == "rediss",
        busy_timeout=busy_timeout,
        archive=Secret(parameters["archive"], mask_url(parameters["archive"])) if "archive" in parameters else None,
    )
