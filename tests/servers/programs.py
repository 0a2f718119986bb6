"""Where the servers' programs are, under which account they run, and which port is free."""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["FOLDERS", "OLDEST", "Absent", "account", "free_port", "pgbouncer", "postgres", "promtool", "redis"]

FOLDERS = "TASKMILL_TEST_PROGRAMS"
"""Folders to look in instead of PATH and Debian's own, separated as in PATH."""
OLDEST = 14
DEBIAN = Path("/usr/lib/postgresql")
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Absent(Exception):
    """A program that is not on this machine, and how it gets there."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(f"{name} is not installed; {remedy}")
        self.name = name


def postgres(folders: str | None = None) -> Path:
    """The folder of the newest PostgreSQL that an engine can use."""
    places = {(folder / "postgres").resolve().parent for folder in _folders(folders) if os.access(folder / "postgres", os.X_OK)}
    found = [(version, folder) for folder in places if (version := _version(folder)) >= OLDEST]
    if not found:
        raise Absent("PostgreSQL", "apt-get install postgresql, or set TASKMILL_TEST_POSTGRES")
    return max(found, key=lambda one: one[0])[1]


def pgbouncer(folders: str | None = None) -> Path:
    path = shutil.which("pgbouncer", path=os.pathsep.join(map(str, _folders(folders))))
    if path is None:
        raise Absent("PgBouncer", "apt-get install pgbouncer")
    return Path(path)


def redis(folders: str | None = None) -> Path:
    path = shutil.which("redis-server", path=os.pathsep.join(map(str, _folders(folders))))
    if path is None:
        raise Absent("Redis", "apt-get install redis-server, or set TASKMILL_TEST_REDIS")
    return Path(path)


def promtool(folders: str | None = None) -> Path:
    """Of Prometheus: it checks rules and tests alerts."""
    path = shutil.which("promtool", path=os.pathsep.join(map(str, _folders(folders))))
    if path is None:
        raise Absent("promtool", "apt-get install prometheus")
    return Path(path)


def npm(folders: str | None = None) -> Path:
    """With Node.js beside it."""
    found = [shutil.which(name, path=os.pathsep.join(map(str, _folders(folders)))) for name in ("npm", "node")]
    if found[0] is None or found[1] is None:
        raise Absent("Node.js", "apt-get install nodejs npm, version 20 or newer")
    return Path(found[0])


def _folders(folders: str | None) -> Iterator[Path]:
    if folders is not None:
        yield from map(Path, folders.split(os.pathsep))
        return
    yield from map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))
    yield Path("/usr/sbin")  # not on everybody's PATH
    yield from DEBIAN.glob("*/bin")


def _version(folder: Path) -> int:
    if not all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb", "pg_basebackup")):
        return 0
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\b(\d+)(?:\.|devel|beta|rc)", said)
    return int(match.group(1)) if match else 0


def account() -> dict[str, Any]:
    """What `subprocess` is told so that a server runs: they refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to outgoing connections: a client that knocks at such a port
    while its server is down can be given that very port, meets itself, and the server cannot come back."""
    highest = int(PORT_RANGE.read_text().split()[0]) if PORT_RANGE.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(10_240, max(highest, 12_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
