"""A folder without the settings of this machine, and the command line over a store in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.surfaces.cli_tools import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in [name for name in os.environ if name.startswith("TASKMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path)
