"""What a URL of Redis says: the servers, who asks them, the prefix of every key, and how far an acknowledged write must have come.

redis://user:password@host:port/database?prefix=tm&durability=local&busy_timeout=30s      one server
redis://user:password@one:26379,two:26379/0?sentinel=name                                 the primary that Sentinels name
redis://user:password@one:7000,two:7001/?cluster=true                                     a Cluster

…&archive=postgresql%3A%2F%2Fuser%40host%2Fdatabase: what has ended is copied there
"""

from __future__ import annotations

import re
from typing import Any, NoReturn
from urllib.parse import unquote

from msgspec import Struct

from taskmill.clock import SECOND, duration
from taskmill.config import Secret, mask_url, url_parameters
from taskmill.engine import Durability
from taskmill.errors import InvalidSettings
from taskmill.task import check_name

__all__ = ["PORT", "PREFIX", "SHARDS", "Target", "parse"]

PORT = 6379
SENTINEL_PORT = 26379
PREFIX = "tm"
SHARDS = 1_024
"""Of a store on a Cluster; one server has one."""


class Target(Struct, frozen=True, kw_only=True):
    """Where a store is and how it is used. Its text names it for people, without the password."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None = None
    password: Secret | None = None
    database: int = 0
    prefix: str = PREFIX
    tls: bool = False
    sentinel: str | None = None
    """The name under which the servers at `hosts`, which are Sentinels then, know the primary."""
    cluster: bool = False
    durability: Durability = Durability.LOCAL
    """How far a write must have come before it is acknowledged."""
    busy_timeout: int = 30 * SECOND
    archive: Secret | None = None
    """The URL of the PostgreSQL database that finished tasks are copied to, or `none`."""

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        more = f"&sentinel={self.sentinel}" if self.sentinel else "&cluster=true" if self.cluster else ""
        return f"{'rediss' if self.tls else 'redis'}://{hosts}/{self.database}?prefix={self.prefix}{more}"

    @property
    def shards(self) -> int:
        return SHARDS if self.cluster else 1

    def shard(self, number: int) -> str:
        """The prefix of all keys of a shard, with its hash tag: on Cluster they lie in one slot."""
        return f"{self.prefix}:{{{number}}}:"

    @property
    def patience(self) -> float:
        """Seconds to wait for a connection, or for the answer to one command."""
        return max(self.busy_timeout, SECOND) / SECOND

    def arguments(self) -> dict[str, Any]:
        """What a connection of redis-py is given, beside the server."""
        given: dict[str, Any] = {} if self.cluster else {"db": self.database}
        if self.user is not None:
            given["username"] = self.user
        if self.password is not None:
            given["password"] = self.password.reveal()
        if self.tls:
            given["ssl_check_hostname"] = True
        return given


def parse(url: str, *, durability: Durability | None = None, busy_timeout: int = 30 * SECOND) -> Target:
    """What a URL says; what it says itself goes before the arguments."""
    _check_text(url)
    parameters = url_parameters(url)
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("?")[0].partition("/")
    userinfo, _, places = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    sentinel, cluster = parameters.get("sentinel"), _yes(parameters, "cluster")
    if sentinel and cluster:
        _refuse("contradiction", "a store is on a Cluster or behind Sentinels, not both", "keep cluster= or sentinel=")
    database = _database(path)
    if cluster and database:
        _refuse("contradiction", "a Cluster has no databases but 0", "leave the number out, and tell stores apart by prefix=")
    if "busy_timeout" in parameters:
        busy_timeout = duration(parameters["busy_timeout"], field="busy_timeout")
    hosts = tuple(_host(place, SENTINEL_PORT if sentinel else PORT) for place in (places or "127.0.0.1").split(","))
    if len(hosts) > 1 and not (sentinel or cluster):
        _refuse("contradiction", "the URL names several servers", "say what they are: ?cluster=true, or ?sentinel=NAME of the primary")
    return Target(
        hosts=hosts,
        user=unquote(user) or None,
        password=Secret(unquote(password)) if password else None,
        database=database,
        prefix=check_name(parameters.get("prefix", PREFIX), "prefix"),
        tls=scheme == "rediss",
        sentinel=sentinel,
        cluster=cluster,
        durability=_durability(parameters.get("durability", durability or Durability.LOCAL)),
        busy_timeout=busy_timeout,
        archive=Secret(parameters["archive"], mask_url(parameters["archive"])) if "archive" in parameters else None,
    )


def _check_text(text: str) -> None:
    """Refuse what a password makes of a URL when its special characters are not written as they must; nothing of it is shown."""
    if not text.isprintable() or " " in text:
        _refuse("invalid_value", "there is a space or a control character in the URL", "write a space in a password as %20")
    if "#" in text:
        _refuse_password("there is a # in the URL")
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        _refuse_password("a % in the URL is not followed by two hexadecimal digits")
    front, _, parameters = re.sub(r"^[^:]*://", "", text).partition("?")
    authority, _, path = front.partition("/")
    if "@" in path or "@" in parameters.partition("=")[0]:
        _refuse_password("an @ stands behind the host of the URL")
    if authority.count("@") > 1:
        _refuse_password("there are two @ before the host of the URL")


def _host(place: str, standard: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d{1,5}))?", place)
    port = int(found["port"] or standard) if found else 0
    if found is None or not 1 <= port <= 65_535:
        _refuse("invalid_url", "host and port of the URL cannot be read", "redis://host:6379/0")
    return unquote(found["six"] or found["host"]), port


def _database(path: str) -> int:
    text = path.strip("/") or "0"
    if not text.isdecimal():
        _refuse("invalid_url", "what stands behind the host of the URL is no number of a database", "redis://host:6379/0")
    return int(text)


def _yes(parameters: dict[str, str], name: str) -> bool:
    word = parameters.get(name, "false")
    if word not in ("true", "false"):
        _refuse("invalid_value", f"{name} is true or false", f"?{name}=true")
    return word == "true"


def _durability(word: str) -> Durability:
    if word not in tuple(Durability):
        raise InvalidSettings(f"there is no durability {word[:40]!r}", code="invalid_value", field="durability", hint="local, fsync or replicated")
    return Durability(word)


def _refuse_password(message: str) -> NoReturn:
    _refuse("invalid_value", message, "in a password write / as %2F, # as %23, ? as %3F, @ as %40 and % as %25")


def _refuse(code: str, message: str, hint: str) -> NoReturn:
    raise InvalidSettings(message, code=code, field="url", hint=hint)
