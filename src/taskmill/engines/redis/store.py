"""One store on a Redis server: its connections, its scripts, its clock, and the settings that submits go by."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from taskmill.clock import Clock, SystemClock
from taskmill.engines.redis.scripts import script
from taskmill.engines.redis.target import Target
from taskmill.engines.settings import Settings
from taskmill.errors import AnswerLost, StoreError

__all__ = ["Store", "translate"]

HOT = ("type", "limit", "queue", "pause", "outbox")
POOL = 10

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Store:
    """Where scripts run. `clock` None: the server's own."""

    def __init__(self, target: Target, clock: Clock | None) -> None:
        self.target = target
        self.prefix = target.shard
        self.given = clock
        self.clock: Clock = clock or SystemClock()
        self.settings = Settings(())
        self.generation = -1
        self.redis: Any = Redis(connection_pool=BlockingConnectionPool(max_connections=POOL, timeout=target.patience, **_of(target)))

    def connection(self) -> Any:
        """One for a reader that blocks; never of the pool."""
        return Redis(**_of(self.target), single_connection_client=True)

    def key(self, name: str) -> str:
        return self.prefix + name

    def now(self) -> str:
        """What a script is told of the time; empty: it asks the server."""
        return "" if self.given is None else str(self.given.now())

    def mono(self) -> int:
        return 0 if self.given is None else self.given.monotonic()

    async def run(self, name: str, arguments: Any, raws: Sequence[bytes] = ()) -> Any:
        """A script's answer."""
        return (await self.run_raw(name, arguments, raws))[0]

    async def run_raw(self, name: str, arguments: Any, raws: Sequence[bytes] = ()) -> tuple[Any, list[bytes]]:
        """A script's answer, and the strings in it that are no text; they are named by their number, from 1."""
        wanted = script(name)
        given = (1, self.prefix, _encode(arguments), self.now(), *raws)
        try:
            answer = await self.ask("EVALSHA", wanted.sha, *given)
        except StoreError as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
            answer = await self.ask("EVAL", wanted.text, *given)
        return (_decode(answer), []) if isinstance(answer, bytes) else (_decode(answer[0]), answer[1:])

    async def ask(self, *command: Any) -> Any:
        try:
            async with asyncio.timeout(self.target.patience):
                return await self.redis.execute_command(*command)
        except (RedisError, OSError, builtins.TimeoutError) as error:
            raise translate(error, self.target) from error

    async def read_settings(self) -> None:
        """The settings in force, and their generation, which is read first: a change in between is noticed by the next step."""
        generation = int(await self.ask("GET", self.key("generation")) or 0)
        rows: list[tuple[str, str, bytes]] = []
        for kind in HOT:
            found = await self.ask("HGETALL", self.key(f"items:{kind}"))
            rows += sorted((kind, name, value) for name, value in in_force(found).items())
        self.settings, self.generation = Settings(rows), generation

    async def close(self) -> None:
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()


def _of(target: Target) -> dict[str, Any]:
    """No timeouts of the driver's own: in Python 3.11 they lose a cancel that comes at the wrong moment. And no repeats: we know what may be repeated."""
    given = target.arguments() | {"retry": Retry(NoBackoff(), 0), "socket_timeout": None, "socket_connect_timeout": None, "protocol": 2}
    return given | ({"connection_class": SSLConnection} if target.tls else {})


class StoredItem(msgspec.Struct, array_like=True, frozen=True):
    value: str
    version: int
    app: str
    app_version: int


_item = msgspec.msgpack.Decoder(StoredItem).decode


def items_of(found: dict[bytes, bytes]) -> list[tuple[str, bool, StoredItem]]:
    """(name, operator, item), what code declares before what an operator put."""
    rows = [(field[:-2].decode(), field.endswith(b"1"), _item(value)) for field, value in found.items()]
    return sorted(rows, key=lambda row: row[:2])


def in_force(found: dict[bytes, bytes]) -> dict[str, bytes]:
    return {name: item.value.encode() for name, _, item in items_of(found)}


def translate(error: BaseException, target: Target) -> StoreError:
    """In the words of this product. What had left this program may have been applied."""
    if isinstance(error, AuthenticationError):
        return StoreError(f"{target} refuses the password", code="wrong_password", hint="put user and password into the URL")
    if isinstance(error, NoPermissionError):
        return StoreError(f"{target} does not let this user do that: {error}", code="no_rights", hint="ACL SETUSER … +@all ~<prefix>:* &<prefix>:*")
    if isinstance(error, ReadOnlyError):
        return StoreError(f"{target} is a replica and takes no writes", code="read_only", hint="name the primary in the URL")
    if isinstance(error, InvalidResponse):
        return StoreError(f"{target} is no Redis server", code="wrong_protocol", hint="look at host and port in the URL")
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return AnswerLost(f"the connection to {target} broke", hint="it may have been applied: ask again")
    if isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "-OOM " in str(error)):
        return StoreError(f"{target} is out of memory", code="store_full", hint="nothing was written: raise maxmemory, or prune what has ended")
    if "DB index is out of range" in str(error):
        return StoreError(f"{target} has no database {target.database}", code="no_database", hint="the first is redis://host:6379/0")
    return StoreError(f"{target} answered: {error}", code="store_error")
