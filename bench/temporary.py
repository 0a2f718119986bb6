"""Directories that are gone afterwards."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["folder"]


@contextlib.contextmanager
def folder(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards; what lies in it can be large."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent.resolve()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
