"""A disk that is full: an apsw VFS on which files cannot grow any more once `left` bytes are used up.

Writes inside a file go on, as on a real disk: its blocks are there already. `only` names the ends of the files that are concerned.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import apsw
from typing_extensions import override

__all__ = ["FullVFS"]

PLENTY = 1 << 60


class _FullFile(apsw.VFSFile):
    def __init__(self, vfs: FullVFS, name: apsw.URIFilename | str, flags: list[int]) -> None:
        self._vfs = vfs
        self._path = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        super().__init__("", name, flags)

    @override
    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.grow(self._path, max(0, offset + len(data) - self.xFileSize()))
        super().xWrite(data, offset)

    @override
    def xTruncate(self, newsize: int) -> None:
        self._vfs.grow(self._path, min(0, newsize - self.xFileSize()))
        super().xTruncate(newsize)


class FullVFS(apsw.VFS):
    """Registered under `name` while it is entered."""

    def __init__(self, name: str, only: tuple[str, ...] = ("",)) -> None:
        self.name = name
        self.left = PLENTY
        self.refused = 0
        self._only = only
        self._lock = threading.Lock()
        super().__init__(name, base="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.unregister()

    def fill(self, left: int = 0) -> None:
        """So many bytes are left from now on."""
        self.left = left

    def free(self) -> None:
        self.left = PLENTY

    def grow(self, path: str, size: int) -> None:
        with self._lock:
            if size > self.left and path.endswith(self._only):
                self.refused += 1
                raise apsw.FullError("no space is left")
            self.left -= size

    @override
    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile("", name, flags)
        return _FullFile(self, name, flags)
