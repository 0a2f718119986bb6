"""What every process under a supervisor does at its start: leave signals to the supervisor, and never outlive it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys

__all__ = ["end_copies", "keep_standard_streams", "under"]

_PR_SET_PDEATHSIG = 1


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


def end_copies() -> None:
    """A copy that a handler forks from the running loop ends at its next turn: it must not go on with the handlers of its parent."""
    loop = asyncio.get_running_loop()
    os.register_at_fork(after_in_child=lambda: loop.call_soon(os._exit, 0))


def keep_standard_streams() -> None:
    """A handler may close them. The next file opened would take their place, and what others print would go into it: into the store, at worst."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
