"""The files of a store: whose they are, what happens when a process has no descriptor left, and which commits wait for the disk."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from taskmill.engine import Durability
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.errors import StoreError
from taskmill.task import NewTask


def new() -> NewTask:
    return NewTask(type="work", queue="default")


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of every file beside the store, by what its name has after the store's."""
    return {str(path.relative_to(folder)).removeprefix("store.db"): path.lstat().st_mode & 0o777 for path in folder.rglob("*")}


async def modes_of_an_open_store(folder: Path) -> dict[str, int]:
    engine = SQLiteEngine(folder / "store.db")
    await engine.open()
    hints = await engine.wakeups()
    try:
        await engine.submit([new()])
        return modes(folder)
    finally:
        await hints.aclose()
        await engine.close()


@pytest.mark.parametrize("mask", [0o022, 0o000, 0o077])
async def test_a_store_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        found = await modes_of_an_open_store(tmp_path)
    assert {"", "-wal", "-shm", "-live", "-run"} <= found.keys()
    assert {name: mode for name, mode in found.items() if mode != (0o700 if name == "-run" else 0o600)} == {}


async def test_a_file_that_was_made_for_a_group_stays_the_groups(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    (tmp_path / "store.db").chmod(0o660)
    with umask(0o077):
        found = await modes_of_an_open_store(tmp_path)
    assert {name: mode for name, mode in found.items() if mode != (0o770 if name == "-run" else 0o660)} == {}


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)


async def test_without_descriptors_steps_go_on(tmp_path: Path) -> None:
    engine = SQLiteEngine(tmp_path / "store.db")
    await engine.open()
    try:
        await engine.submit([new()])
        with no_descriptors():
            [answer] = await engine.submit([new()])
        assert await engine.get([answer.id]) != (None,)
    finally:
        await engine.close()


async def test_without_descriptors_a_transaction_is_refused_as_busy(tmp_path: Path) -> None:
    engine = SQLiteEngine(tmp_path / "store.db")
    await engine.open()
    try:
        async with engine.transaction():
            pass
        with no_descriptors(), pytest.raises(StoreError) as refused:
            async with engine.transaction():
                pass
        assert (refused.value.code, refused.value.status) == ("store_busy", 503)
        assert refused.value.hint
    finally:
        await engine.close()


# Which commits wait for the disk


class Counting(apsw.VFS):
    """The system's files, and how often a WAL was synced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.syncs = 0
        super().__init__(name, "")

    def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return CountedFile(self, name, flags)


class CountedFile(apsw.VFSFile):
    def __init__(self, vfs: Counting, name: object, flags: list[int]) -> None:
        self._vfs = vfs
        self._wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__("", name, flags)  # type: ignore[arg-type]

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.syncs += self._wal
        super().xSync(flags)


@pytest.fixture
def files() -> Iterator[Counting]:
    vfs = Counting("counting")
    yield vfs
    vfs.unregister()


async def syncs(engine: SQLiteEngine, files: Counting, durability: Durability | None, *, inside: bool) -> int:
    before = files.syncs
    if inside:
        async with engine.transaction() as tx:
            [answer] = await engine.submit([new()], durability=durability, tx=tx)
    else:
        [answer] = await engine.submit([new()], durability=durability)
    assert answer.durability is (durability or Durability.LOCAL)
    return files.syncs - before


@pytest.mark.parametrize("inside", [False, True])
async def test_one_submit_waits_for_the_disk_in_a_store_that_does_not(tmp_path: Path, files: Counting, *, inside: bool) -> None:
    engine = SQLiteEngine(tmp_path / "store.db", durability=Durability.LOCAL, vfs="counting")
    await engine.open()
    try:
        await syncs(engine, files, None, inside=inside)  # the first commit of a new WAL syncs its header
        assert await syncs(engine, files, None, inside=inside) == 0
        assert await syncs(engine, files, Durability.FSYNC, inside=inside) > 0
        assert await syncs(engine, files, None, inside=inside) == 0, "and the next does not"
    finally:
        await engine.close()
