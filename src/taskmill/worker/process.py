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
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from taskmill.clock import SECOND
from taskmill.errors import TaskmillError

__all__ = [
    "LAST_PART",
    "adopt_orphans",
    "children",
    "death",
    "end_children",
    "end_copies",
    "exit_soon",
    "handlers_time",
    "keep_standard_streams",
    "kill",
    "kill_group",
    "let_go",
    "under",
    "within",
]

LAST_PART = 2 * SECOND
"""The end of a grace period, for asking handlers to end and telling the store; a store that does not answer gets no more than this."""
REAPING = 1.0
"""Seconds for processes that were killed to be gone."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OUT_OF_THE_WAY = 64

_spares: dict[int, int] = {}


def end_with_parent(how: signal.Signals) -> None:
    """This process gets the signal when its parent dies. Linux keeps it over exec, so a parent may set it before; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)


def adopt_orphans() -> None:
    """What a handler's own children leave behind becomes a child of this process, which can find and end it; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> frozenset[int]:
    """The processes that this one has started and not waited for, as far as the system tells."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                found.update(map(int, (thread / "children").read_text().split()))
    return frozenset(found)


def end_children(before: frozenset[int]) -> int:
    """Kill what was started since then, and what that had started, and wait for it; how many were still running."""
    ended: set[int] = set()
    deadline = time.monotonic() + REAPING
    while (left := {pid for pid in children() - before if not _reaped(pid)}) and time.monotonic() < deadline:
        for pid in left - ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= left
        time.sleep(0.005)
    return len(ended)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


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


def handlers_time(grace: int) -> int:
    """How much of a grace period handlers have until they are asked to end: most of it."""
    return grace - min(LAST_PART, 2 * grace // 5)


async def within(seconds: float, work: Coroutine[Any, Any, object]) -> bool:
    """Whether it came to its end in time. What did not is left behind: cancelled, it could still hang in a store that does not answer."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=max(0.0, seconds))
    if not task.done():
        return False
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, TaskmillError):
        raise error
    return error is None


async def let_go(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Run it until cancelled; then it has so long to end, and is left behind."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=seconds)
        raise


def exit_soon(code: int, seconds: float) -> None:
    """Threads that never return must not keep the process, whether a handler's or one that waits for a store; the end of a loop would wait for them."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


def kill(process: asyncio.subprocess.Process) -> None:
    """With what its handlers have started: each of ours leads a group of its own. Not by its own `kill`, which may take the exit code away from its waiter."""
    if process.returncode is None:
        kill_group(process.pid)


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


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
