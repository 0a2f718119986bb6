"""The audit log: who changed what, in a file that is only ever appended to.

Each deed has two lines, one before it is tried and one with what came of it, so that none is missing however the process ends between them. A line is on
the disk before the deed begins. Where it cannot be written, nothing is changed: the caller is told that the store cannot be administered now.

Each line has the hash of the line before it, so that one that was changed, taken out or put in later is found: `python -m taskmill.server.audit FILE` says
where. It does not find the end of the file cut off, nor a file that was written anew from some line on: for that, keep its lines on another machine too.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import msgspec

from taskmill.clock import Clock, rfc3339
from taskmill.config import MEMORY, Settings, engine_kind, sqlite_path
from taskmill.errors import StoreError, TaskmillError

__all__ = ["REQUEST", "Audit", "Detail", "Line", "first_broken", "path_of"]

Detail = str | int | bool | None

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The id of the request that is answered here, where it has one."""


def path_of(settings: Settings, base: Path) -> Path:
    """Where the settings put it: beside a store that is a file, else from `base` on, where relative paths start."""
    url = settings.url.reveal()
    file = sqlite_path(url, base) if engine_kind(url) == "sqlite" else MEMORY
    return (base if file == MEMORY else file.parent) / settings.audit_log


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. `outcome` is `asked` before the deed, then `done` or the code of the error that refused it."""

    at: str
    outcome: str
    action: str
    target: str
    key: str = ""
    """The id of the caller's key; empty for one who needed none, or for the command line."""
    tenant: str | None = None
    request: str = ""
    details: Mapping[str, Detail] | None = None
    previous: str = ""
    """The hash of the line before it; empty for the first of a file."""


class Audit:
    """Appends to one file; processes may share it, each line is written under a lock."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    @asynccontextmanager
    async def deed(
        self, action: str, target: str, *, key: str = "", tenant: str | None = None, details: Mapping[str, Detail] = MappingProxyType({})
    ) -> AsyncIterator[None]:
        """What happens inside is noted before and after."""

        async def note(outcome: str) -> None:
            at, request = rfc3339(self._clock.now()), REQUEST.get()
            line = Line(at=at, outcome=outcome, action=action, target=target, key=key, tenant=tenant, request=request, details=details or None)
            await asyncio.to_thread(self._append, line)

        await note("asked")
        try:
            yield
        except BaseException as error:
            await note(error.code if isinstance(error, TaskmillError) else type(error).__name__)
            raise
        await note("done")

    def _append(self, line: Line) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                last = _last_line(fd)
                chained = msgspec.structs.replace(line, previous=_hash(last) if last else "")
                # What a crash has left of a line stays, and the next one begins behind it.
                _write_whole(fd, (b"" if last.endswith(b"\n") or not last else b"\n") + msgspec.json.encode(chained) + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(
                f"the audit log cannot be written: {error.strerror}", code="audit_unavailable", hint=f"make room and allow writing to {self.path}"
            ) from error


def _last_line(fd: int) -> bytes:
    """The last line of a file with its end, if it has one."""
    size = os.fstat(fd).st_size
    look = min(size, 4_096)
    while True:
        tail = os.pread(fd, look, size - look)
        begin = tail.rfind(b"\n", 0, -1) + 1
        if begin or look == size:
            return tail[begin:]
        look = min(size, 2 * look)


def _write_whole(fd: int, data: bytes) -> None:
    """All of it, or nothing: a disk that is nearly full takes part of a line and says so only by the number."""
    size = os.fstat(fd).st_size
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(fd, size)
        raise


def _hash(line: bytes) -> str:
    return sha256(line.rstrip(b"\n")).hexdigest()


def first_broken(path: Path) -> int | None:
    """The number of the first line that does not follow the one before it; None: all do. The first may follow one of a file that was moved away, and lines
    that an older version wrote stand at the beginning, without hashes."""
    before: bytes | None = None
    chained = False
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            previous = _previous(line)
            if before is not None and previous is not None and (previous or chained) and previous != _hash(before):
                return number
            chained = chained or bool(previous)
            before = line
    return None


def _previous(line: bytes) -> str | None:
    """None for what a crash has left of a line."""
    try:
        return msgspec.json.decode(line, type=Line).previous
    except msgspec.MsgspecError:
        return None


if __name__ == "__main__":
    broken = first_broken(Path(sys.argv[1]))
    sys.stdout.write("every line follows the one before it\n" if broken is None else f"line {broken} does not follow the one before it\n")
    sys.exit(0 if broken is None else 1)
