"""A folder without the settings of this machine, and the command line over a store in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surfaces.bad_http import Server, serving, upgraded
from tests.surfaces.cli_tools import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in [name for name in os.environ if name.startswith("TASKMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`taskmill api` over a store of its own, without keys; its log has no traceback when it ends."""
    folder = tmp_path_factory.mktemp("server")
    with serving(upgraded(f"sqlite:///{folder}/store.db"), folder) as running:
        yield running
