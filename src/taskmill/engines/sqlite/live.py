"""The live file: beats, recovery's marks, and the renewal of leadership.

It lies beside the store so that nobody's long write transaction holds up a heartbeat. It is disposable: nothing in it is worth a sync, and when it is lost,
every lease is given one lease more. Times are of the monotonic clock, which all processes of one boot share; after another boot they mean nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import apsw

from taskmill.clock import Clock
from taskmill.engine import Durability, Term
from taskmill.engines.sqlite.connection import connect, rights
from taskmill.engines.sqlite.sql import Database, load
from taskmill.errors import TaskmillError

__all__ = ["Live"]

Answer = TypeVar("Answer")

queries = load("live.sql")


class Live:
    """The file and its verbs; used by one thread at a time."""

    def __init__(self, path: Path, clock: Clock, busy_timeout: int, vfs: str | None) -> None:
        self._clock = clock
        self._boot = _boot_id()
        self._path = path
        self._connect: Callable[[], Database] = lambda: _connect(path, busy_timeout, vfs)
        self._open()

    def _open(self) -> None:
        try:
            self._db: Database = self._connect()
        except TaskmillError as error:
            if error.code not in {"not_a_database", "damaged_store", "disk_error"}:
                raise
            self._remove()
            self._db = self._connect()
        self._file = self._path.stat().st_ino

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").unlink()

    def replace(self) -> None:
        """Begin anew; every lease is given one lease more."""
        self._db.close()
        self._remove()
        self._open()

    def do(self, do: Callable[[Live], Answer]) -> Answer:
        """Do something with it, wherever the file is now. It is disposable: whatever is wrong with it, a new one is right."""
        self.follow()
        try:
            return do(self)
        except apsw.BusyError:
            raise
        except apsw.Error:
            self.replace()
            return do(self)

    def follow(self) -> None:
        """Somebody removed the file: what is written to the one that is gone nobody would read."""
        try:
            here = self._path.stat().st_ino == self._file
        except FileNotFoundError:
            here = False
        if not here:
            self._db.close()
            self._open()

    def close(self) -> None:
        self._db.close()

    # Beats

    def beat(self, worker: str) -> None:
        self._db.execute(queries.beat, (worker, self._clock.monotonic(), self._boot))

    def forget(self, worker: str) -> None:
        self._db.execute(queries.forget, (worker,))

    def forget_all(self, workers: Iterable[str]) -> None:
        self._db.executemany(queries.forget, [(worker,) for worker in workers])

    def mark(self, lease: int) -> int:
        """Recovery was here. Answers since when leases may be judged: a pause of the store or of recovery itself is nobody's fault but theirs.

        Half a lease is a pause: of a longer one too little would be left to beat in."""
        now = self._clock.monotonic()
        row = self._db.execute(queries.last_mark, (self._boot,)).fetchone()
        fair_since: int = now if row is None or now - row[0] > lease // 2 else row[1]
        self._db.execute(queries.mark, (now, fair_since, self._boot))
        return fair_since

    def silent(self, workers: Mapping[str, int], fair_since: int) -> list[str]:
        """Those that were not heard of for longer than their lease."""
        now = self._clock.monotonic()
        beats = dict(self._db.execute(queries.beats, (self._boot,)).fetchall())
        return [worker for worker, lease in workers.items() if now - max(beats.get(worker, 0), fair_since) > lease]

    def silences(self) -> dict[str, int]:
        """How long ago each worker was heard of; of another boot nothing is known."""
        now = self._clock.monotonic()
        return {worker: max(0, now - at) for worker, at in self._db.execute(queries.beats, (self._boot,))}

    # The wall clock

    def set_back(self, newest: int) -> int:
        """How far the wall clock was set back since recovery last looked at it, or since the newest task was submitted; so until that is settled."""
        now = self._clock.now()
        wall, settled = self._db.execute(queries.wall).fetchone() or (0, 0)
        back: int = max(wall, 0 if newest == settled else newest) - now
        if back <= 0:
            self._db.execute(queries.set_wall, (now, settled))
        return max(0, back)

    def settle(self, newest: int) -> None:
        """From here on the wall clock is right as it is."""
        self._db.execute(queries.set_wall, (self._clock.now(), newest))

    # Leadership

    def renew(self, term: Term, lasts: int) -> bool:
        """Whether a term that the store gave has not run out; if so, it begins anew."""
        now = self._clock.monotonic()
        return self._db.execute(queries.renew, (now, term.role, term.holder, term.number, self._boot, now - lasts)).fetchone() is not None

    def led(self, role: str, holder: str, term: int) -> bool:
        """Whether somebody else's term still runs."""
        return self._db.execute(queries.led, (role, holder, self._boot, self._clock.monotonic() - term)).fetchone() is not None

    def runs(self, term: Term, lasts: int) -> bool:
        """Whether a term that the store gave has not run out."""
        since = self._clock.monotonic() - lasts
        return self._db.execute(queries.runs, (term.role, term.holder, term.number, self._boot, since)).fetchone() is not None

    def lead(self, term: Term) -> None:
        self._db.execute(queries.lead, (term.role, term.holder, term.number, self._clock.monotonic(), self._boot))

    def resign(self, term: Term) -> None:
        self._db.execute(queries.resign, (term.role, term.holder, term.number))


def _connect(path: Path, busy_timeout: int, vfs: str | None) -> Database:
    mode = rights(Path(str(path).removesuffix("-live")))
    connection = connect(path, durability=Durability.LOCAL, busy_timeout=busy_timeout, vfs=vfs, mode=mode)
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    for statement in (queries.beat_table, queries.mark_table, queries.term_table, queries.clock_table):
        connection.execute(statement)
    return connection


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
