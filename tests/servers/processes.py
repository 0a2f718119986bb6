"""A server and the processes that it started, which are ended together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

__all__ = ["children", "ended", "kill_family", "remove_shared_memory"]

IPC_RMID = 0


def children(pid: int) -> list[int]:
    """The living processes that this one started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                if int(parent) == pid and state != b"Z":
                    found.append(int(entry.name))
    return found


def kill_family(pid: int) -> None:
    """Kill −9 a server with all that it started; they are dead when this returns. It is stopped first, so that it starts nothing more;
    a server that is killed alone leaves backends that go on until they look up."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return
    family = [pid, *children(pid)]
    watched = list(_opened(family))
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    _wait(watched, None)


def ended(pid: int, seconds: float) -> bool:
    """Whether it has ended within this time."""
    return _wait(list(_opened([pid])), seconds)


def _opened(pids: Iterable[int]) -> Iterable[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield os.pidfd_open(pid)


def _wait(watched: list[int], seconds: float | None) -> bool:
    try:
        return all(select.select([one], [], [], seconds)[0] for one in watched)
    finally:
        for one in watched:
            os.close(one)


def remove_shared_memory(data: Path) -> None:
    """A server that was killed leaves a segment of the system's shared memory, named in its lock file, until it starts again."""
    try:
        words = (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[6].split()
    except (OSError, IndexError):
        return
    if len(words) == 2 and not _exists(data):
        ctypes.CDLL(None).shmctl(int(words[1]), IPC_RMID, None)


def _exists(data: Path) -> bool:
    """Whether the server of this folder is alive."""
    pid = int((data / "postmaster.pid").read_text(encoding="utf-8").split()[0])
    try:
        return b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except OSError:
        return False
