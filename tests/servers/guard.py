"""Ends servers and removes their folders when the process that started them is gone, however it went.

`python -m tests.servers.guard` reads `+ pid folder` and `- pid folder` until its input ends, which it does when the other end has died.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers.processes import kill_family, remove_shared_memory

__all__ = ["forget", "pid", "remove", "watch"]

ROOT = Path(__file__).parents[2]
_watching: dict[int, subprocess.Popen[str]] = {}


def watch(pid: int, folder: Path) -> None:
    """From now on the server and its folder end with this process. Pid 0: there is only a folder."""
    _tell(f"+ {pid} {folder}")


def forget(pid: int, folder: Path) -> None:
    _tell(f"- {pid} {folder}")


def pid() -> int:
    """The guard of this process, which has begun to watch."""
    return _watching[os.getpid()].pid


def _tell(line: str) -> None:
    guard = _watching.get(os.getpid())
    if guard is None:
        command = [sys.executable, "-m", __name__]
        # A session of its own: Ctrl-C is for the tests, and then the guard is needed.
        guard = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True)
        _watching[os.getpid()] = guard
        atexit.register(_dismiss, guard)
    assert guard.stdin is not None
    guard.stdin.write(f"{line}\n")
    guard.stdin.flush()


def _dismiss(guard: subprocess.Popen[str]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def remove(folder: Path) -> None:
    remove_shared_memory(folder / "data")
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    watched: dict[tuple[str, str], None] = {}
    for line in sys.stdin:
        sign, number, folder = line.rstrip("\n").split(" ", 2)
        if sign == "+":
            watched[number, folder] = None
        else:
            watched.pop((number, folder), None)
    for number, folder in watched:
        if int(number) and _is_of(int(number), folder):
            kill_family(int(number))
    for _, folder in watched:
        remove(Path(folder))


def _is_of(number: int, folder: str) -> bool:
    """Whether it is still the server that was named: numbers of processes come again."""
    try:
        return folder.encode() in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    main()
