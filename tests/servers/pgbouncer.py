"""PgBouncer in front of a server, in transaction mode: what one session sets, another may meet."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import psycopg

from tests.servers import guard
from tests.servers.processes import kill_family
from tests.servers.programs import account, free_port
from tests.servers.programs import pgbouncer as program

__all__ = ["PgBouncer", "started"]

GENEROUS = 60.0
ATTEMPTS = 5


class PgBouncer:
    """A running pooler."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes], url: str) -> None:
        self.folder = folder
        self.port = port
        self._process = process
        self._url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def through(self, url: str) -> str:
        """The same database, by way of the pooler."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    def ask(self, command: str) -> list[dict[str, object]]:
        """A command of its console: `SHOW POOLS`, `PAUSE`, `RECONNECT`."""
        with psycopg.connect(f"{self.through(self._url).rpartition('/')[0]}/pgbouncer", autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(command.encode())
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor] if names else []

    def kill(self) -> None:
        kill_family(self.pid)
        self._process.wait()

    def answers(self) -> bool:
        """Whether it has come up; no, if it has ended."""
        deadline = time.monotonic() + GENEROUS
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"PgBouncer does not answer:\n{self.log()}"
            with contextlib.suppress(psycopg.OperationalError):
                shown = {str(row["key"]): row["value"] for row in self.ask("SHOW CONFIG")}
                assert shown["conffile"] == str(self.folder / "pgbouncer.ini"), "the PgBouncer that answers is not ours"
                return True
            time.sleep(0.02)
        return False

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-4_000:]


@contextlib.contextmanager
def started(url: str, *, pool_size: int = 5, folders: str | None = None, **settings: object) -> Iterator[PgBouncer]:
    """A pooler in front of the server of this URL, for all of its databases, with `pool_size` connections to each."""
    path = program(folders)
    folder = Path(tempfile.mkdtemp(prefix="taskmill-pgbouncer-"))
    guard.watch(0, folder)
    pooler = None
    try:
        for _ in range(ATTEMPTS):
            pooler = _launched(path, folder, url, {"pool_mode": "transaction", "default_pool_size": pool_size, "max_client_conn": 1_000, **settings})
            if pooler.answers():
                break
        else:
            raise AssertionError(f"PgBouncer did not start:\n{pooler.log() if pooler else ''}")
        yield pooler
    finally:
        if pooler is not None:
            pooler.kill()
            guard.forget(pooler.pid, folder)
        shutil.rmtree(folder)
        guard.forget(0, folder)


def _launched(path: Path, folder: Path, url: str, settings: dict[str, object]) -> PgBouncer:
    server = urlsplit(url)
    user = unquote(server.username or "postgres")
    port = free_port()
    login = {"auth_type": "md5", "auth_file": folder / "users", "admin_users": user}
    place = {"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "logfile": "", "pidfile": ""}
    lines = ["[databases]", f"* = host={server.hostname} port={server.port or 5432}", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in {**place, **login, **settings}.items()]
    _write(folder / "pgbouncer.ini", "\n".join([*lines, ""]))
    password = unquote(server.password or "").replace('"', '""')
    _write(folder / "users", f'"{user}" "{password}"\n')
    if who := account():
        shutil.chown(folder, who["user"], who["group"])
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [path, folder / "pgbouncer.ini"], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **account()
        )
    guard.watch(process.pid, folder)
    return PgBouncer(folder, port, process, url)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    if who := account():
        shutil.chown(path, who["user"], who["group"])
