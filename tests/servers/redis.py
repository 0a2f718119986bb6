"""A Redis server of our own: the program itself is our child, so that we know whom to kill. And one that was there before us, of which tests use prefixes."""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis

from tests.servers import guard
from tests.servers.programs import free_port
from tests.servers.programs import redis as program

__all__ = ["GENEROUS", "URL", "RedisServer", "Shared", "Stop", "empty", "existing", "started"]

URL = "TASKMILL_TEST_REDIS"

Stop = Literal["shutdown", "kill"]
GENEROUS = 60.0
"""Seconds after which a server that has not answered never will."""
STANDARD = {"bind": "127.0.0.1", "save": "", "appendonly": "no", "daemonize": "no", "maxmemory-policy": "noeviction"}


class Shared(Protocol):
    """What tests may ask of a server that is not theirs alone."""

    def url(self, prefix: str = ...) -> str: ...

    def client(self) -> redis.Redis: ...


class Existing:
    """Its own settings and keys stay as they are: every test has a prefix of its own, whose keys are removed."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    def url(self, prefix: str = "tm") -> str:
        parameters = {**dict(parse_qsl(self._parts.query)), "prefix": prefix}
        return urlunsplit(self._parts._replace(query=urlencode(parameters)))

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(urlunsplit(self._parts._replace(query="")))


class RedisServer:
    """One server. It may be stopped, killed and started again; its port and its data stay."""

    def __init__(self, folder: Path, program: Path, settings: Mapping[str, object], primary: RedisServer | None = None, password: str | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.password: str = primary.password if primary else password or secrets.token_hex(16)
        self._program = program
        follows = {"replicaof": f"127.0.0.1 {primary.port}", "masterauth": self.password} if primary else {}
        self.settings: dict[str, object] = {**STANDARD, **settings, **follows, "requirepass": self.password, "dir": folder}
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: list[int] = []

    def url(self, prefix: str = "tm") -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0?prefix={prefix}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    def client(self) -> redis.Redis:
        """To the server that we started, and to no other."""
        client = redis.Redis(port=self.port, password=self.password, socket_timeout=GENEROUS)
        found = client.info("server")["process_id"]
        assert found == self.pid, "the server that answers is not ours"
        return client

    def start(self) -> None:
        """It answers when this returns, and it is ours."""
        assert self._process is None, "it is running"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._watched.append(self.pid)
        guard.watch(self.pid, self.folder)
        deadline = time.monotonic() + GENEROUS
        while True:
            with contextlib.suppress(redis.ConnectionError), self.client():
                return
            assert self._process.poll() is None, f"Redis did not start:\n{self.log()[-4_000:]}"
            assert time.monotonic() < deadline, f"Redis does not answer:\n{self.log()[-4_000:]}"
            time.sleep(0.02)

    def _command(self) -> list[str]:
        return [str(self._program), *(part for name, value in {**self.settings, "port": self.port}.items() for part in (f"--{name}", str(value)))]

    def stop(self, mode: Stop = "shutdown") -> None:
        assert self._process is not None, "it is not running"
        self._process.send_signal(signal.SIGKILL if mode == "kill" else signal.SIGTERM)
        self._process.wait(GENEROUS)
        self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Nothing of it is left."""
        if self._process is not None:
            self.stop("kill")
        guard.remove(self.folder)
        for pid in (0, *self._watched):
            guard.forget(pid, self.folder)


@contextlib.contextmanager
def started(*, folders: str | None = None, replica_of: RedisServer | None = None, **settings: object) -> Iterator[RedisServer]:
    """A running server; a replica has the password of its primary."""
    found = program(folders)
    folder = Path(tempfile.mkdtemp(prefix="taskmill-redis-"))
    guard.watch(0, folder)
    server = RedisServer(folder, found, {name.replace("_", "-"): value for name, value in settings.items()}, replica_of)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def existing(url: str) -> Iterator[Existing]:
    """The server of this URL, if it answers."""
    server = Existing(url)
    with server.client() as client:
        client.ping()
    yield server


def empty(server: Shared, prefix: str) -> None:
    """Nothing is left under this prefix."""
    with server.client() as client:
        while keys := [key for _, key in zip(range(10_000), client.scan_iter(f"{prefix}:*", count=1_000), strict=False)]:
            client.unlink(*keys)
