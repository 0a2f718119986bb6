"""Where the folders of tests are: in memory, if there is room. SQLite waits for a disk at each commit, and no test can see that it did."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["memory", "prefer_memory"]

MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes that must be free; a run takes less than half of it, even if it fails."""
ROOT = "PYTEST_DEBUG_TEMPROOT"
NAMED = (ROOT, "TMPDIR")


def prefer_memory() -> None:
    """Unless somebody has named a place."""
    if not any(name in os.environ for name in NAMED) and _fits():
        os.environ[ROOT] = str(MEMORY)


def memory() -> Path | None:
    """The place in memory, if the folders of tests are there."""
    return MEMORY if os.environ.get(ROOT) == str(MEMORY) else None


def _fits() -> bool:
    """Programs are run from there, too."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    return os.access(MEMORY, os.W_OK) and found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC
