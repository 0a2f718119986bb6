"""One connection: what the engine needs of a session, the types it knows, and how a broken one is noticed.

Nothing is ever set for a session after it began, so a connection needs no cleaning between two users and whoever comes next gets it with the
statements that it has prepared. What the engine needs of a session (that a commit is flushed, READ COMMITTED, no JIT) is asked for when it is opened.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import asyncpg

from taskmill.engine import Durability
from taskmill.engines.postgres.errors import FAILURES
from taskmill.engines.postgres.target import Target

__all__ = ["COMMITS", "Connection", "connect", "hang_up"]

COMMITS = {Durability.LOCAL: "off", Durability.FSYNC: "on", Durability.REPLICATED: "on"}
"""`on` waits for the standbys that synchronous_standby_names names, if it names any."""

SESSION = {
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "3600000",
    "jit": "off",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""A program that vanished with its machine holds its locks for 25 s, not for two hours."""

STATEMENTS = 1_000

_ARRAYS = {
    "bool": (1000, 16), "bytea": (1001, 17), "int2": (1005, 21), "int4": (1007, 23), "int8": (1016, 20), "float8": (1022, 701),
    "json": (199, 114), "jsonb": (3807, 3802), "uuid": (2951, 2950),
}  # fmt: skip
"""Arrays by the name of their elements: number of the array's type, and of the element's. They are the same in every server."""

_NOTHING = dict.fromkeys(("range_subtype", "attrtypoids", "attrnames", "basetype", "basetype_name", "range_subtype_name"))
_TYPES = [
    _NOTHING | {"oid": array, "name": f"_{name}", "ns": "pg_catalog", "kind": b"b", "elemtype": element, "elemtype_name": name, "elemdelim": ","}
    for name, (array, element) in _ARRAYS.items()
]


if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection


class Connection(_Base):
    """asyncpg's, which knows the types of this engine, so that it asks no server for them, and how its last plain statement was answered."""

    answer = ""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        self.answer = await super().execute(query, *args, timeout=timeout)
        return self.answer

    async def begin(self) -> None:
        """What is true of every connection of this engine. No question is sent."""
        await self.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str, format="text")
        inner: Any = self
        inner._protocol.get_settings().register_data_types(_TYPES)
        _keep_alive(inner._transport.get_extra_info("socket"))


def _keep_alive(connected: socket.socket | None) -> None:
    """A server that vanished with its machine, or a wire that was cut, is noticed within 25 s, also by those who only listen."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def connect(target: Target, *, pooled: bool = False, plain: bool = False) -> Connection:
    """A new connection. `pooled`: behind a pooler, where a session is nobody's; `plain`: as any other program of this user gets it."""
    settings = {"application_name": target.application_name}
    if not pooled and not plain:
        settings |= SESSION | {"synchronous_commit": COMMITS[target.durability]}
    cache = 0 if pooled or plain else STATEMENTS
    connection = await asyncpg.connect(
        **target.arguments(), server_settings=settings, statement_cache_size=cache, max_cached_statement_lifetime=0, connection_class=Connection
    )
    await connection.begin()
    return connection


async def hang_up(connection: Connection) -> None:
    """Say goodbye; a server that does not answer is left."""
    try:
        await connection.close(timeout=1)
    except FAILURES:
        connection.terminate()
