"""A PostgreSQL server of our own: the program itself is our child, so that we know whom to kill."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psycopg

from tests.servers import guard
from tests.servers.databases import Databases, Ready
from tests.servers.processes import children, kill_family
from tests.servers.programs import account, free_port
from tests.servers.programs import postgres as programs
from tests.servers.temporary import memory

__all__ = ["Postgres", "Stop", "started"]

Stop = Literal["fast", "immediate", "kill"]
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
GENEROUS = 120.0
"""Seconds after which a server that has not answered never will."""
STANDARD = {
    "listen_addresses": "127.0.0.1",
    "dynamic_shared_memory_type": "mmap",  # files in its own folder: nothing stays behind when it is killed
    "max_connections": 200,
    "wal_level": "replica",
    "log_checkpoints": "off",
}
UNSAFE = {"fsync": "off", "full_page_writes": "off"}


class Postgres:
    """One server. It may be stopped, killed and started again; its port and its data stay."""

    def __init__(self, folder: Path, password: str, settings: Mapping[str, object], bin_folder: Path, ready: Ready | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.password = password
        self.name = f"taskmill-{secrets.token_hex(8)}"
        self._bin = bin_folder
        self._settings: dict[str, object] = {**STANDARD, **settings, "cluster_name": self.name, "unix_socket_directories": str(folder)}
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: list[int] = []
        self._ready = ready
        self.databases = Databases(self.url(), ready=ready)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    def processes(self) -> list[int]:
        """The server and all that it started."""
        return [self.pid, *children(self.pid)]

    def query(self, statement: str, *arguments: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """What a statement answers, on a connection of its own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), arguments or None)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """It answers when this returns."""
        assert self._process is None, "it is running"
        self._write()
        while not self._launched():
            assert not self._watched, f"its port {self.port} has been taken by somebody else"
            self.port = free_port()
            self.databases = Databases(self.url(), ready=self._ready)
            self._write()
        self._watched.append(self.pid)
        (name, data), *_ = self.query("SELECT current_setting('cluster_name'), current_setting('data_directory')")
        assert (name, data) == (self.name, str(self.data)), "the server that answers is not ours"

    def stop(self, mode: Stop = "fast") -> None:
        """`kill`: −9 to the server and everything that it started, at one moment. `immediate`: as at a crash, by the server itself."""
        self.databases.forget()
        if mode == "kill":
            kill_family(self.pid)
        else:
            os.kill(self.pid, SIGNALS[mode])
        assert self._process is not None
        self._process.wait(GENEROUS)
        self._process = None

    def restart(self, mode: Stop = "fast") -> None:
        self.stop(mode)
        self.start()

    def configure(self, **settings: object) -> None:
        """Settings in force from now on; those that a running server does not take, from its next start on."""
        self._settings.update(settings)
        self._write()
        if self._process is not None:
            os.kill(self.pid, signal.SIGHUP)

    def authenticate(self, *lines: str) -> None:
        """These lines go before those of pg_hba.conf: `host all bob 127.0.0.1/32 reject`."""
        path = self.data / "pg_hba.conf"
        path.write_text("\n".join([*lines, path.read_text(encoding="utf-8")]), encoding="utf-8")
        os.kill(self.pid, signal.SIGHUP)

    @contextlib.contextmanager
    def standby(self, *, synchronous: bool, **settings: object) -> Iterator[Postgres]:
        """A second server that follows this one. `synchronous`: this one's commits wait from now on until they are safe there."""
        folder = _new_folder(self.folder.parent)
        standby = Postgres(folder, self.password, {**self._settings, "synchronous_standby_names": "", **settings}, self._bin)
        slot = f"standby_{secrets.token_hex(4)}"
        address = ["--host", str(self.folder), "--port", str(self.port), "--username", "postgres", "--no-password"]
        copying: list[str | Path] = [self._bin / "pg_basebackup", *address, "--pgdata", standby.data, "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        try:
            _done([*copying, "--create-slot", "--slot", slot])
            follows = f"host={self.folder} port={self.port} user=postgres application_name={slot}"
            standby.configure(primary_conninfo=follows, primary_slot_name=slot)
            (standby.data / "standby.signal").touch()
            standby.start()
            if synchronous:
                self.configure(synchronous_standby_names=slot)
            state = "sync_state = 'sync'" if synchronous else "state = 'streaming'"
            self.until(f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{slot}' AND {state}")
            yield standby
        finally:
            standby.close()

    def promote(self) -> None:
        """From now on this standby takes writes."""
        assert self.query("SELECT pg_promote(true, 60)") == [(True,)], "it could not be promoted"

    def close(self) -> None:
        """Nothing of it is left."""
        self.databases.forget()
        if self._process is not None:
            self.stop("kill")
        guard.remove(self.folder)
        for pid in (0, *self._watched):
            guard.forget(pid, self.folder)

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def _write(self) -> None:
        """Our settings lie in a file of their own, the last to be read but for ALTER SYSTEM."""
        self._settings["port"] = self.port
        lines = [f"{name} = {_quoted(value)}" for name, value in self._settings.items()]
        (self.data / "ours.conf").write_text("\n".join([*lines, ""]), encoding="utf-8")

    def _launched(self) -> bool:
        """Whether it came up; no, if somebody else was quicker to its port."""
        seen = len(self.log()) if (self.folder / "log").exists() else 0
        with (self.folder / "log").open("ab") as log:
            # A session of its own: Ctrl-C is for the tests.
            process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data], cwd=self.folder, env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **account(),
            )  # fmt: skip
        guard.watch(process.pid, self.folder)
        self._process = process
        try:
            return self._answers(process, seen)
        except BaseException:
            if self._process is not None:
                self.stop("kill")
            raise

    def _answers(self, process: subprocess.Popen[bytes], seen: int) -> bool:
        deadline = time.monotonic() + GENEROUS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self._process = None
                guard.forget(process.pid, self.folder)
                said = self.log()[seen:]
                if "could not bind" in said:
                    return False
                raise AssertionError(f"PostgreSQL did not start:\n{said[-4_000:]}")
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url(), connect_timeout=5).close()
                return True
            time.sleep(0.02)
        raise AssertionError(f"PostgreSQL does not answer:\n{self.log()[-4_000:]}")

    def until(self, statement: str) -> None:
        """Wait until the statement finds something."""
        deadline = time.monotonic() + GENEROUS
        while not self.query(statement):
            assert time.monotonic() < deadline, f"it never came to this: {statement}"
            time.sleep(0.02)


@contextlib.contextmanager
def started(*, fsync: bool = True, place: Path | None = None, folders: str | None = None, **settings: object) -> Iterator[Postgres]:
    """A running server. Without `fsync` it is quicker and can be killed, but a power cut would ruin it. Its folder is in `place`, else on the disk."""
    bin_folder = programs(folders)
    seed = _seed(bin_folder, os.getpid())
    folder = _new_folder(place)
    server = Postgres(folder, seed.password, settings if fsync else {**UNSAFE, **settings}, bin_folder, seed.ready)
    try:
        _done(["cp", "-a", seed.data, server.data])
        server.start()
        yield server
    finally:
        server.close()


class Seed(NamedTuple):
    data: Path
    password: str
    ready: Ready


@functools.cache
def _seed(bin_folder: Path, _process: int) -> Seed:
    """The data of a server that has stopped, to be copied: initdb and migrations take much longer than that. It goes when this process does."""
    folder = _new_folder(memory())
    password = secrets.token_hex(16)
    words = folder / "password"
    words.write_text(password, encoding="utf-8")
    _give(words)
    # Only the account of the server reaches the socket, so it needs no password there; md5 costs next to nothing for each connection.
    trust = ["--auth-local=trust", "--auth-host=md5", "--username=postgres", f"--pwfile={words}"]
    _done([bin_folder / "initdb", "--pgdata", folder / "data", "--no-sync", "--no-instructions", "--wal-segsize=1", "--encoding=UTF8", "--locale=C", *trust])
    with (folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as conf:
        conf.write("\ninclude 'ours.conf'\n")
    server = Postgres(folder, password, {**UNSAFE, "min_wal_size": "2MB"}, bin_folder)  # there is the less to copy
    server.start()
    ready = server.databases.ready()
    server.stop()
    return Seed(server.data, password, ready)


def _new_folder(place: Path | None) -> Path:
    """A folder that the server's account owns, watched from its first moment."""
    folder = Path(tempfile.mkdtemp(prefix="taskmill-postgres-", dir=place))
    guard.watch(0, folder)
    _give(folder)
    return folder


def _give(path: Path) -> None:
    if who := account():
        shutil.chown(path, who["user"], who["group"])


def _quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def _environment() -> dict[str, str]:
    """PostgreSQL's programs read settings from PG…; those of this machine are not meant."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, "LC_ALL": "C"}


def _done(command: list[str | Path]) -> None:
    result = subprocess.run(command, cwd="/", env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **account())
    assert result.returncode == 0, f"{Path(command[0]).name} failed: {result.stderr[-4_000:]}"
