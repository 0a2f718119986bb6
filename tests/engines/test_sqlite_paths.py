"""Database paths that no store can be opened on: each is refused with its code, its field and a remedy, and left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Durability, Engine
from taskmill.engines import create, schema
from taskmill.engines.sqlite.connection import NETWORK, check_path, file_system
from taskmill.errors import InvalidInput, TaskmillError, WrongStore


def engine_at(path: Path) -> Engine:
    return create(f"sqlite:///{path}", clock=ManualClock())


async def refusal(path: Path) -> WrongStore:
    """Why the engine does not open there."""
    with pytest.raises(WrongStore) as refused:
        await engine_at(path).open()
    assert refused.value.hint
    return refused.value


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


async def test_a_directory(tmp_path: Path) -> None:
    error = await refusal(tmp_path)
    assert (error.code, error.field) == ("path_is_directory", "url")
    assert str(tmp_path / "taskmill.db") in str(error.hint)
    assert content(tmp_path) == {}


async def test_a_missing_directory(tmp_path: Path) -> None:
    error = await refusal(tmp_path / "absent" / "store.db")
    assert (error.code, error.field) == ("no_directory", "url")
    assert content(tmp_path) == {}


@pytest.mark.parametrize("bytes_", [b"x", b"hello\n", b"%PDF-1.7\n" * 1_000], ids=["one", "short", "long"])
async def test_not_a_database(tmp_path: Path, bytes_: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(bytes_)
    error = await refusal(path)
    assert (error.code, error.field) == ("not_a_database", "url")
    assert content(tmp_path) == {"store.db": bytes_}


async def test_neither_a_file_nor_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    os.mkfifo(path)
    with pytest.raises(WrongStore) as refused:
        await engine_at(path).open()
    assert (refused.value.code, refused.value.field) == ("not_a_file", "url")


async def test_a_newer_schema(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    engine = engine_at(path)
    await engine.open()
    await engine.close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("INSERT INTO taskmill_migration VALUES (9999, 'of_tomorrow', 0)")
    before = path.read_bytes()
    error = await refusal(path)
    assert error.code == "newer_schema"
    assert "9999" in error.message
    assert path.read_bytes() == before


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    engine = engine_at(path)
    await engine.open()
    assert await engine.counts() == ()
    await engine.close()


async def test_a_database_of_the_user_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE task (number INTEGER); INSERT INTO task VALUES (1)")
    engine = engine_at(path)
    await engine.open()
    async with engine.transaction() as tx:
        assert tx.execute("SELECT number FROM task").fetchall() == [(1,)]
    await engine.close()


async def test_a_closed_store_is_one_file_and_its_disposables(tmp_path: Path) -> None:
    """Who copies the file of a store that nobody has open copies all of it."""
    path = tmp_path / "store.db"
    engine = engine_at(path)
    await engine.open()
    await engine.put("limit", "mail", b'{"cap": 1}')
    await engine.close()
    assert {name for name in content(tmp_path) if not name.startswith(("store.db-live", "store.db-run"))} == {"store.db"}


async def test_a_store_has_one_set_of_files_by_whichever_name_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "store.db")
    engine = engine_at(tmp_path / "link.db")
    await engine.open()
    other = engine_at(tmp_path / "real" / "store.db")
    await other.open()
    assert {name for name in content(tmp_path) if "/" not in name} == {"link.db", "real"}
    for each in (engine, other):
        await each.close()


@pytest.mark.parametrize("parameter", ["durability=replicated", "durability=none", "busy_timeout=soon", "busy_timeout=-1", "durabilty=local"])
def test_a_url_that_asks_for_what_is_not_there(tmp_path: Path, parameter: str) -> None:
    for make in (create, schema):
        with pytest.raises(InvalidInput) as refused:
            make(f"sqlite:///{tmp_path / 'store.db'}?{parameter}")
        assert refused.value.field in {"url", parameter.partition("=")[0]}
        assert refused.value.hint
    with pytest.raises(InvalidInput):
        create("sqlite:///store.db", durability=Durability.REPLICATED)
    assert content(tmp_path) == {}


async def test_a_damaged_schema(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    schema(f"sqlite:///{path}").upgrade()
    broken = bytearray(path.read_bytes())
    broken[100:4096] = b"\xa5" * 3996
    path.write_bytes(broken)
    error = await refusal(path)
    assert error.code == "damaged_store"
    assert path.read_bytes() == broken


# Without the right to write: root may do everything, so the child gives its rights away

UNPRIVILEGED = """
import asyncio, os, sys
from taskmill.engines import create
from taskmill.errors import WrongStore
import taskmill.engines.sqlite.engine

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

try:
    asyncio.run(create(sys.argv[1]).open())
except WrongStore as error:
    print(error.code, error.field, bool(error.hint))
"""


@pytest.fixture
def shown_folder() -> Iterator[Path]:
    """A folder that everybody may enter (those of pytest are private)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def open_unprivileged(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, f"sqlite:///{path}"], cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o755, 0o444), (0o555, 0o666), (0o555, None)], ids=["file", "folder", "folder_for_a_new_file"])
def test_read_only(shown_folder: Path, folder_mode: int, file_mode: int | None) -> None:
    path = shown_folder / "store.db"
    if file_mode is not None:
        path.touch()
        path.chmod(file_mode)
    shown_folder.chmod(folder_mode)
    before = content(shown_folder)
    assert open_unprivileged(path) == "read_only url True\n"
    assert content(shown_folder) == before


# Network mounts, by tables as the system shows them

LOCAL = "sysfs /sys sysfs rw 0 0\n/dev/sda1 / ext4 rw,relatime 0 0\n"


def mounts(folder: Path, kind: str) -> str:
    escaped = str(folder).replace("\\", "\\134").replace(" ", "\\040")
    return f"{LOCAL}server:/export {escaped} {kind} rw,vers=4.2 0 0\n"


@pytest.mark.parametrize("kind", sorted(NETWORK))
def test_a_network_mount(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "on the net" / "deep"
    folder.mkdir(parents=True)
    with pytest.raises(WrongStore) as refused:
        check_path(folder / "store.db", mounts(folder.parent, kind))
    assert (refused.value.code, refused.value.field) == ("network_mount", "url")
    assert kind in refused.value.message
    assert "postgresql://" in str(refused.value.hint)
    assert list(folder.iterdir()) == []


def test_a_network_mount_elsewhere_is_no_matter(tmp_path: Path) -> None:
    here, there = tmp_path / "data", tmp_path / "data-of-others"
    here.mkdir()
    there.mkdir()
    check_path(here / "store.db", mounts(there, "nfs4"))


def test_a_local_mount_inside_a_network_mount(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    table = mounts(tmp_path, "nfs4") + f"/dev/sdb1 {tmp_path / 'local'} xfs rw 0 0\n"
    check_path(tmp_path / "local" / "store.db", table)


def test_of_two_mounts_on_one_folder_the_last_counts(tmp_path: Path) -> None:
    assert file_system(tmp_path, mounts(tmp_path, "ext4") + mounts(tmp_path, "nfs")) == "nfs"


@pytest.mark.parametrize("table", ["", "\n", "nonsense\n", "one two\n"])
def test_a_table_that_says_nothing(tmp_path: Path, table: str) -> None:
    assert file_system(tmp_path, table) == ""
    check_path(tmp_path / "store.db", table)


def test_this_machine_s_own_table_is_read(tmp_path: Path) -> None:
    try:
        check_path(tmp_path / "store.db")
    except TaskmillError as error:
        assert error.code == "network_mount"
