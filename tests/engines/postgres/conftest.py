"""Databases without a store in them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.servers.existing import Server


@pytest.fixture
def empty_url(postgres: Server) -> Iterator[str]:
    """A database in which there is nothing."""
    url = postgres.databases.empty()
    try:
        yield url
    finally:
        postgres.databases.drop(urlsplit(url).path.removeprefix("/"))
