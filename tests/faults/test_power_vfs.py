"""The power-loss disk itself: it keeps what SQLite was promised, and it does lose what was not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.faults.power import EVERYTHING, NOTHING, SECTOR, PowerVFS, Written

Commits = list[tuple[int, int]]
"""(number of the transaction, points when its COMMIT had returned)"""


@pytest.fixture
def vfs() -> Iterator[PowerVFS]:
    with PowerVFS("power") as vfs:
        yield vfs


def connect(vfs: PowerVFS, path: Path, synchronous: str) -> apsw.Connection:
    connection = apsw.Connection(str(path), vfs=vfs.name)
    for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "wal_autocheckpoint=16"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, twice INTEGER, body TEXT) STRICT")
    return connection


def write(vfs: PowerVFS, connection: apsw.Connection, numbers: range) -> Commits:
    """Small and large transactions, rewrites and checkpoints of every kind."""
    commits = []
    for number in numbers:
        with connection:
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", (number, 2 * number, "x" * (number * 997 % 9_000)))
            connection.execute("UPDATE t SET body = 'y' || n WHERE n = ?", (number - 3,))
        commits.append((number, vfs.points()))
        if number % 10 == 7:
            connection.execute(f"PRAGMA wal_checkpoint({('PASSIVE', 'RESTART', 'TRUNCATE')[number // 10 % 3]})").fetchall()
    return commits


def lost(vfs: PowerVFS, commits: Commits, point: int, seed: int, into: Path) -> list[int]:
    """Transactions that had returned before the cut and are not there after it."""
    vfs.cut(point, seed, into)
    due = {number for number, points in commits if points <= point}
    if not (into / "store.db").exists():
        return sorted(due)
    connection = apsw.Connection(str(into / "store.db"))
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"point {point} seed {seed}"
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 't'").fetchall():
            return sorted(due)
        there = dict(connection.execute("SELECT n, twice FROM t"))
    finally:
        connection.close()
    assert all(twice == 2 * number for number, twice in there.items())
    return sorted(due - there.keys())


def test_full_keeps_every_commit(vfs: PowerVFS, tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    connection = connect(vfs, tmp_path / "live" / "store.db", "FULL")
    commits = write(vfs, connection, range(1, 31))
    connection.close()
    connection = connect(vfs, tmp_path / "live" / "store.db", "FULL")
    commits += write(vfs, connection, range(31, 41))
    connection.close()
    cuts = {(point, point % 7) for point in range(0, vfs.points() + 1, 3)} | {(point, NOTHING) for _, point in commits}
    assert len({point for point, _ in cuts}) >= 200
    for point, seed in sorted(cuts):
        assert lost(vfs, commits, point, seed, tmp_path / f"cut{point}-{seed}") == [], f"point {point} seed {seed}"


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_a_weaker_setting_is_caught(vfs: PowerVFS, tmp_path: Path, synchronous: str) -> None:
    connection = connect(vfs, tmp_path / "store.db", synchronous)
    commits = write(vfs, connection, range(1, 13))
    connection.close()
    assert any(lost(vfs, commits, point, NOTHING, tmp_path / f"cut{point}") for _, point in commits)


def test_sync_off_can_corrupt(vfs: PowerVFS, tmp_path: Path) -> None:
    connection = connect(vfs, tmp_path / "store.db", "OFF")
    commits = write(vfs, connection, range(1, 40))
    connection.close()

    def broken(point: int, seed: int) -> bool:
        try:
            return bool(lost(vfs, commits, point, seed, tmp_path / f"cut{point}-{seed}"))
        except (AssertionError, apsw.Error):
            return True

    assert any(broken(point, seed) for point in range(vfs.points() - 40, vfs.points()) for seed in range(2, 5))


def test_two_connections_a_second_file_and_threads(vfs: PowerVFS, tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    writer = connect(vfs, tmp_path / "live" / "store.db", "FULL")
    reader = apsw.Connection(str(tmp_path / "live" / "store.db"), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs.name)
    beats = connect(vfs, tmp_path / "live" / "store.db-live", "OFF")
    commits: Commits = []
    thread = threading.Thread(target=lambda: commits.extend(write(vfs, writer, range(1, 31))))
    thread.start()
    write(vfs, beats, range(1, 31))
    thread.join()
    assert reader.execute("SELECT count(*) FROM t").fetchall() == [(30,)]
    for connection in (reader, beats, writer):
        connection.close()
    for point in range(0, vfs.points(), 9):
        assert lost(vfs, commits, point, point % 5, tmp_path / f"cut{point}") == []


def test_killed_process_loses_nothing(vfs: PowerVFS, tmp_path: Path) -> None:
    connection = connect(vfs, tmp_path / "store.db", "OFF")
    commits = write(vfs, connection, range(1, 8))
    assert lost(vfs, commits, vfs.points(), EVERYTHING, tmp_path / "cut") == []
    connection.close()


def test_the_whole_recording_is_the_real_directory(vfs: PowerVFS, tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    connection = connect(vfs, tmp_path / "live" / "store.db", "NORMAL")
    write(vfs, connection, range(1, 31))
    vfs.cut(vfs.points(), EVERYTHING, tmp_path / "cut")
    real = {path.name: path.read_bytes() for path in (tmp_path / "live").iterdir() if path.suffix != ".db-shm"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "cut").iterdir()} == real
    connection.close()


def test_same_seed_same_disk_other_seed_other_disk(vfs: PowerVFS, tmp_path: Path) -> None:
    connection = connect(vfs, tmp_path / "store.db", "OFF")
    write(vfs, connection, range(1, 10))
    point = vfs.points()

    def disk(name: str, seed: int) -> dict[str, bytes]:
        vfs.cut(point, seed, tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    assert disk("a", 5) == disk("b", 5)
    vfs.cut(3, 5, tmp_path / "back")
    assert disk("c", 5) == disk("a2", 5)
    assert len({str(disk(f"s{seed}", seed)) for seed in range(12)}) > 6
    connection.close()


def test_a_name_is_sure_only_after_its_directory_was_synced(vfs: PowerVFS, tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "store.db"), vfs=vfs.name)
    connection.execute("PRAGMA synchronous=OFF; CREATE TABLE t(n)")
    vfs.cut(vfs.points(), NOTHING, tmp_path / "off")
    assert list((tmp_path / "off").iterdir()) == []
    connection.execute("PRAGMA synchronous=FULL; INSERT INTO t VALUES (1)")
    vfs.cut(vfs.points(), NOTHING, tmp_path / "full")
    names = {path.name for path in (tmp_path / "full").iterdir()}
    assert names == {"store.db", "store.db-journal"}, "the journal's delete was not synced: with FULL it may come back (EXTRA syncs it)"
    connection.close()


def test_files_of_before_count_as_synced(vfs: PowerVFS, tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "store.db")) as plain:
        plain.execute("CREATE TABLE t(n); INSERT INTO t VALUES (1)")
    plain.close()
    before = (tmp_path / "store.db").read_bytes()
    connection = apsw.Connection(str(tmp_path / "store.db"), vfs=vfs.name)
    connection.execute("PRAGMA synchronous=OFF; INSERT INTO t VALUES (2)")
    connection.close()
    vfs.cut(0, NOTHING, tmp_path / "start")
    assert (tmp_path / "start" / "store.db").read_bytes() == before
    vfs.cut(vfs.points(), NOTHING, tmp_path / "end")
    assert (tmp_path / "end" / "store.db").read_bytes() == before


def test_sectors_survive_apart_and_torn(vfs: PowerVFS, tmp_path: Path) -> None:
    """Of one large unsynced write some sectors arrive whole, some not at all, some in part."""
    recording = vfs.recording
    path = str(tmp_path / "raw")
    file = recording.opened(path, existed=False)
    recording.changes.append(Written(file, 0, b"n" * SECTOR * 64))
    seen: set[str] = set()
    for seed in range(2, 40):
        vfs.cut(2, seed, tmp_path / f"cut{seed}")
        cut = tmp_path / f"cut{seed}" / "raw"
        content = cut.read_bytes() if cut.exists() else b""
        seen.add("gone" if not cut.exists() else "empty" if not content else "there")
        for start in range(0, len(content), SECTOR):
            arrived = content[start : start + SECTOR].count(b"n")
            seen.add("whole" if arrived == SECTOR else "torn" if arrived > SECTOR // 8 else "not")
    assert seen >= {"gone", "empty", "there", "whole", "torn", "not"}


def test_a_point_that_was_not_reached_is_refused(vfs: PowerVFS, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 points"):
        vfs.cut(1, NOTHING, tmp_path / "cut")
