"""A private PostgreSQL server for one run: its own directory, a free loopback port, a role that needs no password; gone afterwards.

Every commit is on the disk when it is answered, as a server comes out of its box. What is changed lets a long run be measured at all: buffers for
the whole of a store, and checkpoints by the amount of log and not by the minute. PostgreSQL refuses to run as root, so under root it is
started as the user `postgres`. The benchmark stands alone and takes nothing from the tests, whose servers have other settings and longer lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg

from bench.group import cpu_of
from bench.servers import Missing, free_port

__all__ = ["Server", "binaries", "started"]

OLDEST = 14
DEBIAN = Path("/usr/lib/postgresql")
ROLE = "bench"
PATIENCE = 60.0
"""Seconds for a server to answer, and to end by itself."""

SETTINGS = {
    "autovacuum": "on",
    "checkpoint_timeout": "30min",
    "fsync": "on",
    "full_page_writes": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_wal_size": "4GB",
    "shared_buffers": "1GB",
    "synchronous_commit": "on",
    "unix_socket_directories": "",
}


def binaries() -> Path:
    """The folder of `postgres` and `initdb`: that of the PATH, else the newest of Debian's."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(DEBIAN.glob("*/bin"), key=_release_of, reverse=True)
    folder = next((one for one in folders if (one / "initdb").exists() and _release_of(one) >= OLDEST), None)
    if folder is None:
        raise Missing(f"PostgreSQL {OLDEST} or newer is not installed; apt-get install postgresql")
    return folder


def _release_of(folder: Path) -> int:
    """The major number that the program itself says: `postgres (PostgreSQL) 15.18 (Debian …)`."""
    if not (folder / "postgres").exists():
        return 0
    told = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=False).stdout.split()
    number = told[2].partition(".")[0] if len(told) > 2 else ""
    return int(number) if number.isdigit() else 0


class Server:
    """Answers at `url(database)`. Databases are made empty, and dropped whoever is still connected to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._name = f"bench-{secrets.token_hex(8)}"
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1)  # a loop of its own, because the callers stand in one

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{database}"

    def cpu(self) -> float:
        """Seconds so far, of all its processes, also of those that have ended."""
        return cpu_of({self.pid})

    def start(self) -> None:
        programs = binaries()
        data = self.folder / "data"
        self._run(str(programs / "initdb"), "--pgdata", str(data), "--username", ROLE, "--auth", "trust", "--encoding", "UTF8", "--locale", "C")
        self.port = free_port()
        settings = {**SETTINGS, "port": str(self.port), "cluster_name": self._name}
        program = [str(programs / "postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]
        user = _user()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True, user=user, group=user
            )
        self._wait()

    def stop(self) -> None:
        """Connections are ended; a server that does not listen is killed with its children."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        for sign in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            process.send_signal(sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
                return

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new one."""
        name = f"bench_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}"')
        try:
            yield self.url(name)
        finally:
            self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def execute(self, statement: str, url: str = "") -> str:
        """In a connection of its own; answers the first value, in words."""
        return self._thread.submit(asyncio.run, _first_value(url or self.url(), statement)).result()

    def trace(self, url: str) -> Callable[[], int]:
        """Counts the statements that are sent to a database, from now on and by those who connect from now on."""
        name = url.rpartition("/")[2]
        self.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
        began = self._sent()
        return lambda: self._sent() - began

    def _sent(self) -> int:
        """Lines of the log that begin a statement, whichever way it was sent."""
        with (self.folder / "server.log").open(encoding="utf-8", errors="replace") as log:
            return sum("LOG:  execute " in line or "LOG:  statement: " in line for line in log)

    def _wait(self) -> None:
        """Until it answers, and it is this server that does."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                answered = self.execute("SHOW cluster_name")
            except (OSError, asyncpg.PostgresError) as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                    raise Missing(f"the server did not start: {self._words() or error}") from error
                time.sleep(0.05)
                continue
            if answered != self._name:
                raise Missing(f"another server answers at port {self.port}; run it again")
            return

    def _words(self) -> str:
        return " ".join((self.folder / "server.log").read_text(encoding="utf-8", errors="replace").split())[-500:]

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, user=_user(), group=_user())
        if done.returncode:
            raise Missing(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")


@contextlib.contextmanager
def started(parent: Path) -> Iterator[Server]:
    """In a directory of its own below this one, which has to be open to the user that runs it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-postgres-", dir=parent.resolve()))
    server = Server(folder)
    try:
        if (user := _user()) is not None:
            shutil.chown(folder, user)
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    """Whom to run it as, with the group of the same name: under root the user that Debian's package makes, else oneself."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise Missing("PostgreSQL does not run as root, and there is no user postgres; run the benchmark as another user") from None
    return "postgres"


async def _first_value(url: str, statement: str) -> str:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return str(await connection.fetchval(statement))
    finally:
        await connection.close()
