"""What every process under a supervisor does at its start: leave signals to the supervisor, and never outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

__all__ = ["under"]

_PR_SET_PDEATHSIG = 1


def under(parent: int, *ends: socket.socket) -> None:
    """SIGINT and SIGTERM mean the supervisor, who passes them on as words. Its death ends this process, however busy.

    A copy that a handler forks is not part of the family: it lets go of the channel.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before this process could say that it wants to know
    for end in ends:
        os.register_at_fork(after_in_child=end.close)
