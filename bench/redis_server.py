"""A private Redis server for one run: its own directory, a free loopback port, a password; gone afterwards.

Every system runs on the same settings: an append-only file that reaches the disk once a second, so a crash loses up to a second of what was acknowledged.
What is changed lets a run be measured: no snapshots, and the file is written anew between two stores and not in the middle of one.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from bench.group import cpu_of
from bench.servers import Missing, free_port

__all__ = ["Server", "started"]

PROGRAMS = ("redis-server", "valkey-server")
DATABASES = 16
PATIENCE = 60.0
"""Seconds for a server to answer, to write its file anew, and to end by itself."""

SETTINGS = {
    "appendfsync": "everysec",
    "appendonly": "yes",
    "auto-aof-rewrite-percentage": "0",
    "bind": "127.0.0.1",
    "daemonize": "no",
    "databases": str(DATABASES),
    "maxmemory-policy": "noeviction",
    "save": "",
    "slowlog-max-len": "100000",
}
BLOCKING = ("blpop", "brpop", "blmove", "bzpopmin", "xread", "xreadgroup")


class Server:
    """Answers at `url(database)`. A database is lent to one user at a time, and emptied when it comes back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._password = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._lent: set[int] = set()
        self._client: Any = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def url(self, database: int = 0) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/{database}"

    def cpu(self) -> float:
        """Seconds so far."""
        return cpu_of({self.pid})

    def start(self) -> None:
        program = next((found for found in map(shutil.which, PROGRAMS) if found), None)
        if program is None:
            raise Missing("Redis is not installed; apt-get install redis-server")
        self.port = free_port()
        settings = {**SETTINGS, "port": str(self.port), "requirepass": self._password, "dir": str(self.folder)}
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        self._client = redis.Redis.from_url(self.url())
        self._wait()

    def stop(self) -> None:
        """At once: nothing in it is kept."""
        if self._client is not None:
            self._client.close()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of one with nothing in it."""
        number = next(number for number in range(DATABASES) if number not in self._lent)
        self._lent.add(number)
        try:
            yield self.url(number)
        finally:
            self._emptied(number)
            self._lent.remove(number)

    def info(self) -> dict[str, Any]:
        """All that it says of itself."""
        found: dict[str, Any] = self._client.info("all")
        return found

    def trace(self) -> Callable[[], int]:
        """Counts the commands that it reads from now on, but for blocking reads and our own questions; what scripts do inside is no part of it."""
        asked = 0

        def read() -> int:
            nonlocal asked
            found = self.info()
            asked += 1
            blocking: int = sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in BLOCKING)
            return int(found["total_reads_processed"]) - blocking - asked

        began = read()
        return lambda: read() - began

    def slowest(self) -> Callable[[], float]:
        """Microseconds of the longest command from now on; what is shorter than a millisecond is not looked at."""
        self._client.config_set("slowlog-log-slower-than", 1_000)
        self._client.slowlog_reset()
        return lambda: max((float(entry["duration"]) for entry in self._client.slowlog_get(10_000)), default=0.0)

    def _emptied(self, number: int) -> None:
        """Its keys are gone, and so is what the file says of them."""
        with contextlib.closing(redis.Redis.from_url(self.url(number))) as client:
            client.flushdb()
        self._client.bgrewriteaof()
        end = time.monotonic() + PATIENCE
        while (found := self._client.info("persistence"))["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"]:
            assert time.monotonic() < end, "the server does not come to the end of its file"
            time.sleep(0.01)

    def _wait(self) -> None:
        """Until it answers, and it is this server that does."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                answered = self._client.info("server")["process_id"]
            except (OSError, redis.RedisError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                    raise Missing(f"the server did not start: {self._words() or error}") from error
                time.sleep(0.02)
                continue
            if answered != self.pid:
                raise Missing(f"another server answers at port {self.port}; run it again")
            return

    def _words(self) -> str:
        return " ".join((self.folder / "server.log").read_text(encoding="utf-8", errors="replace").split())[-500:]


@contextlib.contextmanager
def started(parent: Path) -> Iterator[Server]:
    """In a directory of its own below this one."""
    folder = Path(tempfile.mkdtemp(prefix="bench-redis-", dir=parent.resolve()))
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
