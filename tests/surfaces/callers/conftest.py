"""Callers: an App with its store, and a Client of a server over the same store. What is promised to one holds for the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmill import App, Client
from taskmill.submitting import Submitter
from tests.surfaces.serving import serving

Caller = Submitter[Any]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["app", "client"])
def caller(request: pytest.FixtureRequest, app: App, store: str, tmp_path: Path) -> Iterator[Caller]:
    """Whoever submits and looks; `app` is the program with the handlers, and has the store open for what a worker does."""
    if request.param == "app":
        yield app
        return
    with serving(store, tmp_path) as server:
        client = Client(server.url)
        yield client
        client.sync.close()
