"""A disk whose power can be cut at any moment that has passed.

`PowerVFS` is an apsw VFS. It passes every call on to the real files, so SQLite works on it as always (WAL, shared memory, several
connections and threads of this process), and notes each change in order: a file made, written, truncated, synced, deleted. From these notes
`cut` builds the directory as a power cut behind any of them could have left it:

- What was synced is there. A sync covers its own file only.
- Of what was written after the last sync of its file, each sector of 512 bytes holds what it held at some moment since then: unchanged,
  some or all of its writes, the last of them possibly torn (only its front or its back arrived). Bytes that nobody wrote do not change
  (SQLite relies on it where the device says "powersafe overwrite", as unix files do).
- A file's length is one it had since its last sync. Where it grew and the sector did not arrive there are zeros or garbage.
- A name that was made or deleted is sure once its directory was synced; before that it may be missing, or still be there. SQLite's unix
  files sync the directory with the first sync of each rollback journal or WAL they open for writing, and with a delete that asks for it;
  this makes every earlier change of names in that directory sure. A database's own sync does not.

The `-shm` file is memory, gone after a power cut; SQLite's shared memory never passes through here. Temporary files are not noted. A real
fsync is left out: it would prove nothing and cost most of the time. Only this process is seen: a second one writing the same files is not.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import apsw
from typing_extensions import override

__all__ = ["EVERYTHING", "NOTHING", "SECTOR", "PowerVFS", "Recording", "Truncated", "Written"]

SECTOR = 512
NOTHING = 0
"""The seed of the cut that keeps nothing unsynced."""
EVERYTHING = 1
"""The seed of the cut that keeps all that was written, as after a killed process."""

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_UNNOTED = apsw.SQLITE_OPEN_DELETEONCLOSE | apsw.SQLITE_OPEN_MEMORY


@dataclass(frozen=True, slots=True)
class Created:
    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Written:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    file: int
    directory: str | None


@dataclass(frozen=True, slots=True)
class Deleted:
    path: str
    directory: str | None


Change = Created | Written | Truncated | Synced | Deleted


@dataclass(slots=True)
class _File:
    """One file, whatever its name is by now: what is sure, and what came since."""

    sure: bytearray
    pending: list[Written | Truncated] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            _replay(self.sure, change)
        self.pending.clear()

    def after_cut(self, chance: Random, seed: int) -> bytes:
        if seed == NOTHING:
            return bytes(self.sure)
        if seed == EVERYTHING:
            whole = bytearray(self.sure)
            for change in self.pending:
                _replay(whole, change)
            return bytes(whole)
        return _survivors(self.sure, self.pending, chance)


def _replay(content: bytearray, change: Written | Truncated) -> None:
    end = change.size if isinstance(change, Truncated) else change.offset + len(change.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if isinstance(change, Truncated):
        del content[end:]
    else:
        content[change.offset : end] = change.data


def _survivors(sure: bytearray, pending: list[Written | Truncated], chance: Random) -> bytes:
    """One of the contents that a disk may show when these changes were on their way."""
    sizes, pieces = _scatter(len(sure), pending)
    size = sizes[-1] if chance.random() < 0.6 else chance.choice(sizes)
    content = bytearray(sure[:size])
    garbage = chance.random() < 0.5
    while len(content) < size:
        step = min(SECTOR - len(content) % SECTOR, size - len(content))
        content.extend(chance.randbytes(step) if garbage else bytes(step))
    likely = chance.choice((0.1, 0.5, 0.9, 1.0))
    for sector in sorted(pieces):
        if chance.random() < likely:
            _arrive(content, pieces[sector], chance)
    return bytes(content[:size])


def _scatter(size: int, pending: list[Written | Truncated]) -> tuple[list[int], dict[int, list[tuple[int, bytes]]]]:
    """Every length the file had, and its writes in order for each sector."""
    sizes = [size]
    pieces: dict[int, list[tuple[int, bytes]]] = {}
    for change in pending:
        if isinstance(change, Truncated):
            size = change.size
        else:
            size = max(size, change.offset + len(change.data))
            for offset, data in _sectors(change):
                pieces.setdefault(offset // SECTOR, []).append((offset, data))
        if size != sizes[-1]:
            sizes.append(size)
    return sizes, pieces


def _sectors(write: Written) -> list[tuple[int, bytes]]:
    parts = []
    start = 0
    while start < len(write.data):
        length = SECTOR - (write.offset + start) % SECTOR
        parts.append((write.offset + start, write.data[start : start + length]))
        start += length
    return parts


def _arrive(content: bytearray, writes: list[tuple[int, bytes]], chance: Random) -> None:
    count = len(writes) if chance.random() < 0.7 else chance.randint(1, len(writes))
    for number, (offset, data) in enumerate(writes[:count], start=1):
        if number == count and chance.random() < 0.15:
            torn = chance.randint(0, len(data))
            _put(content, offset, data[:torn]) if chance.random() < 0.5 else _put(content, offset + torn, data[torn:])
        else:
            _put(content, offset, data)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    within = max(0, min(len(data), len(content) - offset))
    content[offset : offset + within] = data[:within]


class _Disk:
    """What a power cut would leave, kept up to date change by change."""

    def __init__(self, existing: dict[str, tuple[int, bytes]]) -> None:
        self.done = 0
        self.files = {file: _File(bytearray(content)) for file, content in existing.values()}
        self.sure = {path: file for path, (file, _) in existing.items()}
        self.pending: dict[str, list[int | None]] = {}
        """Names whose directory was not synced since: what each stood for (no file: deleted), in order."""

    def advance(self, changes: list[Change], point: int) -> None:
        for change in changes[self.done : point]:
            self._apply(change)
        self.done = point

    def _apply(self, change: Change) -> None:
        match change:
            case Created(path, file):
                self.files[file] = _File(bytearray())
                self.pending.setdefault(path, []).append(file)
            case Written(file) | Truncated(file):
                self.files[file].pending.append(change)
            case Synced(file, directory):
                self.files[file].sync()
                self._sync_directory(directory)
            case Deleted(path, directory):
                self.pending.setdefault(path, []).append(None)
                self._sync_directory(directory)

    def _sync_directory(self, directory: str | None) -> None:
        for path in [path for path in self.pending if _directory(path) == directory]:
            self._name(self.sure, path, self.pending.pop(path)[-1])

    @staticmethod
    def _name(names: dict[str, int], path: str, file: int | None) -> None:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file

    def names(self, chance: Random, seed: int) -> dict[str, int]:
        names = dict(self.sure)
        for path, stood in sorted(self.pending.items()):
            kept = {NOTHING: 0, EVERYTHING: len(stood)}.get(seed, chance.randint(0, len(stood)))
            if kept:
                self._name(names, path, stood[kept - 1])
        return names


def _directory(path: str) -> str:
    return str(Path(path).parent)


class Recording:
    """Every change in order, and the disks that they can have left."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._existing: dict[str, tuple[int, bytes]] = {}
        self._current: dict[str, int] = {}
        self._count = 0
        self._disk = _Disk({})

    def opened(self, path: str, existed: bool) -> int:
        """The number of the file behind this name; a file of before the recording counts as synced."""
        if existed and path in self._current:
            return self._current[path]
        self._count += 1
        self._current[path] = self._count
        if existed:
            self._existing[path] = self._count, Path(path).read_bytes()
            self._disk = _Disk(self._existing)
        else:
            self.changes.append(Created(path, self._count))
        return self._count

    def deleted(self, path: str, directory: str | None) -> None:
        del self._current[path]
        self.changes.append(Deleted(path, directory))

    def cut(self, point: int, seed: int, into: Path) -> None:
        """Write the directory as the power cut right behind `point` changes left it; ask for growing points, going back replays all."""
        if not 0 <= point <= len(self.changes):
            raise ValueError(f"there are {len(self.changes)} points, not {point}")
        if point < self._disk.done:
            self._disk = _Disk(self._existing)
        self._disk.advance(self.changes, point)
        chance = Random(f"{seed} {point}")
        into.mkdir(parents=True, exist_ok=True)
        for path, file in self._disk.names(chance, seed).items():
            target = into / Path(path).name
            if target.exists():
                raise ValueError(f"{target} is there already; cut into an empty directory, and record files of one directory only")
            target.write_bytes(self._disk.files[file].after_cut(chance, seed))


class _PowerFile(apsw.VFSFile):
    """A real file that tells the recording what is done to it."""

    def __init__(self, vfs: PowerVFS, path: str, name: apsw.URIFilename | str, flags: list[int]) -> None:
        self._lock = vfs.lock
        self._changes = vfs.recording.changes
        self._directory = _directory(path)
        self._syncs_directory = bool(flags[0] & _JOURNALS and flags[0] & apsw.SQLITE_OPEN_CREATE)
        existed = Path(path).exists()
        super().__init__("", name, flags)
        self._file = vfs.recording.opened(path, existed)

    @override
    def xWrite(self, data: bytes, offset: int) -> None:
        with self._lock:
            super().xWrite(data, offset)
            self._changes.append(Written(self._file, offset, bytes(data)))

    @override
    def xTruncate(self, newsize: int) -> None:
        with self._lock:
            super().xTruncate(newsize)
            self._changes.append(Truncated(self._file, newsize))

    @override
    def xSync(self, flags: int) -> None:
        with self._lock:
            self._changes.append(Synced(self._file, self._directory if self._syncs_directory else None))
            self._syncs_directory = False


class PowerVFS(apsw.VFS):
    """Registered under `name` while it is entered; close its connections before you leave it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recording = Recording()
        self.lock = threading.RLock()
        super().__init__(name, base="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.unregister()

    def points(self) -> int:
        """How many changes there were so far; a cut at this number is a cut now."""
        with self.lock:
            return len(self.recording.changes)

    def cut(self, point: int, seed: int, into: Path) -> None:
        """Write the directory as after a power cut there: NOTHING and EVERYTHING are seeds of their own, any other draws what survives."""
        with self.lock:
            self.recording.cut(point, seed, into)

    @override
    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if name is None or path is None or flags[0] & _UNNOTED:
            return apsw.VFSFile("", name, flags)
        with self.lock:
            return _PowerFile(self, path, name, flags)

    @override
    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.lock:
            if Path(filename).exists():
                self.recording.opened(filename, existed=True)
            super().xDelete(filename, syncdir)
            self.recording.deleted(filename, _directory(filename) if syncdir else None)
