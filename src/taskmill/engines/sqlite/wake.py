"""Wake-ups between processes in microseconds, without polling: every listener has a FIFO in the store's run folder, and whoever commits writes a byte into it.

A FIFO needs no server, goes with its file system rights, and its reader's death is seen by the writer (ENXIO, EPIPE), who then removes it. A byte that
cannot be written because the FIFO is full is not needed: the listener has not yet read the last. Hints only: everything that listens also polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import threading
import time
from pathlib import Path

__all__ = ["Hints", "Listener", "Waker"]


class Listener:
    """The reading end; `heard` is set by every hint."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.heard = asyncio.Event()
        self._path = folder / f"{kind}.{os.getpid()}.{secrets.token_hex(4)}"
        self._loop = asyncio.get_running_loop()
        hidden = folder / f".{self._path.name}"  # a FIFO without a reader looks dead: it gets its name when it has one
        os.mkfifo(hidden, 0o600)
        hidden.chmod(folder.stat().st_mode & 0o666)  # who may look into the folder may wake
        self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        hidden.rename(self._path)
        self._loop.add_reader(self._fd, self._hear)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 65_536)
        self.heard.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Until the next hint, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):  # not wait_for: in Python 3.11 it forgets a cancel that comes together with the hint
                await self.heard.wait()
        self.heard.clear()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = -1


class Waker:
    """The writing ends of everybody's FIFOs, opened when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ends: dict[str, int] = {}
        self._seen = -1
        self._lock = threading.Lock()

    def listen(self, kind: str) -> Listener:
        return Listener(self._folder, kind)

    def wake(self, kinds: set[str]) -> None:
        """Tell every listener of these kinds; called after a commit, by any thread. A hint that cannot be given is not worth an error."""
        with self._lock, contextlib.suppress(OSError):
            self._look()
            for name in [name for name in self._ends if name.split(".", 1)[0] in kinds]:
                self._write(name)

    def _look(self) -> None:
        """Who listens. The folder's time tells whether that changed, unless it is so fresh that a second change may hide in the same tick."""
        changed = self._folder.stat().st_mtime_ns
        if changed == self._seen:
            return
        self._seen = changed if time.time_ns() - changed > 50_000_000 else -1
        names = {entry.name for entry in os.scandir(self._folder) if not entry.name.startswith((".", "lock"))}
        for name in self._ends.keys() - names:
            self._drop(name)
        for name in names - self._ends.keys():
            self._ends[name] = -1

    def _write(self, name: str) -> None:
        try:
            if self._ends[name] < 0:
                self._ends[name] = os.open(self._folder / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._ends[name], b"\0")
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(name)
            if error.errno in (errno.ENXIO, errno.EPIPE):  # its listener died without a word
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / name).unlink()

    def _drop(self, name: str) -> None:
        end = self._ends.pop(name)
        if end >= 0:
            os.close(end)

    def close(self) -> None:
        with self._lock:
            for name in list(self._ends):
                self._drop(name)


class Hints:
    """Wake-ups as a stream."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __aiter__(self) -> Hints:
        return self

    async def __anext__(self) -> None:
        await self._listener.wait()

    async def aclose(self) -> None:
        self._listener.close()
