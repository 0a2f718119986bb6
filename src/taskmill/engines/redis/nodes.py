"""The servers of a store: one, the primary that Sentinels name, or those of a Cluster by slot. Who has moved is found again; nothing is repeated here.

Redis-py has clients for both. This is not one of them, because WAIT must follow its write on the same connection, because only the caller knows what may be
repeated, and because a shard on its way to another server must not be touched before it has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from taskmill.engines.redis.target import Target
from taskmill.engines.redis.wire import Wire, connect
from taskmill.errors import InvalidSettings, StoreError

__all__ = ["Address", "Client", "Nodes"]

POOL = 10
"""Connections to one server."""
LOOK = 1.0
"""Seconds of waiting for an answer after which somebody else is asked whether the server is still the one."""

PLAIN: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": None, "socket_connect_timeout": None, "protocol": 2}
"""No timeouts of the driver's own: in Python 3.11 they lose a cancel that comes at the wrong moment. And no repeats: we know what may be repeated."""

Address = tuple[str, int]
Client = Any
"""redis-py's, whose methods have no types that hold."""


class Nodes:
    """Which server has a slot, and its connections."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.moves = target.cluster or target.sentinel is not None
        """Whether another server may take over."""
        self._map: dict[int, Address] | Address | None = None if self.moves else target.hosts[0]
        self._clients: dict[Address, Client] = {}
        self._wires: dict[Address, Wire] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._looking = asyncio.Lock()
        self._waiting: dict[asyncio.Timeout, tuple[float, int, Address]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def find(self, slot: int) -> Client:
        """The client of the server that has it, as far as we know."""
        return self._client(await self._address(slot))

    async def wire(self, slot: int) -> Wire:
        """The connection that everybody shares, to the same server."""
        address = await self._address(slot)
        wire = self._wires.get(address)
        if wire is None or wire.cut:
            async with self._connecting.setdefault(address, asyncio.Lock()):
                wire = self._wires.get(address)
                if wire is None or wire.cut:
                    wire = self._wires[address] = await connect(*address, self._target)
        return wire

    async def _address(self, slot: int) -> Address:
        address = self._at(slot)
        if address is None:
            async with self._looking:
                address = self._at(slot)
                if address is None:
                    await self._look()
                    address = self._at(slot)
        if address is None:
            raise StoreError(f"no server of {self._target} has slot {slot}", code="cluster_down", hint="wait for its failover, or mend the Cluster")
        return address

    def _at(self, slot: int) -> Address | None:
        found = self._map
        return found.get(slot) if isinstance(found, dict) else found

    def moved(self, slot: int, address: Address) -> None:
        if isinstance(self._map, dict):
            self._map[slot] = address

    def drop(self, address: Address | None) -> None:
        """Nobody waits for this server any more."""
        wire = None if address is None else self._wires.pop(address, None)
        if wire is not None:
            wire.close()

    def silent(self, slot: int) -> None:
        """It did not answer in time: who comes next connects anew."""
        self.drop(self._at(slot))
        self.lost()

    def lost(self) -> None:
        """Whoever comes next looks anew."""
        if self.moves:
            self._map = None

    async def all(self) -> list[Client]:
        """Every server that takes writes."""
        await self.find(0)
        found = self._map
        return [self._client(address) for address in (sorted(set(found.values())) if isinstance(found, dict) else [found] if found else [])]

    def connection(self, client: Client) -> Client:
        """One more to the same server, for a reader that blocks; never of the pool."""
        given = client.connection_pool.connection_kwargs
        return Redis(**_of(self._target), ssl=self._target.tls, host=given["host"], port=given["port"], single_connection_client=True)

    def waits(self, limit: asyncio.Timeout, slot: int) -> None:
        """A command has left; it waits no longer than `limit`, nor than its server is the one."""
        address = self._at(slot)
        if address is not None:
            self._waiting[limit] = (time.monotonic(), slot, address)
        if self._watch is None:
            self._watch = asyncio.create_task(self._watched())

    def waited(self, limit: asyncio.Timeout) -> None:
        self._waiting.pop(limit, None)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        for wire in self._wires.values():
            wire.close()
        with contextlib.suppress(RedisError, OSError):  # a server that is away need not be told
            async with asyncio.timeout(LOOK):
                for client in self._clients.values():
                    await client.aclose()
                    await client.connection_pool.disconnect()

    def _client(self, address: Address) -> Client:
        client = self._clients.get(address)
        if client is None:
            host, port = address
            kind = SSLConnection if self._target.tls else Connection
            pool = BlockingConnectionPool(connection_class=kind, max_connections=POOL, timeout=self._target.patience, host=host, port=port, **_of(self._target))
            client = self._clients[address] = Redis(connection_pool=pool)
        return client

    # Looking for them

    async def _look(self) -> None:
        """Ask one after the other, those of the URL first, until one knows."""
        others = [] if self._target.sentinel else [address for address in self._clients if address not in self._target.hosts]
        wrong: Exception | None = None
        for host, port in (*self._target.hosts, *others):
            try:
                async with asyncio.timeout(2 * LOOK):
                    found = await (self._primary(host, port) if self._target.sentinel else self._slots(host, port))
            except ResponseError as error:
                wrong = error
            except (RedisError, OSError) as error:
                wrong = wrong or error
            else:
                if found:
                    self._map = found
                    return
        raise self._unknown(wrong)

    def _unknown(self, wrong: Exception | None) -> Exception:
        if isinstance(wrong, ResponseError) and "cluster support disabled" in str(wrong):
            return InvalidSettings(f"{self._target} is no Cluster", code="not_a_cluster", field="url", hint="leave cluster=true out of the URL")
        if self._target.sentinel and wrong is None:
            return InvalidSettings(
                f"no Sentinel of {self._target} knows a primary {self._target.sentinel!r}",
                code="unknown_primary",
                field="url",
                hint="look at sentinel= and the hosts",
            )
        return wrong or StoreError(f"no server of {self._target} answers", code="unreachable", hint="look at the hosts in the URL")

    async def _primary(self, host: str, port: int) -> Address | None:
        checked: dict[str, Any] = {"ssl_check_hostname": True} if self._target.tls else {}
        sentinel: Client = Redis(host=host, port=port, ssl=self._target.tls, **checked, **PLAIN)
        async with sentinel:
            found = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._target.sentinel)
        return (found[0].decode(), int(found[1])) if found else None

    async def _slots(self, host: str, port: int) -> dict[int, Address]:
        """A server that says it has no address of its own is where we asked it."""
        client = self._client((host, port))
        found: dict[int, Address] = {}
        for first, last, primary, *_ in await client.execute_command("CLUSTER", "SLOTS"):
            address = (primary[0].decode() if primary[0] else host, int(primary[1]))
            found |= dict.fromkeys(range(int(first), int(last) + 1), address)
        return found

    async def _watched(self) -> None:
        """Commands that wait for a server which is not the one any more wait in vain."""
        while True:
            await asyncio.sleep(LOOK)
            late = [(limit, slot, was) for limit, (since, slot, was) in self._waiting.items() if time.monotonic() - since > LOOK]
            if not late:
                continue
            with contextlib.suppress(RedisError, OSError, StoreError, InvalidSettings):
                async with self._looking:
                    await self._look()
            for limit, slot, was in late:
                if limit in self._waiting and self._at(slot) not in (None, was):
                    self.drop(was)
                    limit.reschedule(asyncio.get_running_loop().time())


def _of(target: Target) -> dict[str, Any]:
    return target.arguments() | PLAIN
