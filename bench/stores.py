"""Where the stores of one run are made, by engine: files of SQLite in a directory, databases of a private PostgreSQL or Redis server."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import apsw

from bench import postgres_server, redis_server
from bench.servers import Missing
from bench.temporary import folder

__all__ = ["ENGINES", "REDIS", "SQLITE", "Databases", "Files", "Keyspaces", "Missing", "Stores", "Typical", "file_of", "made"]

SQLITE = "sqlite:///"
REDIS = "redis://"

Typical = Callable[[Sequence[float]], float]
"""The best of all rounds on a file; their median where a server does things at its own times."""


class Stores(Protocol):
    """One engine in one run."""

    engine: str
    release: str
    durable: str
    """What every commit in it has gone through, unless a line says otherwise."""
    typical: Typical
    """What stands for the rounds of one side."""

    def fresh(self) -> AbstractContextManager[str]:
        """The URL of a store with nothing in it, which is gone afterwards."""

    def settle(self, url: str) -> None:
        """After a store was filled at once: what a server would have learnt of it by and by."""

    def size(self, url: str) -> float:
        """In MB."""

    def cpu(self) -> float:
        """Seconds that a server has used so far; nought where there is none."""

    def trace(self, url: str) -> Callable[[], int] | None:
        """Counts the statements or commands that a server is sent, by those who connect from now on; None where there is no server."""


class Files:
    engine = "sqlite"
    durable = "synchronous=FULL"

    def __init__(self, directory: Path) -> None:
        self.typical: Typical = max
        self.release = f"SQLite {apsw.sqlite_lib_version()}"
        self._directory = directory

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        with folder(self._directory) as path:
            yield f"{SQLITE}{path / 'store.db'}"

    def settle(self, url: str) -> None:
        """A file knows nothing that it would have to learn."""

    def size(self, url: str) -> float:
        path = file_of(url)
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6

    def cpu(self) -> float:
        return 0.0

    def trace(self, url: str) -> None:
        return None


class Databases:
    engine = "postgres"
    durable = "synchronous_commit=on, fsync=on"

    def __init__(self, server: postgres_server.Server) -> None:
        self.server = server
        self.typical: Typical = statistics.median
        self.release = f"PostgreSQL {server.execute('SHOW server_version').split()[0]}"

    def fresh(self) -> AbstractContextManager[str]:
        return self.server.database()

    def settle(self, url: str) -> None:
        self.server.execute("VACUUM (ANALYZE)", url)

    def size(self, url: str) -> float:
        return int(self.server.execute("SELECT pg_database_size(current_database())", url)) / 1e6

    def cpu(self) -> float:
        return self.server.cpu()

    def trace(self, url: str) -> Callable[[], int]:
        return self.server.trace(url)


class Keyspaces:
    engine = "redis"
    durable = "appendonly yes, appendfsync everysec"

    def __init__(self, server: redis_server.Server) -> None:
        self.server = server
        self.typical: Typical = statistics.median
        self.release = f"Redis {server.info()['redis_version']}"

    def fresh(self) -> AbstractContextManager[str]:
        return self.server.database()

    def settle(self, url: str) -> None:
        """It knows nothing that it would have to learn."""

    def size(self, url: str) -> float:
        """Of the whole server: it does not say which database uses how much."""
        return float(self.server.info()["used_memory"]) / 1e6

    def cpu(self) -> float:
        return self.server.cpu()

    def trace(self, url: str) -> Callable[[], int]:
        return self.server.trace()


def file_of(url: str) -> Path:
    assert url.startswith(SQLITE), url
    return Path(url.removeprefix(SQLITE))


@contextlib.contextmanager
def _files(directory: Path) -> Iterator[Stores]:
    yield Files(directory)


@contextlib.contextmanager
def _databases(directory: Path) -> Iterator[Stores]:
    with postgres_server.started(directory) as server:
        yield Databases(server)


@contextlib.contextmanager
def _keyspaces(directory: Path) -> Iterator[Stores]:
    with redis_server.started(directory) as server:
        yield Keyspaces(server)


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Stores]]] = {"sqlite": _files, "postgres": _databases, "redis": _keyspaces}


def made(engine: str, directory: Path) -> AbstractContextManager[Stores]:
    """Raises Missing where this engine cannot be had."""
    return ENGINES[engine](directory)
