"""A primary, a replica and three Sentinels of our own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.servers import guard
from tests.servers.programs import redis as program
from tests.servers.redis import RedisServer, started
from tests.servers.redis_cluster import RedisCluster

__all__ = ["NAME", "Guarded", "guarded"]

NAME = "main"
SENTINELS = 3
wait_until = RedisCluster.wait_until


class Sentinel(RedisServer):
    """A Sentinel has a file of its own, which it rewrites, and takes nothing else but `--sentinel`; it asks for no password."""

    def __init__(self, folder: Path, program: Path, watched: RedisServer) -> None:
        super().__init__(folder, program, {})
        lines = [
            f"port {self.port}", "bind 127.0.0.1", f"dir {folder}",
            f"sentinel monitor {NAME} 127.0.0.1 {watched.port} 2",
            f"sentinel auth-pass {NAME} {watched.password}",
            f"sentinel down-after-milliseconds {NAME} 1000",
            f"sentinel failover-timeout {NAME} 5000",
        ]  # fmt: skip
        self._file = folder / "sentinel.conf"
        self._file.write_text("\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        return [str(self._program), str(self._file), "--sentinel"]

    def client(self) -> redis.Redis:
        client = redis.Redis(port=self.port, socket_timeout=5.0)
        assert client.info("server")["process_id"] == self.pid, "the Sentinel that answers is not ours"
        return client

    def knows(self) -> bool:
        """The replica, and its fellows."""
        with self.client() as client:
            found = client.sentinel_master(NAME)
        return bool(found["num-slaves"] == 1 and found["num-other-sentinels"] == SENTINELS - 1)

    def primary(self) -> int:
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])


class Guarded:
    """The two servers, and those who watch over them."""

    def __init__(self, servers: list[RedisServer], sentinels: list[Sentinel]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    def url(self, name: str = NAME, more: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis://:{self.servers[0].password}@{hosts}/0?sentinel={name}{more}"

    def primary(self) -> RedisServer:
        return next(server for server in self.servers if server.port == self.sentinels[0].primary())

    def replaced(self, old: RedisServer) -> None:
        """All Sentinels name the other one, and it takes writes."""
        other = next(server for server in self.servers if server is not old)
        wait_until(lambda: all(sentinel.primary() == other.port for sentinel in self.sentinels))
        with other.client() as client:
            wait_until(lambda: bool(client.info("replication")["role"] == "master"))


@contextlib.contextmanager
def guarded(*, folders: str | None = None) -> Iterator[Guarded]:
    found = program(folders)
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(started(folders=folders, repl_diskless_sync_delay=0))
        primary.settings["masterauth"] = primary.password
        with primary.client() as client:
            client.config_set("masterauth", primary.password)
        replica = stack.enter_context(started(folders=folders, replica_of=primary, repl_diskless_sync_delay=0))
        sentinels = []
        for _ in range(SENTINELS):
            folder = Path(tempfile.mkdtemp(prefix="taskmill-redis-"))
            guard.watch(0, folder)
            sentinels.append(Sentinel(folder, found, primary))
            stack.callback(sentinels[-1].close)
            sentinels[-1].start()
        with primary.client() as client:
            wait_until(lambda: bool(client.info("replication")["connected_slaves"] == 1))
        wait_until(lambda: all(sentinel.knows() for sentinel in sentinels))
        yield Guarded([primary, replica], sentinels)
