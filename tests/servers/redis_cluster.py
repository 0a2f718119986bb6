"""A Redis Cluster of our own: primaries that share the slots out, and replicas if wanted."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.servers import guard
from tests.servers.programs import free_port
from tests.servers.programs import redis as program
from tests.servers.redis import GENEROUS, RedisServer

__all__ = ["RedisCluster", "cluster"]

SLOTS = 16_384


class RedisCluster:
    """Its servers: first the primaries it was made with, then a replica of each."""

    def __init__(self, servers: list[RedisServer], primaries: int) -> None:
        self.servers = servers
        self.primaries = servers[:primaries]
        self.replicas = servers[primaries:]
        self.password = servers[0].password

    def url(self, prefix: str = "tm", more: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis://:{self.password}@{hosts}/?cluster=true&prefix={prefix}{more}"

    def form(self) -> None:
        """The servers know each other, every slot has an owner, and every replica its primary."""
        first = self.servers[0]
        for server in self.servers[1:]:
            with first.client() as client:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, server.settings["cluster-port"])
        share = SLOTS // len(self.primaries)
        for number, server in enumerate(self.primaries):
            last = SLOTS - 1 if server is self.primaries[-1] else (number + 1) * share - 1
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
        self.wait_until(lambda: all(self._known(server) == len(self.servers) for server in self.servers))
        for number, server in enumerate(self.replicas):
            with server.client() as client:
                client.execute_command("CLUSTER", "REPLICATE", self.id_of(self.primaries[number % len(self.primaries)]))
        self.wait_until(lambda: all(self._stands(server) for server in self.servers))

    def _known(self, server: RedisServer) -> int:
        with server.client() as client:
            return int(client.execute_command("CLUSTER INFO")["cluster_known_nodes"])

    def _stands(self, server: RedisServer) -> bool:
        with server.client() as client:
            info = client.info("replication")
            linked = info["role"] == "master" or info["master_link_status"] == "up"
            return bool(linked and client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")

    def id_of(self, server: RedisServer) -> str:
        with server.client() as client:
            return str(client.execute_command("CLUSTER", "MYID").decode())

    @staticmethod
    def wait_until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GENEROUS
        while not holds():
            assert time.monotonic() < deadline, "the Cluster did not come about"
            time.sleep(0.02)

    def owner(self, slot: int) -> RedisServer:
        """The server that has it, as a live one sees it."""
        for server in self.servers:
            with contextlib.suppress(Exception), server.client() as client:
                for first, last, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(each for each in self.servers if each.port == primary[1])
        raise AssertionError(f"nobody has slot {slot}")

    def move(self, slot: int, target: RedisServer, *, keys: int = 10) -> None:
        """The slot goes to another server, some keys at a time, as redis-cli moves it."""
        source = self.owner(slot)
        if source is target:
            return
        with source.client() as here, target.client() as there:
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
            while some := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, keys):
                here.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "AUTH", self.password, "KEYS", *some)
            for client in (there, here):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))
        self.wait_until(lambda: all(self._sees(server, slot, target) for server in self.primaries))

    def _sees(self, server: RedisServer, slot: int, owner: RedisServer) -> bool:
        with server.client() as client:
            slots = client.execute_command("CLUSTER", "SLOTS")
        return any(first <= slot <= last and primary[1] == owner.port for first, last, primary, *_ in slots)

    def flush(self) -> None:
        for server in self.servers:
            with server.client() as client:
                if client.info("replication")["role"] == "master":
                    client.flushall()

    def close(self) -> None:
        for server in self.servers:
            server.close()


@contextlib.contextmanager
def cluster(*, primaries: int = 3, replicas: int = 0, folders: str | None = None, **settings: object) -> Iterator[RedisCluster]:
    """A running Cluster; `replicas` in all."""
    found = program(folders)
    password = secrets.token_hex(16)
    servers = []
    for _ in range(primaries + replicas):
        folder = Path(tempfile.mkdtemp(prefix="taskmill-redis-"))
        guard.watch(0, folder)
        given = {
            "cluster-enabled": "yes", "cluster-port": free_port(), "cluster-node-timeout": 1_000, "masterauth": password,
            "cluster-require-full-coverage": "no", "repl-diskless-sync-delay": 0,
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }  # fmt: skip
        servers.append(RedisServer(folder, found, given, password=password))
    made = RedisCluster(servers, primaries)
    try:
        for server in servers:
            server.start()
        made.form()
        yield made
    finally:
        made.close()
