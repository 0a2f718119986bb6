"""Folders and servers on the disk: a commit that takes a while can be killed before its answer comes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def folders() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="taskmill-faults-"))
    yield folder
    with suppress(OSError):  # a test that failed has left something to look at
        folder.rmdir()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, folders: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=folders))
    yield folder
    if not request.node.stash.get(FAILED, False):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server_place() -> None:
    """Servers wait for the disk."""
