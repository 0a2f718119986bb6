"""A server that was there before us: databases with random names are made in it, and dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from tests.servers.databases import Databases, at

__all__ = ["URL", "Existing", "Server", "existing"]

URL = "TASKMILL_TEST_POSTGRES"


class Server(Protocol):
    """What tests may ask of a server that is not theirs alone."""

    databases: Databases

    def url(self, database: str = ...) -> str: ...


class Existing:
    def __init__(self, url: str) -> None:
        self._url = url
        self.databases = Databases(url)

    def url(self, database: str = "") -> str:
        return at(self._url, database) if database else self._url


@contextlib.contextmanager
def existing(url: str) -> Iterator[Existing]:
    server = Existing(url)
    try:
        yield server
    finally:
        server.databases.drop_all()
