"""What every process under a supervisor does at its start: leave signals to the supervisor, and never outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import io
import logging
import os
import signal
import socket
import sys

__all__ = ["death", "end_copies", "keep_standard_streams", "kill", "under"]

_PR_SET_PDEATHSIG = 1
_OUT_OF_THE_WAY = 64

_spares: dict[int, int] = {}


def end_with_parent(how: signal.Signals) -> None:
    """This process gets the signal when its parent dies. Linux keeps it over exec, so a parent may set it before; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)


def under(parent: int, *ends: socket.socket) -> None:
    """SIGINT and SIGTERM mean the supervisor, who passes them on as words. Its death ends this process, however busy.

    A copy that a handler forks is not part of the family: it lets go of the channel.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before this process could say that it wants to know
    for end in ends:
        os.register_at_fork(after_in_child=end.close)
    for fd in range(3):
        if _is_open(fd):
            _spares[fd] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)


def kill(process: asyncio.subprocess.Process) -> None:
    """Not by its own `kill`, which may take the exit code away from whoever waits for it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def end_copies() -> None:
    """A copy that a handler forks from the running loop ends at its next turn: it must not go on with the handlers of its parent."""
    loop = asyncio.get_running_loop()
    os.register_at_fork(after_in_child=lambda: loop.call_soon(os._exit, 0))


def keep_standard_streams() -> None:
    """A handler may close them. The next file opened would take their place, and what others print would go into it: into the store, at worst."""
    for fd in range(3):
        if not _is_open(fd):
            _open_again(fd)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if getattr(stream, "closed", False):
            setattr(sys, name, io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), errors="backslashreplace", write_through=True))
            for handler in logging.root.handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                    handler.stream = getattr(sys, name)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _open_again(fd: int) -> None:
    spare = _spares.get(fd)
    if spare is not None and _is_open(spare):
        os.dup2(spare, fd)
    else:
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one


def death(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in {number.value for number in signal.Signals} else str(-code)
    return f"its process was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
