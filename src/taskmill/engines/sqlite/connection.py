"""Connections to the file, the fair write lock beside it, and what is refused before anything is touched."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import re
import stat
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import apsw

from taskmill.engine import Durability
from taskmill.engines.sqlite.sql import Database
from taskmill.errors import AnswerLost, StoreError, TaskmillError, WrongStore

__all__ = ["WriteLock", "check_path", "connect", "create", "file_system", "rights", "translate"]

FIXED_WAL_RESET = (3, 51, 3)
"""Before it, a WAL that is reset at the wrong moment can corrupt the file."""

PATIENCE = 1.5
MOMENT = 0.002
"""Seconds to wait for one's turn among writers before SQLite's own lock decides."""

PR_SET_TIMERSLACK = 29

PRIVATE = 0o600
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}

SMALLEST_DATABASE = 100
"""The header; SQLite takes a file of one byte for an empty one and writes over it."""

NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb2",
    "smb3",
    "smbfs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.cephfs",
    "ceph",
    "glusterfs",
    "lustre",
    "afs",
    "9p",
    "ncpfs",
    "ocfs2",
    "gfs2",
}
"""File systems on which neither locks nor the shared memory of the WAL are what SQLite needs."""


def check_path(path: Path, mounts: str | None = None) -> None:
    """Refuse what cannot hold a store, with the remedy, and leave it as it is. `mounts` is the system's own table unless given."""
    if path.is_dir():
        raise WrongStore(f"{path} is a directory", code="path_is_directory", field="url", hint=f"name a file in it, for example {path / 'taskmill.db'}")
    folder = path.parent
    if not folder.is_dir():
        raise WrongStore(f"the directory {folder} does not exist", code="no_directory", field="url", hint=f"make it first: mkdir -p {folder}")
    kind = file_system(folder, _mounts() if mounts is None else mounts)
    if kind in NETWORK:
        raise WrongStore(
            f"{path} is on a network mount ({kind})",
            code="network_mount",
            field="url",
            hint="SQLite needs a local disk; across machines use postgresql:// or redis://",
        )
    if path.exists():
        if not stat.S_ISREG(path.stat().st_mode):
            raise WrongStore(f"{path} is not a regular file", code="not_a_file", field="url")
        if 0 < path.stat().st_size < SMALLEST_DATABASE:
            raise translate(apsw.NotADBError(), str(path))
        if not (os.access(path, os.W_OK) and os.access(folder, os.W_OK)) or _mounted_read_only(folder):
            raise WrongStore(f"{path} is read-only", code="read_only", field="url", hint="give this user the right to write to it and to its directory")
    elif not os.access(folder, os.W_OK) or _mounted_read_only(folder):
        raise WrongStore(f"the directory {folder} is read-only", code="read_only", field="url", hint="give this user the right to write to it")


def _mounted_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system(folder: Path, mounts: str) -> str:
    """The type of the mount that holds a directory, by a table as in /proc/self/mounts; empty where it does not tell."""
    best, kind = "", ""
    where = f"{folder.resolve()}/"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[1])
        if where.startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, kind = mount, fields[2]
    return kind


def rights(path: Path) -> int:
    """Who may read and write the files beside a store: those who may read and write the store. Its file is its owner's alone unless it was made otherwise."""
    try:
        return path.stat().st_mode & 0o666
    except FileNotFoundError:
        return PRIVATE


def create(path: Path, mode: int = PRIVATE) -> None:
    """Make an empty file with these rights, whatever the umask; one that is there stays as it is."""
    try:
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    except FileExistsError:
        return
    os.fchmod(made, mode)
    os.close(made)


def connect(path: Path, *, durability: Durability, busy_timeout: int, vfs: str | None = None, read_only: bool = False, mode: int = PRIVATE) -> Database:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        if not read_only and vfs is None:
            create(path, mode)
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=256)
        connection.set_busy_handler(_patience(busy_timeout))
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        # Without it the planner looks at bound values, and a statement with LIMIT ? is prepared anew at every call.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for pragma in _pragmas(durability, read_only):
            _set(connection, pragma, _patience(busy_timeout))
    except (apsw.Error, OSError) as error:
        raise translate(error, str(path)) from None
    return connection


def _set(connection: Database, pragma: str, wait: Callable[[int], bool]) -> None:
    """A file that is being made, or made a WAL one, answers busy without asking the busy handler; that passes."""
    for calls in count():
        try:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        except apsw.BusyError:
            if not wait(calls):
                raise
        else:
            return


def _pragmas(durability: Durability, read_only: bool) -> list[str]:
    """Each on its own, and each answer fetched: a statement that is not read to its end has not run."""
    synchronous = "NORMAL" if durability is Durability.LOCAL else "FULL"
    shared = ["temp_store = MEMORY", "cache_size = -16384", "mmap_size = 33554432"]
    if read_only:
        return shared
    # A page of 8 KiB holds twice the rows of a batch: fewer frames in the WAL, 5 % less for claim and finish. It counts only when the file is made.
    return ["page_size = 8192", "journal_mode = WAL", f"synchronous = {synchronous}", "wal_autocheckpoint = 1000", *shared]


def _patience(busy_timeout: int) -> Callable[[int], bool]:
    """Wait for somebody else's lock in short jittered sleeps. (SQLite's own handler sleeps ever longer and starves the patient.)"""
    began = 0.0

    def wait(calls: int) -> bool:
        nonlocal began
        if calls == 0:
            began = time.monotonic()
        if time.monotonic() - began > busy_timeout / 1e6:
            return False
        time.sleep(random.uniform(0.0002, 0.001))
        return True

    return wait


class WriteLock:
    """Writers of all processes in turn.

    Two locks in a row: whoever holds the first (the turn) is next for the second and no one can overtake it, so a process that has just written must wait for
    those that came while it did. Those who wait for the turn stand in the kernel's queue, which wakes them all and lets the quickest win: not first come first
    served, but nobody is passed over for long. It only keeps order: what keeps writers apart is SQLite's own lock. So whoever waits too long here (somebody in
    the queue was paused, or writes for long) goes on without it, and until it gets the lock again waits only for a moment.
    """

    def __init__(self, folder: Path, rights: int = PRIVATE) -> None:
        self._folder = folder
        self._rights = rights
        self._write = self._open()
        self._given_up = False

    def _open(self) -> int:
        try:
            self._folder.mkdir()
            self._folder.chmod(self._rights | (self._rights & 0o444) >> 2)
        except FileExistsError:
            pass
        create(self._folder / "lock", self._rights)
        return os.open(self._folder / "lock", os.O_RDWR | os.O_CLOEXEC)

    def acquire(self) -> None:
        deadline = time.monotonic() + (MOMENT if self._given_up else PATIENCE)
        turn = self._take_turn(deadline)
        held = _try(self._write)
        if not held:
            _sharpen_sleeps()
            while not (held := _try(self._write)) and time.monotonic() < deadline:
                time.sleep(0.00002)
        self._given_up = turn is None or not held
        if turn is not None:
            os.close(turn)

    def _take_turn(self, deadline: float) -> int | None:
        """An open file that has the turn; closing it passes the turn on. None if it did not come."""
        try:
            turn = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # somebody tidied up: the queue starts anew
            os.close(self._write)
            self._write = self._open()
            return None
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            return None  # it only keeps order: without a descriptor this one goes on without its turn
        if _try(turn):
            return turn
        queue = _Queueing(turn)
        return turn if queue.granted.wait(deadline - time.monotonic()) or not queue.abandon() else None

    def release(self) -> None:
        fcntl.flock(self._write, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._write)


class _Queueing:
    """A place in the kernel's queue. The call that waits there cannot be called off, so it has a thread of its own, which can be left behind."""

    def __init__(self, turn: int) -> None:
        self.granted = threading.Event()
        self._turn = turn
        self._lock = threading.Lock()
        self._abandoned = False
        threading.Thread(target=self._wait, name="taskmill-turn", daemon=True).start()

    def _wait(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        with self._lock:
            if self._abandoned:
                os.close(self._turn)
            else:
                self.granted.set()

    def abandon(self) -> bool:
        """Nobody waits for it any more; False if it was granted in the meantime."""
        with self._lock:
            self._abandoned = not self.granted.is_set()
            return self._abandoned


def _sharpen_sleeps() -> None:
    """Linux adds 50 µs to every sleep of a thread unless told otherwise, and for so long nobody would write. Only one waits here: the holder of the turn."""
    if sys.platform == "linux" and not getattr(_thread, "sharp", False):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1_000)
        _thread.sharp = True


_thread = threading.local()


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy() -> StoreError:
    return StoreError(
        "another program has been writing to the store all this time",
        code="store_busy",
        hint="look for a transaction left open; nothing was written, ask again",
    )


def _no_descriptors() -> bool:
    """SQLite does not say why it could not open a file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in NO_DESCRIPTORS
    return False


def _out_of_descriptors() -> StoreError:
    return StoreError("this process has no file descriptor left", code="store_busy", hint="raise its limit (ulimit -n), or let it hold fewer connections")


def translate(error: apsw.Error | OSError, path: str = "the store") -> TaskmillError:
    """SQLite's errors, and the file system's, in the words of this product."""
    text = str(error)
    match error:
        case OSError() if error.errno in NO_DESCRIPTORS:
            return _out_of_descriptors()
        case apsw.CantOpenError() | apsw.IOError() if _no_descriptors():
            return _out_of_descriptors()
        case PermissionError():
            hint = "every user of the store needs the right to write to the files beside it"
            return WrongStore(f"{error.filename} is not writable", code="read_only", field="url", hint=hint)
        case apsw.BusyError() | apsw.LockedError():
            return _busy()
        case apsw.FullError():
            return StoreError("the disk is full", code="disk_full", hint="free some space; nothing was written, ask again")
        case apsw.NotADBError():
            return WrongStore(f"{path} is not a SQLite database", code="not_a_database", field="url", hint="name another file; this one was left as it is")
        case apsw.CorruptError():
            return WrongStore(f"{path} is damaged: {text}", code="damaged_store", hint="restore it from a backup; `taskmill db verify` tells more")
        case apsw.ReadOnlyError():
            return WrongStore(f"{path} is read-only", code="read_only", field="url", hint="give this user the right to write to it")
        case apsw.CantOpenError():
            return WrongStore(f"{path} cannot be opened: {text}", code="cannot_open", field="url", hint="check the path and its rights")
        case apsw.IOError():
            return AnswerLost(f"the disk did not take the write: {text}", code="disk_error", hint="it may have been applied: ask again")
    return StoreError(f"SQLite refused the step: {text}", code="store_error")
